"""Compaction over HTTP: on request, above a threshold, after an overflow, and its later use."""

import asyncio
import json
import secrets
from typing import Any

import openai
import pytest

from models.wire.compaction import PREAMBLE
from tests.conftest import PrivateStack
from tests.support import keys
from tests.support.api import JSON, Api, until
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
from tests.support.tool_turns import TOOL_SETTINGS

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
CONTEXT_MANAGEMENT: JSON = {
    "context_management": [{"type": "compaction", "compact_threshold": 1000}]
}
LONG_TEXT = "x" * 4000
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]


def message(role: str, content: str) -> JSON:
    return {"role": role, "content": content}


HISTORY = [
    message("developer", "Be brief."),
    message("user", "My cat is called Momo."),
    message("assistant", f"Noted. {LONG_TEXT}"),
    message("user", "And my dog?"),
]


@pytest.fixture
def api(tool_stack: Stack) -> Api:
    """A client of a deployment with a secret key."""
    return tool_stack.api()


@pytest.fixture
def client(tool_stack: Stack) -> openai.AsyncOpenAI:
    return tool_stack.openai()


def roles_and_texts(request: UpstreamRequest) -> list[tuple[str, str]]:
    """Role and text of each message."""
    return [(message["role"], _plain(message.get("content"))) for message in request.messages]


def _plain(content: Any) -> str:
    return (
        "".join(part.get("text", "[image]") for part in content)
        if isinstance(content, list)
        else str(content or "")
    )


def item_types(response: JSON) -> list[str]:
    return [item["type"] for item in response["output"]]


async def compact(
    api: Api, fake: FakeUpstream, summary: str = "The cat is Momo.", **body: Any
) -> JSON:
    answer = await api.call(
        "POST",
        "/responses/compact",
        {"model": fake.script(reply(summary)), "input": HISTORY, **body},
    )
    assert answer.status == 200, answer.raw
    return answer.body


# --- /v1/responses/compact ---


