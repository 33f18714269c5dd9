"""`truncation`: what happens when the upstream refuses a history as too long."""

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


def sent_contents(fake: FakeUpstream, model: str) -> list[list[str]]:
    """For each request, the first characters of each message."""
    return [
        [str(message["content"])[:9] for message in request.messages]
        for request in fake.requests_for(model)
    ]


async def test_the_oldest_turns_are_left_out_until_the_history_fits(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(OVERFLOW, OVERFLOW, reply("Fine."))
    response = await api.create(model, input=TURNS, truncation="auto", instructions="Speak Latin.")
    assert (response["output_text"], response["truncation"]) == ("Fine.", "auto")
    complete, shorter, shortest = sent_contents(fake, model)
    assert len(complete) > len(shorter) > len(shortest)
    for sent in (complete, shorter, shortest):
        assert sent[:2] == ["Speak Lat", "Be brief."], "instructions are never left out"
        assert sent[2].startswith("user"), "the rest starts with a question"
        assert sent[-1] == "and now?"
        assert sent[2:] == complete[-len(sent[2:]) :], "only the oldest messages are left out"


async def test_an_overflow_inside_a_stream_is_retried(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(
        [chunk({"error": {"message": "prompt is too long: 9 tokens > 8 maximum", "code": 400}})],
        reply("Fine."),
    )
    assert (await api.create(model, input=TURNS, truncation="auto"))["output_text"] == "Fine."
    assert len(fake.requests_for(model)) == 2


async def test_an_overflow_after_the_first_token_is_not_retried(
    api: Api, fake: FakeUpstream
) -> None:
    broken_turn = [
        text("Half an ans"),
        chunk({"error": {"message": TOO_LONG, "type": "exceed_context_size_error"}}),
        drop(),
    ]
    model = fake.script(broken_turn, reply("Fine."))
    response = await api.wait_for_end(
        await api.create_background(model, input=TURNS, truncation="auto")
    )
    assert (response["status"], response["output_text"]) == ("failed", "Half an ans")
    assert len(fake.requests_for(model)) == 1


async def test_the_number_of_retries_is_limited(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(OVERFLOW)
    answer = await api.call(
        "POST", "/responses", {"model": model, "input": TURNS, "truncation": "auto"}
    )
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    attempts = sent_contents(fake, model)
    assert 2 <= len(attempts) <= 6
    assert attempts[-1] == ["Be brief.", "and now?"]


async def test_a_single_message_that_is_too_long_is_not_retried(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(OVERFLOW)
    answer = await api.call(
        "POST", "/responses", {"model": model, "input": "Hello.", "truncation": "auto"}
    )
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert len(fake.requests_for(model)) == 1


async def test_a_call_and_its_output_are_left_out_together(api: Api, fake: FakeUpstream) -> None:
    """Also in a chain, where a call and its output belong to different responses."""
    tools = [
        {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    ]
    call_turn: Script = [call(0, "call_a", "look", "{}"), finish("tool_calls"), usage(), done()]
    first = await api.create(fake.script(call_turn), input="x" * 400, tools=tools)
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
        calls = [
            entry["id"] for message in request.messages for entry in message.get("tool_calls", ())
        ]
        assert calls == [
            message["tool_call_id"] for message in request.messages if message["role"] == "tool"
        ]


@pytest.mark.parametrize(
    "parameters", [{}, {"truncation": "disabled"}], ids=["default", "disabled"]
)
async def test_disabled_is_a_400_in_the_foreground_and_failed_in_the_background(
    api: Api, fake: FakeUpstream, parameters: JSON
) -> None:
    model = fake.script(OVERFLOW)
    answer = await api.call("POST", "/responses", {"model": model, "input": TURNS, **parameters})
    assert answer.status == 400
    assert (answer.error["type"], answer.error["code"], answer.error["param"]) == (
        "invalid_request_error",
        "context_length_exceeded",
        "input",
    )
    assert TOO_LONG in answer.error["message"]
    assert answer.headers["x-should-retry"] == "false"
    response = await api.wait_for_end(await api.create_background(model, input=TURNS, **parameters))
    assert (response["status"], response["error"]["code"], response["output"]) == (
        "failed",
        "context_length_exceeded",
        [],
    )
    assert TOO_LONG in response["error"]["message"]
    assert len(fake.requests_for(model)) == 2
