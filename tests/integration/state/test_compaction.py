"""Compaction over HTTP: asked for, above a threshold, after an overflow; and what the model is told when it comes back."""

import json
from typing import Any

import openai
import pytest

from models import keys
from models.wire.compaction import PREAMBLE
from tests.support.api import JSON, Api
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    UpstreamRequest,
    call,
    done,
    finish,
    hang,
    reply,
    status,
    text,
    usage,
)
from tests.support.stack import Stack
from tests.support.strict_types import check_event, check_item, check_response

OVERFLOW: Script = [
    status(
        400,
        {
            "error": {
                "message": "prompt is too long: 9 tokens > 8 maximum",
                "type": "invalid_request_error",
            }
        },
    )
]
TRIGGER: JSON = {"type": "compaction_trigger"}
MANAGED: JSON = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
LONG = "x" * 4000
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]


def said(role: str, words: str) -> JSON:
    return {"role": role, "content": words}


TALK = [
    said("developer", "Be brief."), said("user", "My cat is called Momo."), said("assistant", f"Noted. {LONG}"), said("user", "And my dog?"),
]  # fmt: skip


@pytest.fixture
def api(tool_stack: Stack) -> Api:
    """Of a deployment with a key to seal with."""
    return tool_stack.api()


@pytest.fixture
def client(tool_stack: Stack) -> openai.AsyncOpenAI:
    return tool_stack.openai()


def told(request: UpstreamRequest) -> list[tuple[str, str]]:
    """Role and text of each message."""
    return [(message["role"], _plain(message.get("content"))) for message in request.messages]


def _plain(content: Any) -> str:
    return (
        "".join(part.get("text", "[image]") for part in content)
        if isinstance(content, list)
        else str(content or "")
    )


def kinds(response: JSON) -> list[str]:
    return [item["type"] for item in response["output"]]


async def compacted(
    api: Api, fake: FakeUpstream, summary: str = "The cat is Momo.", **body: Any
) -> JSON:
    answer = await api.call(
        "POST", "/responses/compact", {"model": fake.script(reply(summary)), "input": TALK, **body}
    )
    assert answer.status == 200, answer.raw
    return answer.body


# --- /v1/responses/compact ---