async def test_compact_keeps_the_users_messages_and_seals_a_summary(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(
        [text("The cat ", "is Momo."), finish(), usage(prompt=40, completion=6), done()]
    )
    compaction = await client.responses.compact(
        model=model,
        input=HISTORY,  # type: ignore[arg-type]
        instructions="Answer in rhymes.",
    )
    assert (compaction.object, compaction.id[:5]) == ("response.compaction", "resp_")
    *users, compaction_item = [
        entry.model_dump(exclude_none=True, warnings=False) for entry in compaction.output
    ]
    assert [(entry["role"], entry["content"][0]["text"]) for entry in users] == [
        ("user", "My cat is called Momo."),
        ("user", "And my dog?"),
    ]
    check_item(compaction_item)
    assert "Momo" not in json.dumps(compaction_item)
    assert (compaction.usage.input_tokens, compaction.usage.output_tokens) == (40, 6)
    (request,) = fake.requests_for(model)
    (system, prompt) = roles_and_texts(request)
    assert system[0] == "system"
    assert "Noted." in prompt[1]
    assert "Answer in rhymes." in prompt[1]
    assert "tools" not in request.body


async def test_the_output_of_compact_is_the_history_of_the_next_turn(
    api: Api, fake: FakeUpstream
) -> None:
    compaction = await compact(api, fake)
    model = fake.script(reply("Rex."))
    response = await api.create(
        model, input=[*compaction["output"], message("user", "Who barks?")], store=False
    )
    assert response["output_text"] == "Rex."
    assert roles_and_texts(fake.requests_for(model)[0]) == [
        ("system", "Be brief."),
        ("user", "My cat is called Momo."),
        ("user", f"{PREAMBLE}The cat is Momo."),
        ("user", "And my dog?"),
        ("user", "Who barks?"),
    ]


async def test_clients_may_drop_everything_before_the_newest_compaction(
    api: Api, fake: FakeUpstream
) -> None:
    compaction = await compact(api, fake)
    unshortened, shortened = fake.script(reply("a")), fake.script(reply("b"))
    await api.create(
        unshortened, input=[*HISTORY, *compaction["output"], message("user", "Who barks?")]
    )
    await api.create(shortened, input=[compaction["output"][-1], message("user", "Who barks?")])
    assert roles_and_texts(fake.requests_for(unshortened)[0]) == roles_and_texts(
        fake.requests_for(shortened)[0]
    )


async def test_new_instructions_of_a_client_replace_those_in_the_compaction(
    api: Api, fake: FakeUpstream
) -> None:
    compaction = await compact(api, fake)
    model = fake.script(reply("b"))
    await api.create(
        model,
        input=[
            message("developer", "Be long."),
            compaction["output"][-1],
            message("user", "Who barks?"),
        ],
    )
    assert [
        content
        for role, content in roles_and_texts(fake.requests_for(model)[0])
        if role == "system"
    ] == ["Be long."]


async def test_compact_continues_a_stored_response(api: Api, fake: FakeUpstream) -> None:
    first = await api.create(fake.script(reply("Noted.")), input="My cat is called Momo.")
    model = fake.script(reply("Momo, a cat."))
    answer = await api.call(
        "POST", "/responses/compact", {"model": model, "previous_response_id": first["id"]}
    )
    assert answer.status == 200, answer.raw
    assert item_types(answer.body) == ["message", "compaction"]
    assert "My cat is called Momo." in roles_and_texts(fake.requests_for(model)[0])[1][1]
    assert "Noted." in roles_and_texts(fake.requests_for(model)[0])[1][1]


async def test_a_compaction_can_be_compacted_again(api: Api, fake: FakeUpstream) -> None:
    first = await compact(api, fake)
    items = [first["output"][-1], message("user", "Who barks?"), message("assistant", "Rex barks.")]
    model = fake.script(reply("Momo and Rex."))
    body = {"model": model, "input": items, "prompt_cache_options": {"mode": "explicit"}}
    answer = await api.call("POST", "/responses/compact", body)
    assert answer.headers["x-ignored-parameters"] == "prompt_cache_options"
    prompt = roles_and_texts(fake.requests_for(model)[0])[1][1]
    assert "The cat is Momo." in prompt
    assert "Rex barks." in prompt
    last = fake.script(reply("c"))
    await api.create(last, input=[answer.body["output"][-1], message("user", "Well?")])
    assert [content for _, content in roles_and_texts(fake.requests_for(last)[0])] == [
        "Be brief.",
        "My cat is called Momo.",
        "And my dog?",
        "Who barks?",
        f"{PREAMBLE}Momo and Rex.",
        "Well?",
    ]


async def test_a_history_too_long_for_the_model_is_summarised_part_by_part(
    api: Api, fake: FakeUpstream
) -> None:
    history = [
        message(role, f"{role} {number} {LONG_TEXT}")
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
    answer = await api.call("POST", "/responses/compact", {"model": model, "input": history})
    assert answer.status == 200, answer.raw
    prompts = [roles_and_texts(request)[1][1] for request in fake.requests_for(model)]
    assert len(prompts[0]) > len(prompts[1]) > len(prompts[2])
    for number, (summary, prompt) in enumerate(
        zip(["", "One.", "Two.", "Three."], prompts[2:], strict=False)
    ):
        assert (f"<summary_of_what_came_before>\n{summary}" in prompt) == (number > 0)
    assert answer.body["usage"]["output_tokens"] == 7 * (len(prompts) - 2)
    for number in range(6):
        assert any(f"assistant {number} " in prompt for prompt in prompts[2:]), (
            "a part was left out"
        )


async def test_a_compaction_that_never_fits_is_refused_with_the_overflow_error(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(OVERFLOW)
    answer = await api.call("POST", "/responses/compact", {"model": model, "input": HISTORY})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert len(fake.requests_for(model)) < 10


async def test_compact_fails_as_the_upstream_does(api: Api, fake: FakeUpstream) -> None:
    model = fake.script([status(429, headers={"retry-after": "7"})])
    answer = await api.call("POST", "/responses/compact", {"model": model, "input": HISTORY})
    assert (answer.status, answer.headers["retry-after"], answer.error["code"]) == (
        429,
        "7",
        "rate_limit_exceeded",
    )
    empty = await api.call(
        "POST", "/responses/compact", {"model": fake.script([finish(), done()]), "input": HISTORY}
    )
    assert empty.status == 502
    assert "summary" in empty.error["message"]


async def test_a_compaction_that_was_cancelled_elsewhere_may_be_sent_again(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([hang()])
    body = {"model": model, "input": HISTORY}
    answer = asyncio.create_task(tool_stack.api().call("POST", "/responses/compact", body))
    await until(lambda: fake.requests_for(model))
    cancel = "UPDATE responses SET cancel_requested_at = now() WHERE model = %s RETURNING true"
    assert await tool_stack.value(cancel, model)
    refused = await answer
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "cancelled" in refused.error["message"]


async def test_a_compaction_is_not_stored_as_a_response(api: Api, fake: FakeUpstream) -> None:
    compaction = await compact(api, fake)
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        answer = await api.call(
            method, f"/responses/{compaction['id']}{path}", b"" if method == "POST" else None
        )
        assert answer.status == 404
    refused = await api.call(
        "POST", "/responses", {"model": "m", "input": "x", "previous_response_id": compaction["id"]}
    )
    assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")


# --- a compaction during a run ---


async def test_a_long_history_is_compacted_before_the_turn(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(
        [text("The cat is Momo."), finish(), usage(40, 6), done()],
        [text("Rex."), finish(), usage(20, 2), done()],
    )
    async with api.post_stream(model, input=HISTORY, **CONTEXT_MANAGEMENT) as stream:
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
    assert item_types(response) == ["compaction", "message"]
    assert compacting["item_id"] == response["output"][0]["id"]
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (60, 8)
    assert [content for _, content in roles_and_texts(fake.requests_for(model)[1])] == [
        "Be brief.",
        "My cat is called Momo.",
        f"{PREAMBLE}The cat is Momo.",
        "And my dog?",
    ]


async def test_below_the_threshold_nothing_is_compacted(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("Rex."))
    edits = [{"type": "compaction", "compact_threshold": 50_000}]
    assert item_types(await api.create(model, input=HISTORY, context_management=edits)) == [
        "message"
    ]
    assert item_types(
        await api.create(model, input=f"What? {LONG_TEXT}", **CONTEXT_MANAGEMENT)
    ) == ["message"], "a question alone cannot be shortened"
    assert len(fake.requests_for(model)) == 2


async def test_a_chain_continues_from_its_compaction(api: Api, fake: FakeUpstream) -> None:
    first = await api.create(
        fake.script(reply(f"Noted. {LONG_TEXT}")), input="My cat is called Momo."
    )
    model = fake.script(reply("The cat is Momo."), reply("Rex."))
    second = await api.create(
        model, input="And my dog?", previous_response_id=first["id"], **CONTEXT_MANAGEMENT
    )
    assert item_types(second) == ["compaction", "message"]
    third = fake.script(reply("Yes."))
    response = await api.create(
        third, input="Sure?", previous_response_id=second["id"], **CONTEXT_MANAGEMENT
    )
    assert item_types(response) == ["message"]
    expected = [
        "My cat is called Momo.",
        f"{PREAMBLE}The cat is Momo.",
        "And my dog?",
        "Rex.",
        "Sure?",
    ]
    assert [content for _, content in roles_and_texts(fake.requests_for(third)[0])] == expected
    page = (await api.call("GET", f"/responses/{second['id']}/input_items")).body
    assert [item["type"] for item in page["data"]] == ["message"]


async def test_a_tool_loop_is_compacted_between_its_turns(api: Api, fake: FakeUpstream) -> None:
    """By the upstream's count of the history and by the size of the client tool's output."""
    call_turn: Script = [
        call(0, "call_a", "look", "{}"),
        finish("tool_calls"),
        usage(300, 5),
        done(),
    ]
    first = await api.create(fake.script(call_turn), input="Look.", tools=TOOLS)
    model = fake.script(reply("Nothing there."), reply("I saw nothing."))
    outputs = [{"type": "function_call_output", "call_id": "call_a", "output": LONG_TEXT}]
    second = await api.create(
        model, input=outputs, previous_response_id=first["id"], tools=TOOLS, **CONTEXT_MANAGEMENT
    )
    assert (item_types(second), second["output_text"]) == (
        ["compaction", "message"],
        "I saw nothing.",
    )
    summary_request, turn = fake.requests_for(model)
    assert '"name":"look"' in roles_and_texts(summary_request)[1][1]
    assert roles_and_texts(turn) == [("user", "Look."), ("user", f"{PREAMBLE}Nothing there.")]
    assert turn.body["tools"], "the tools are still sent"


async def test_an_overflow_starts_a_compaction_if_the_request_allows_it(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(OVERFLOW, reply("The cat is Momo."), reply("Rex."))
    edits = [{"type": "compaction"}]
    response = await api.create(model, input=HISTORY, context_management=edits, truncation="auto")
    assert (item_types(response), response["output_text"]) == (["compaction", "message"], "Rex.")


async def test_a_compaction_trigger_runs_a_compaction_and_no_turn(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("The cat is Momo."))
    async with api.post_stream(
        model, input=[*HISTORY, TRIGGER], store=False, tools=TOOLS
    ) as stream:
        assert_stream_obeys_contract(await stream.to_end())
    assert (stream.final["status"], item_types(stream.final)) == ("completed", ["compaction"])
    assert len(fake.requests_for(model)) == 1
    following = fake.script(reply("Rex."))
    await api.create(following, input=[*stream.final["output"], message("user", "Well?")])
    assert [content for _, content in roles_and_texts(fake.requests_for(following)[0])][-2:] == [
        "And my dog?",
        "Well?",
    ]


async def test_images_without_an_answer_are_kept_in_a_compaction(
    api: Api, fake: FakeUpstream
) -> None:
    def image_message(url: str) -> JSON:
        return {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "See?"},
                {"type": "input_image", "image_url": url},
            ],
        }

    history = [
        image_message("data:image/png;base64,AAAA"),
        message("assistant", "I do."),
        image_message("data:image/png;base64,BBBB"),
    ]
    compaction = await compact(api, fake, input=history)
    model = fake.script(reply("Yes."))
    await api.create(model, input=[compaction["output"][-1]])
    sent = json.dumps(fake.requests_for(model)[0].messages)
    assert "BBBB" in sent
    assert "AAAA" not in sent
    assert "[an image]" in sent


async def test_a_cancelled_compaction_leaves_no_item_behind(api: Api, fake: FakeUpstream) -> None:
    model = fake.script([text("The"), hang()])
    response_id = await api.create_background(model, input=HISTORY, **CONTEXT_MANAGEMENT)
    async with api.follow(response_id) as stream:
        await stream.until("response.compaction.compacting")
        assert item_types(await api.get(response_id)) == ["compaction"]
        await api.cancel(response_id)
        assert_stream_obeys_contract(await stream.to_end())
    assert (stream.final["status"], stream.final["output"]) == ("cancelled", [])
    assert await api.get(response_id) == stream.final


# --- refusals ---


async def test_a_changed_or_foreign_compaction_is_refused(
    api: Api, tool_stack: Stack, fake: FakeUpstream
) -> None:
    item = (await compact(api, fake))["output"][-1]
    sealed = item["encrypted_content"]
    other_project_api = tool_stack.api(key=keys.create(tool_stack.dsn, "other project"))
    changed = sealed[:-9] + ("A" if sealed[-9] != "A" else "B") + sealed[-8:]
    foreign = "gAAAAABm" + "x" * 80
    sealed_reasoning = "bbs1." + "0" * 16 + ".AAAA"
    cases = [
        (api, changed),
        (api, foreign),
        (api, sealed_reasoning),
        (api, "?"),
        (other_project_api, sealed),
    ]
    for client, content in cases:
        body = {
            "model": "m",
            "input": [
                message("user", "Hi."),
                {"type": "compaction", "encrypted_content": content},
                message("user", "Well?"),
            ],
        }
        for path in ("/responses", "/responses/compact"):
            answer = await client.call("POST", path, body)
            assert (answer.status, answer.error["param"]) == (400, "input[1].encrypted_content")
            assert (answer.error["type"], answer.error["code"]) == (
                "invalid_request_error",
                "invalid_encrypted_content",
            )
            assert content not in answer.error["message"]


async def test_a_conversation_accepts_compactions_of_its_project_only(
    api: Api, fake: FakeUpstream
) -> None:
    item = (await compact(api, fake))["output"][-1]
    created = await api.call("POST", "/conversations", {"items": [item, message("user", "Well?")]})
    assert created.status == 200, created.raw
    model = fake.script(reply("Rex."))
    await api.create(model, input="And?", conversation=created.body["id"])
    assert [content for _, content in roles_and_texts(fake.requests_for(model)[0])][-3:] == [
        "And my dog?",
        "Well?",
        "And?",
    ]
    for invalid, param in (
        ({"type": "compaction", "encrypted_content": "x"}, "items[0].encrypted_content"),
        (TRIGGER, "items[0]"),
    ):
        refused = await api.call(
            "POST", f"/conversations/{created.body['id']}/items", {"items": [invalid]}
        )
        assert (refused.status, refused.error["param"]) == (400, param)


@pytest.mark.parametrize(
    "continued", ["previous_response_id", pytest.param("conversation", marks=pytest.mark.long)]
)
async def test_an_unreadable_compaction_names_the_parameter_that_continues_it(
    private_stack: PrivateStack, fake: FakeUpstream, continued: str
) -> None:
    async with private_stack(settings=TOOL_SETTINGS) as own_stack:
        api = own_stack.api()
        items = (await compact(api, fake))["output"]
        if continued == "conversation":
            conversation = (await api.call("POST", "/conversations", {"items": items})).body
            place = {"conversation": conversation["id"]}
        else:
            first = await api.create(fake.script(reply("x")), input=items)
            place = {"previous_response_id": first["id"]}
        await own_stack.stop(own_stack.workers[0])
        new_key = {"BACKBURNER_SECRET_KEYS": secrets.token_urlsafe(32)}
        own_stack.settings = {**own_stack.settings, **new_key}
        await own_stack.start_worker()
        body = {"model": fake.script(reply("never")), "input": "Who barks?", **place}
        refused = await api.call("POST", "/responses", body)
        assert (refused.status, refused.error["param"], refused.error["code"]) == (
            400,
            continued,
            "invalid_encrypted_content",
        )


async def test_without_a_sealing_key_compaction_is_refused(shared_stack: Stack) -> None:
    api_without_key = shared_stack.api()
    cases = [
        ("/responses", {"input": "Hi.", **CONTEXT_MANAGEMENT}, "context_management"),
        ("/responses", {"input": [message("user", "Hi."), TRIGGER]}, "input[1]"),
        ("/responses/compact", {"input": [message("user", "Hi.")]}, "input[1]"),
    ]
    for path, body, param in cases:
        answer = await api_without_key.call("POST", path, {"model": "m", **body})
        assert (answer.status, answer.error["param"], answer.error["code"]) == (
            400,
            param,
            "unsupported_parameter",
        )
        assert "no sealing key" in answer.error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        pytest.param(
            "/responses",
            {"input": [TRIGGER, message("user", "Hi.")]},
            "input[0]",
            "invalid_value",
            id="a trigger that is not last",
        ),
        pytest.param(
            "/responses", {"input": [TRIGGER]}, "input", "invalid_value", id="a trigger alone"
        ),
        pytest.param(
            "/responses",
            {"input": "Hi.", "context_management": []},
            "context_management",
            "empty_array",
            id="no entry",
        ),
        pytest.param(
            "/responses",
            {
                "input": "Hi.",
                "context_management": [{"type": "compaction", "compact_threshold": 999}],
            },
            "context_management[0].compact_threshold",
            "integer_below_min_value",
            id="a low threshold",
        ),
        pytest.param(
            "/responses",
            {"input": "Hi.", "context_management": [{"type": "clear"}]},
            "context_management[0].type",
            "invalid_value",
            id="another edit",
        ),
        pytest.param(
            "/responses/compact", {}, "input", "missing_required_parameter", id="nothing to compact"
        ),
        pytest.param(
            "/responses/compact", {"input": []}, "input", "invalid_value", id="an empty list"
        ),
        pytest.param("/responses/compact", {"input": 7}, "input", "invalid_type", id="a number"),
        pytest.param(
            "/responses/compact",
            {"input": "Hi.", "stream": True},
            "stream",
            "unknown_parameter",
            id="a stream",
        ),
        pytest.param(
            "/responses/compact",
            {"input": "Hi.", "model": None},
            "model",
            "missing_required_parameter",
            id="no model",
        ),
        pytest.param(
            "/responses/compact",
            {"previous_response_id": "resp_x"},
            "previous_response_id",
            "previous_response_not_found",
            id="unknown",
        ),
    ],
)
async def test_invalid_requests_are_refused(
    api: Api, path: str, body: JSON, param: str, code: str
) -> None:
    answer = await api.call("POST", path, {"model": "m", **body})
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, param, code), (
        answer.raw
    )
