"""`truncation`: what becomes of a history that the upstream says is too long."""

import pytest

from tests.support.api import JSON, Api
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    call,
    chunk,
    done,
    drop,
    finish,
    reply,
    status,
    text,
    usage,
)

TOO_LONG = "the request exceeds the available context size, try increasing it"
OVERFLOW = [
    status(
        400,
        {
            "error": {
                "message": TOO_LONG,
                "type": "exceed_context_size_error",
                "code": 400,
                "n_ctx": 8192,
            }
        },
    )
]
TURNS: list[JSON] = [
    {"role": "developer", "content": "Be brief."},
    *(
        {"role": role, "content": f"{role} {number} " + "x" * 400}
        for number in range(8)
        for role in ("user", "assistant")
    ),
    {"role": "user", "content": "and now?"},
]


def heard(fake: FakeUpstream, model: str) -> list[list[str]]:
    """For each request, how each message begins."""
    return [
        [str(message["content"])[:9] for message in request.messages]
        for request in fake.requests_for(model)
    ]


async def test_the_oldest_turns_are_left_out_until_it_fits(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(OVERFLOW, OVERFLOW, reply("Fine."))
    response = await api.create(model, input=TURNS, truncation="auto", instructions="Speak Latin.")
    assert (response["output_text"], response["truncation"]) == ("Fine.", "auto")
    whole, shorter, shortest = heard(fake, model)
    assert len(whole) > len(shorter) > len(shortest)
    for told in (whole, shorter, shortest):
        assert told[:2] == ["Speak Lat", "Be brief."], "instructions are never left out"
        assert told[2].startswith("user"), "no answer without its question at the start"
        assert told[-1] == "and now?"
        assert told[2:] == whole[-len(told[2:]) :], "the oldest are gone, nothing else"


async def test_an_overflow_told_inside_a_stream_is_tried_again_too(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(
        [chunk({"error": {"message": "prompt is too long: 9 tokens > 8 maximum", "code": 400}})],
        reply("Fine."),
    )
    assert (await api.create(model, input=TURNS, truncation="auto"))["output_text"] == "Fine."
    assert len(fake.requests_for(model)) == 2


async def test_nothing_is_tried_again_once_the_model_has_spoken(
    api: Api, fake: FakeUpstream
) -> None:
    broken = [
        text("Half an ans"),
        chunk({"error": {"message": TOO_LONG, "type": "exceed_context_size_error"}}),
        drop(),
    ]
    model = fake.script(broken, reply("Fine."))
    response = await api.wait_for_end(
        await api.create_background(model, input=TURNS, truncation="auto")
    )
    assert (response["status"], response["output_text"]) == ("failed", "Half an ans")
    assert len(fake.requests_for(model)) == 1


async def test_the_tries_are_bounded(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(OVERFLOW)
    answer = await api.call(
        "POST", "/responses", {"model": model, "input": TURNS, "truncation": "auto"}
    )
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    tried = heard(fake, model)
    assert 2 <= len(tried) <= 6
    assert tried[-1] == ["Be brief.", "and now?"]


async def test_a_single_question_that_is_too_long_is_asked_once(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(OVERFLOW)
    answer = await api.call(
        "POST", "/responses", {"model": model, "input": "Hello.", "truncation": "auto"}
    )
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert len(fake.requests_for(model)) == 1


async def test_calls_and_their_outputs_go_together(api: Api, fake: FakeUpstream) -> None:
    """In a chain, where a call and its output belong to different responses."""
    tools = [
        {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    ]
    looks: Script = [call(0, "call_a", "look", "{}"), finish("tool_calls"), usage(), done()]
    first = await api.create(fake.script(looks), input="x" * 400, tools=tools)
    output = {"type": "function_call_output", "call_id": "call_a", "output": "y" * 400}
    second = await api.create(
        fake.script(reply("I see.")), input=[output], previous_response_id=first["id"], tools=tools
    )
    model = fake.script(OVERFLOW, OVERFLOW, OVERFLOW, reply("Fine."))
    third = await api.create(
        model, input="and now?", previous_response_id=second["id"], tools=tools, truncation="auto"
    )
    assert third["status"] == "completed"
    for request in fake.requests_for(model):
        calls = [one["id"] for message in request.messages for one in message.get("tool_calls", ())]
        assert calls == [
            message["tool_call_id"] for message in request.messages if message["role"] == "tool"
        ]


@pytest.mark.parametrize("given", [{}, {"truncation": "disabled"}], ids=["default", "disabled"])
async def test_disabled_is_a_400_in_the_foreground_and_failed_in_the_background(
    api: Api, fake: FakeUpstream, given: JSON
) -> None:
    model = fake.script(OVERFLOW)
    answer = await api.call("POST", "/responses", {"model": model, "input": TURNS, **given})
    assert answer.status == 400
    assert (answer.error["type"], answer.error["code"], answer.error["param"]) == (
        "invalid_request_error",
        "context_length_exceeded",
        "input",
    )
    assert TOO_LONG in answer.error["message"]
    assert answer.headers["x-should-retry"] == "false"
    response = await api.wait_for_end(await api.create_background(model, input=TURNS, **given))
    assert (response["status"], response["error"]["code"], response["output"]) == (
        "failed",
        "invalid_prompt",
        [],
    )
    assert TOO_LONG in response["error"]["message"]
    assert len(fake.requests_for(model)) == 2