async def test_compact_keeps_the_users_words_and_seals_a_summary(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(
        [text("The cat ", "is Momo."), finish(), usage(prompt=40, completion=6), done()]
    )
    found = await client.responses.compact(
        model=model,
        input=TALK,  # type: ignore[arg-type]
        instructions="Answer in rhymes.",
    )
    assert (found.object, found.id[:5]) == ("response.compaction", "resp_")
    *users, item = [one.model_dump(exclude_none=True, warnings=False) for one in found.output]
    assert [(one["role"], one["content"][0]["text"]) for one in users] == [
        ("user", "My cat is called Momo."),
        ("user", "And my dog?"),
    ]
    check_item(item)
    assert "Momo" not in json.dumps(item)
    assert (found.usage.input_tokens, found.usage.output_tokens) == (40, 6)
    (request,) = fake.requests_for(model)
    (system, asked) = told(request)
    assert system[0] == "system"
    assert "Noted." in asked[1]
    assert "Answer in rhymes." in asked[1]
    assert "tools" not in request.body


async def test_what_compact_gave_is_the_history_of_the_next_turn(
    api: Api, fake: FakeUpstream
) -> None:
    found = await compacted(api, fake)
    model = fake.script(reply("Rex."))
    response = await api.create(
        model, input=[*found["output"], said("user", "Who barks?")], store=False
    )
    assert response["output_text"] == "Rex."
    assert told(fake.requests_for(model)[0]) == [
        ("system", "Be brief."),
        ("user", "My cat is called Momo."),
        ("user", f"{PREAMBLE}The cat is Momo."),
        ("user", "And my dog?"),
        ("user", "Who barks?"),
    ]


async def test_clients_may_drop_everything_before_the_newest_compaction(
    api: Api, fake: FakeUpstream
) -> None:
    found = await compacted(api, fake)
    whole, bare = fake.script(reply("a")), fake.script(reply("b"))
    await api.create(whole, input=[*TALK, *found["output"], said("user", "Who barks?")])
    await api.create(bare, input=[found["output"][-1], said("user", "Who barks?")])
    assert told(fake.requests_for(whole)[0]) == told(fake.requests_for(bare)[0])


async def test_instructions_that_a_client_sends_anew_take_the_place_of_those_in_the_compaction(
    api: Api, fake: FakeUpstream
) -> None:
    found = await compacted(api, fake)
    model = fake.script(reply("b"))
    await api.create(
        model,
        input=[said("developer", "Be long."), found["output"][-1], said("user", "Who barks?")],
    )
    assert [words for role, words in told(fake.requests_for(model)[0]) if role == "system"] == [
        "Be long."
    ]


async def test_compact_goes_on_from_a_stored_response(api: Api, fake: FakeUpstream) -> None:
    first = await api.create(fake.script(reply("Noted.")), input="My cat is called Momo.")
    model = fake.script(reply("Momo, a cat."))
    answer = await api.call(
        "POST", "/responses/compact", {"model": model, "previous_response_id": first["id"]}
    )
    assert answer.status == 200, answer.raw
    assert kinds(answer.body) == ["message", "compaction"]
    assert "My cat is called Momo." in told(fake.requests_for(model)[0])[1][1]
    assert "Noted." in told(fake.requests_for(model)[0])[1][1]


async def test_a_compaction_can_be_compacted_again(api: Api, fake: FakeUpstream) -> None:
    first = await compacted(api, fake)
    again = [first["output"][-1], said("user", "Who barks?"), said("assistant", "Rex barks.")]
    model = fake.script(reply("Momo and Rex."))
    answer = await api.call("POST", "/responses/compact", {"model": model, "input": again})
    asked = told(fake.requests_for(model)[0])[1][1]
    assert "The cat is Momo." in asked
    assert "Rex barks." in asked
    last = fake.script(reply("c"))
    await api.create(last, input=[answer.body["output"][-1], said("user", "Well?")])
    assert [words for _, words in told(fake.requests_for(last)[0])] == [
        "Be brief.", "My cat is called Momo.", "And my dog?", "Who barks?", f"{PREAMBLE}Momo and Rex.", "Well?",
    ]  # fmt: skip


async def test_a_history_too_long_for_the_model_is_summed_up_part_by_part(
    api: Api, fake: FakeUpstream
) -> None:
    talk = [
        said(role, f"{role} {number} {LONG}")
        for number in range(6)
        for role in ("user", "assistant")
    ]
    model = fake.script(
        OVERFLOW,
        OVERFLOW,
        reply("One."),
        reply("Two."),
        reply("Three."),
        reply("Four."),
        reply("Five."),
        reply("Six."),
    )
    answer = await api.call("POST", "/responses/compact", {"model": model, "input": talk})
    assert answer.status == 200, answer.raw
    heard = [told(request)[1][1] for request in fake.requests_for(model)]
    assert len(heard[0]) > len(heard[1]) > len(heard[2])
    for number, (before, part) in enumerate(
        zip(["", "One.", "Two.", "Three."], heard[2:], strict=False)
    ):
        assert (f"<summary_of_what_came_before>\n{before}" in part) == (number > 0)
    assert answer.body["usage"]["output_tokens"] == 7 * (len(heard) - 2)
    for number in range(6):
        assert any(f"assistant {number} " in part for part in heard[2:]), "nothing is left out"


async def test_a_compaction_that_never_fits_is_a_clear_refusal(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(OVERFLOW)
    answer = await api.call("POST", "/responses/compact", {"model": model, "input": TALK})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert len(fake.requests_for(model)) < 10


async def test_compact_fails_as_the_upstream_does(api: Api, fake: FakeUpstream) -> None:
    model = fake.script([status(429, headers={"retry-after": "7"})])
    answer = await api.call("POST", "/responses/compact", {"model": model, "input": TALK})
    assert (answer.status, answer.headers["retry-after"], answer.error["code"]) == (
        429,
        "7",
        "rate_limit_exceeded",
    )
    empty = await api.call(
        "POST", "/responses/compact", {"model": fake.script([finish(), done()]), "input": TALK}
    )
    assert empty.status == 502
    assert "summary" in empty.error["message"]


async def test_nothing_of_a_compact_can_be_fetched(api: Api, fake: FakeUpstream) -> None:
    found = await compacted(api, fake)
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        answer = await api.call(
            method, f"/responses/{found['id']}{path}", b"" if method == "POST" else None
        )
        assert answer.status == 404
    refused = await api.call(
        "POST", "/responses", {"model": "m", "input": "x", "previous_response_id": found["id"]}
    )
    assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")


# --- a compaction during a run ---


async def test_a_long_history_is_compacted_before_the_turn(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(
        [text("The cat is Momo."), finish(), usage(40, 6), done()],
        [text("Rex."), finish(), usage(20, 2), done()],
    )
    async with api.post_stream(model, input=TALK, **MANAGED) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    steps = [event["type"] for event in events if event.get("output_index") == 0]
    assert steps == [
        "response.output_item.added",
        "response.compaction.compacting",
        "response.output_item.done",
    ]
    compacting = next(
        event for event in events if event["type"] == "response.compaction.compacting"
    )
    response = stream.final
    check_response(response)
    assert kinds(response) == ["compaction", "message"]
    assert compacting["item_id"] == response["output"][0]["id"]
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (60, 8)
    assert [words for _, words in told(fake.requests_for(model)[1])] == [
        "Be brief.", "My cat is called Momo.", f"{PREAMBLE}The cat is Momo.", "And my dog?",
    ]  # fmt: skip


async def test_below_the_threshold_nothing_is_compacted(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("Rex."))
    edits = [{"type": "compaction", "compact_threshold": 50_000}]
    assert kinds(await api.create(model, input=TALK, context_management=edits)) == ["message"]
    assert kinds(await api.create(model, input=f"What? {LONG}", **MANAGED)) == ["message"], (
        "a question alone cannot be shortened"
    )
    assert len(fake.requests_for(model)) == 2


async def test_a_chain_goes_on_from_its_compaction(api: Api, fake: FakeUpstream) -> None:
    first = await api.create(fake.script(reply(f"Noted. {LONG}")), input="My cat is called Momo.")
    model = fake.script(reply("The cat is Momo."), reply("Rex."))
    second = await api.create(
        model, input="And my dog?", previous_response_id=first["id"], **MANAGED
    )
    assert kinds(second) == ["compaction", "message"]
    third = fake.script(reply("Yes."))
    response = await api.create(third, input="Sure?", previous_response_id=second["id"], **MANAGED)
    assert kinds(response) == ["message"]
    expected = [
        "My cat is called Momo.",
        f"{PREAMBLE}The cat is Momo.",
        "And my dog?",
        "Rex.",
        "Sure?",
    ]
    assert [words for _, words in told(fake.requests_for(third)[0])] == expected
    page = (await api.call("GET", f"/responses/{second['id']}/input_items")).body
    assert [item["type"] for item in page["data"]] == ["message"]


async def test_a_loop_of_tools_is_compacted_between_its_turns(api: Api, fake: FakeUpstream) -> None:
    """By the upstream's own count, and what the client's tool gave."""
    looks: Script = [call(0, "call_a", "look", "{}"), finish("tool_calls"), usage(300, 5), done()]
    first = await api.create(fake.script(looks), input="Look.", tools=TOOLS)
    model = fake.script(reply("Nothing there."), reply("I saw nothing."))
    answered = [{"type": "function_call_output", "call_id": "call_a", "output": LONG}]
    second = await api.create(
        model, input=answered, previous_response_id=first["id"], tools=TOOLS, **MANAGED
    )
    assert (kinds(second), second["output_text"]) == (["compaction", "message"], "I saw nothing.")
    summed_up, turn = fake.requests_for(model)
    assert '"name":"look"' in told(summed_up)[1][1]
    assert told(turn) == [("user", "Look."), ("user", f"{PREAMBLE}Nothing there.")]
    assert turn.body["tools"], "the tools are still offered"


async def test_an_overflow_is_answered_with_a_compaction_where_that_is_wanted(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(OVERFLOW, reply("The cat is Momo."), reply("Rex."))
    edits = [{"type": "compaction"}]
    response = await api.create(model, input=TALK, context_management=edits, truncation="auto")
    assert (kinds(response), response["output_text"]) == (["compaction", "message"], "Rex.")


async def test_a_trigger_asks_for_a_compaction_and_nothing_else(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("The cat is Momo."))
    async with api.post_stream(model, input=[*TALK, TRIGGER], store=False, tools=TOOLS) as stream:
        assert_stream_obeys_contract(await stream.to_end())
    assert (stream.final["status"], kinds(stream.final)) == ("completed", ["compaction"])
    assert len(fake.requests_for(model)) == 1
    following = fake.script(reply("Rex."))
    await api.create(following, input=[*stream.final["output"], said("user", "Well?")])
    assert [words for _, words in told(fake.requests_for(following)[0])][-2:] == [
        "And my dog?",
        "Well?",
    ]


async def test_images_are_kept_where_they_were_not_answered_yet(
    api: Api, fake: FakeUpstream
) -> None:
    def shown(url: str) -> JSON:
        return {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "See?"},
                {"type": "input_image", "image_url": url},
            ],
        }

    talk = [
        shown("data:image/png;base64,AAAA"),
        said("assistant", "I do."),
        shown("data:image/png;base64,BBBB"),
    ]
    found = await compacted(api, fake, input=talk)
    model = fake.script(reply("Yes."))
    await api.create(model, input=[found["output"][-1]])
    sent = json.dumps(fake.requests_for(model)[0].messages)
    assert "BBBB" in sent
    assert "AAAA" not in sent
    assert "[an image]" in sent


async def test_a_cancelled_compaction_leaves_no_item_behind(api: Api, fake: FakeUpstream) -> None:
    model = fake.script([text("The"), hang()])
    name = await api.create_background(model, input=TALK, **MANAGED)
    async with api.follow(name) as stream:
        await stream.until("response.compaction.compacting")
        assert kinds(await api.get(name)) == ["compaction"]
        await api.cancel(name)
        assert_stream_obeys_contract(await stream.to_end())
    assert (stream.final["status"], stream.final["output"]) == ("cancelled", [])
    assert await api.get(name) == stream.final


# --- what is refused ---


async def test_what_is_not_ours_is_refused(api: Api, tool_stack: Stack, fake: FakeUpstream) -> None:
    item = (await compacted(api, fake))["output"][-1]
    sealed = item["encrypted_content"]
    stranger = tool_stack.api(key=keys.create(tool_stack.dsn, "strangers"))
    changed = sealed[:-9] + ("A" if sealed[-9] != "A" else "B") + sealed[-8:]
    foreign = "gAAAAABm" + "x" * 80
    thought = "bbs1." + "0" * 16 + ".AAAA"
    cases = [(api, changed), (api, foreign), (api, thought), (api, "?"), (stranger, sealed)]
    for speaker, content in cases:
        body = {
            "model": "m",
            "input": [
                said("user", "Hi."),
                {"type": "compaction", "encrypted_content": content},
                said("user", "Well?"),
            ],
        }
        for path in ("/responses", "/responses/compact"):
            answer = await speaker.call("POST", path, body)
            assert (answer.status, answer.error["param"]) == (400, "input[1].encrypted_content")
            assert (answer.error["type"], answer.error["code"]) == (
                "invalid_request_error",
                "invalid_encrypted_content",
            )
            assert content not in answer.error["message"]


async def test_a_conversation_holds_compactions_that_are_ours(api: Api, fake: FakeUpstream) -> None:
    item = (await compacted(api, fake))["output"][-1]
    made = await api.call("POST", "/conversations", {"items": [item, said("user", "Well?")]})
    assert made.status == 200, made.raw
    model = fake.script(reply("Rex."))
    await api.create(model, input="And?", conversation=made.body["id"])
    assert [words for _, words in told(fake.requests_for(model)[0])][-3:] == [
        "And my dog?",
        "Well?",
        "And?",
    ]
    for wrong, param in (
        ({"type": "compaction", "encrypted_content": "x"}, "items[0].encrypted_content"),
        (TRIGGER, "items[0]"),
    ):
        refused = await api.call(
            "POST", f"/conversations/{made.body['id']}/items", {"items": [wrong]}
        )
        assert (refused.status, refused.error["param"]) == (400, param)


async def test_without_a_sealing_key_compaction_is_refused(shared_stack: Stack) -> None:
    keyless = shared_stack.api()
    refused = [
        ("/responses", {"input": "Hi.", **MANAGED}, "context_management"),
        ("/responses", {"input": [said("user", "Hi."), TRIGGER]}, "input[1]"),
        ("/responses/compact", {"input": [said("user", "Hi.")]}, "input[1]"),
    ]
    for path, body, param in refused:
        answer = await keyless.call("POST", path, {"model": "m", **body})
        assert (answer.status, answer.error["param"], answer.error["code"]) == (
            400,
            param,
            "unsupported_parameter",
        )
        assert "no key" in answer.error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        pytest.param("/responses", {"input": [TRIGGER, said("user", "Hi.")]}, "input[0]", "invalid_value", id="a trigger that is not last"),
        pytest.param("/responses", {"input": [TRIGGER]}, "input", "invalid_value", id="a trigger alone"),
        pytest.param("/responses", {"input": "Hi.", "context_management": []}, "context_management", "empty_array", id="no entry"),
        pytest.param("/responses", {"input": "Hi.", "context_management": [{"type": "compaction", "compact_threshold": 999}]},
                     "context_management[0].compact_threshold", "integer_below_min_value", id="a low threshold"),
        pytest.param("/responses", {"input": "Hi.", "context_management": [{"type": "clear"}]}, "context_management[0].type", "invalid_value", id="another edit"),
        pytest.param("/responses/compact", {}, "input", "missing_required_parameter", id="nothing to compact"),
        pytest.param("/responses/compact", {"input": []}, "input", "invalid_value", id="an empty list"),
        pytest.param("/responses/compact", {"input": 7}, "input", "invalid_type", id="a number"),
        pytest.param("/responses/compact", {"input": "Hi.", "stream": True}, "stream", "unknown_parameter", id="a stream"),
        pytest.param("/responses/compact", {"input": "Hi.", "model": None}, "model", "missing_required_parameter", id="no model"),
        pytest.param("/responses/compact", {"previous_response_id": "resp_x"}, "previous_response_id", "previous_response_not_found", id="unknown"),
    ],
)  # fmt: skip
async def test_requests_that_make_no_sense_are_refused(
    api: Api, path: str, body: JSON, param: str, code: str
) -> None:
    answer = await api.call("POST", path, {"model": "m", **body})
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, param, code), (
        answer.raw
    )
