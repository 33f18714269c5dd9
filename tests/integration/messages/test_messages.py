"""Anthropic's own client against /v1/messages: what it gets, and what the upstream gets of it."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from tests.support.api import Api, until
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    done,
    error_body,
    fail,
    finish,
    hang,
    reasoning,
    refusal,
    reply,
    status,
    text,
    usage,
)
from tests.support.stack import Stack

HELLO: list[MessageParam] = [{"role": "user", "content": "Hello."}]
FORECAST: ToolParam = {
    "name": "forecast",
    "description": "Tomorrow's weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c02"
        "0000000b4944415478da6364f80f00010501012718e3660000000049454e44ae426082"
    )
).decode()


def _client(stack: Stack, **options: Any) -> anthropic.AsyncAnthropic:
    base_url = stack.api().base_url.removesuffix("/v1")
    given = {"api_key": stack.key, "max_retries": 0, **options}
    return anthropic.AsyncAnthropic(base_url=base_url, **given)


@pytest.fixture
async def claude(shared_stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with _client(shared_stack) as client:
        yield client


@pytest.mark.parametrize(
    ("steps", "expected", "reason"),
    [
        (reply("Good ", "day."), "Good day.", "end_turn"),
        ([text("Good"), finish("length"), usage(), done()], "Good", "max_tokens"),
        ([text("Go"), finish("content_filter"), usage(), done()], "Go", "refusal"),
        ([refusal("I will not."), finish(), usage(), done()], "I will not.", "refusal"),
    ],
)
async def test_a_message_has_the_text_and_says_why_it_ends(
    claude: anthropic.AsyncAnthropic, fake: FakeUpstream, steps: Any, expected: str, reason: str
) -> None:
    model = fake.script(steps)
    whole = await claude.messages.create(model=model, max_tokens=64, messages=HELLO)
    async with claude.messages.stream(model=model, max_tokens=64, messages=HELLO) as stream:
        streamed = await stream.get_final_message()
    for message in (whole, streamed):
        [block] = message.content
        assert block.type == "text"
        assert (block.text, message.stop_reason) == (expected, reason)
        assert (message.usage.input_tokens, message.usage.output_tokens) == (11, 7)
        assert message.model == model


async def test_a_tool_runs_at_the_client_and_its_reasoning_comes_back(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    called = [
        reasoning("It asks ", "for Ulm."),
        text("Let me see."),
        call(0, "call_1", "forecast", '{"city":', ' "Ulm"}'),
        call(1, "call_2", "forecast", "{}"),
        finish("tool_calls"),
        usage(20, 9, cached=15, reasoning_tokens=4),
        done(),
    ]
    model = fake.script(called, reply("It rains."))
    options: dict[str, Any] = {
        "model": model,
        "max_tokens": 4096,
        "tools": [FORECAST],
        "thinking": {"type": "enabled", "budget_tokens": 2000},
    }
    async with _client(tool_stack) as claude:
        async with claude.messages.stream(messages=HELLO, **options) as stream:
            kinds = [event.type async for event in stream]
            first = await stream.get_final_message()
        results: Any = [
            {"type": "tool_result", "tool_use_id": "call_1", "content": "Rain."},
            {"type": "tool_result", "tool_use_id": "call_2", "is_error": True, "content": "Where?"},
        ]
        history: Any = [
            *HELLO,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [*results, {"type": "text", "text": "Well?"}]},
        ]
        second = await claude.messages.create(messages=history, **options)
    thinking, said, *calls = first.content
    assert thinking.type == "thinking"
    assert thinking.thinking == "It asks for Ulm."
    assert thinking.signature
    assert said.type == "text"
    assert [(one.id, one.input) for one in calls if one.type == "tool_use"] == [
        ("call_1", {"city": "Ulm"}),
        ("call_2", {}),
    ]
    assert first.stop_reason == "tool_use"
    assert (first.usage.input_tokens, first.usage.cache_read_input_tokens) == (5, 15)
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    assert [block.type for block in second.content] == ["text"]

    sent = fake.requests_for(model)[1].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert [message["content"] for message in sent[2:]] == [
        "Rain.",
        "The tool reports an error:\nWhere?",
        "Well?",
    ]
    items = await tool_stack.api().call("GET", f"/responses/{second.id}/input_items?order=asc")
    kept = next(item for item in items.body["data"] if item["type"] == "reasoning")
    assert kept["encrypted_content"] == thinking.signature


async def test_the_sdks_tool_runner_ends_although_there_are_no_threads(
    claude: anthropic.AsyncAnthropic, fake: FakeUpstream
) -> None:
    @anthropic.beta_async_tool  # type: ignore[untyped-decorator]
    async def forecast(city: str) -> str:
        """Tomorrow's weather in a city."""
        return f"Rain in {city}."

    calling = [call(0, "call_1", "forecast", '{"city": "Ulm"}'), finish("tool_calls"), done()]
    model = fake.script(calling, reply("It rains."))
    runner = claude.beta.messages.tool_runner(
        model=model, max_tokens=64, messages=[{"role": "user", "content": "Ulm?"}], tools=[forecast]
    )
    last = await runner.until_done()
    assert [block.text for block in last.content if block.type == "text"] == ["It rains."]
    assert fake.requests_for(model)[1].messages[-1]["content"] == "Rain in Ulm."


async def test_what_a_request_can_say_reaches_the_upstream(
    claude: anthropic.AsyncAnthropic, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Yes."))
    pdf = base64.b64encode(b"%PDF-1.4\n%%EOF").decode()
    content: Any = [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
        },
        {
            "type": "document",
            "title": "a.pdf",
            "source": {"type": "base64", "media_type": "application/pdf", "data": pdf},
        },
        {
            "type": "document",
            "title": "Notes",
            "source": {"type": "text", "media_type": "text/plain", "data": "Blue."},
        },
        {"type": "text", "text": "What?", "cache_control": {"type": "ephemeral"}},
    ]
    answer = await claude.messages.with_raw_response.create(
        model=model,
        max_tokens=1,
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1a2b;"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            {"role": "user", "content": content},
            {"role": "assistant", "content": "Hm."},
            {"role": "system", "content": "9 tokens are left."},
            {"role": "user", "content": "Well?"},
        ],
        tools=[FORECAST, {"type": "bash_20250124", "name": "bash"}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["\n\nHuman:"],
        metadata={"user_id": "u-1"},
        output_config={"effort": "low"},
        service_tier="standard_only",
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 5, "context_management": {}},
    )
    assert answer.headers["x-ignored-parameters"] == "top_k"
    body = fake.requests_for(model)[0].body
    assert (body["temperature"], body["top_p"], body["stop"]) == (0.5, 0.9, ["\n\nHuman:"])
    assert (body["reasoning_effort"], body["parallel_tool_calls"]) == ("low", False)
    assert (body["max_completion_tokens"], body["tool_choice"]) == (16, "required")
    assert [tool["function"]["name"] for tool in body["tools"]] == ["forecast", "bash"]
    system, asked, _, reminder, well = body["messages"]
    assert system["content"] == "Be brief."
    assert [part["type"] for part in asked["content"]] == ["image_url", "file", "text", "text"]
    assert asked["content"][0]["image_url"]["url"].endswith(PIXEL)
    assert "9 tokens are left." in reminder["content"]
    assert reminder["role"] == well["role"] == "user"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("refusal_of_upstream", "error", "kind"),
    [
        (status(429, headers={"retry-after": "7"}), anthropic.RateLimitError, "rate_limit_error"),
        (
            status(400, error_body("Too long.", "invalid", "context_length_exceeded")),
            anthropic.BadRequestError,
            "invalid_request_error",
        ),
        (status(500), anthropic.InternalServerError, "api_error"),
    ],
)
async def test_what_fails_before_any_output_is_an_http_error(
    claude: anthropic.AsyncAnthropic,
    fake: FakeUpstream,
    refusal_of_upstream: Any,
    error: type[anthropic.APIStatusError],
    kind: str,
    streams: bool,
) -> None:
    model = fake.script([refusal_of_upstream])
    with pytest.raises(error) as raised:
        await claude.messages.create(model=model, max_tokens=64, messages=HELLO, stream=streams)
    body: Any = raised.value.body
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == raised.value.request_id
    if error is anthropic.RateLimitError:
        assert raised.value.response.headers["retry-after"] == "7"
    if error is anthropic.BadRequestError:
        assert body["error"]["message"].startswith("prompt is too long")


async def test_what_fails_after_some_output_is_an_error_event(
    claude: anthropic.AsyncAnthropic, fake: FakeUpstream
) -> None:
    model = fake.script([text("Good"), fail("The engine died.")])
    async with claude.messages.stream(model=model, max_tokens=64, messages=HELLO) as stream:
        pieces = stream.text_stream
        assert await anext(pieces) == "Good"
        with pytest.raises(anthropic.APIStatusError, match="invalid_request_error"):
            await anext(pieces)


@pytest.mark.parametrize(
    ("changes", "code", "kind", "words"),
    [
        ({"model": "nobody"}, 404, "not_found_error", "nobody"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
            400,
            "invalid_request_error",
            "messages[0].content[0].type",
        ),
        (
            {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
            400,
            "invalid_request_error",
            "code_execution_20250825",
        ),
        ({"thread": {"type": "create"}}, 400, "invalid_request_error", "thread"),
        ({"mcp_servers": [{"url": "https://a"}]}, 400, "invalid_request_error", "mcp_servers"),
        ({"system": "x" * 4_000_000}, 413, "request_too_large", "4000000"),
    ],
)
async def test_a_wrong_request_gets_an_error_in_anthropics_form(
    api: Api, changes: dict[str, Any], code: int, kind: str, words: str
) -> None:
    body = {"model": "resident", "max_tokens": 10, "messages": HELLO, **changes}
    answer = await api.call("POST", "/messages", body)
    assert (answer.status, answer.body["error"]["type"]) == (code, kind)
    assert words in answer.body["error"]["message"]
    assert answer.body["request_id"] == answer.headers["request-id"]


async def test_both_headers_of_a_key_are_read(shared_stack: Stack, fake: FakeUpstream) -> None:
    model = fake.script(reply("Yes."))
    async with _client(shared_stack, api_key=None, auth_token=shared_stack.key) as claude:
        await claude.messages.create(model=model, max_tokens=64, messages=HELLO)
    async with _client(shared_stack, api_key="bb-wrong") as claude:
        with pytest.raises(anthropic.AuthenticationError) as raised:
            await claude.messages.create(model=model, max_tokens=64, messages=HELLO)
    assert "authentication_error" in raised.value.message


async def test_tokens_are_counted_and_models_listed(
    claude: anthropic.AsyncAnthropic, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Yes."))
    short = await claude.messages.count_tokens(model=model, messages=HELLO)
    long = await claude.messages.count_tokens(model=model, messages=HELLO, tools=[FORECAST])
    assert 0 < short.input_tokens < long.input_tokens
    listed = [one async for one in claude.models.list()]
    assert model in [one.id for one in listed]
    assert (await claude.models.retrieve(model)).display_name == model


async def test_a_background_message_is_polled_as_a_response(
    claude: anthropic.AsyncAnthropic, api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Later."))
    queued = await claude.messages.create(
        model=model,
        max_tokens=64,
        messages=HELLO,
        extra_headers={"x-backburner-background": "true"},
    )
    assert (queued.content, queued.stop_reason) == ([], None)
    ended = await api.wait_for_end(queued.id)
    assert (ended["output_text"], ended["metadata"]["api"]) == ("Later.", "messages")


async def test_a_repeated_request_gets_the_same_message(
    claude: anthropic.AsyncAnthropic, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Once."))
    headers = {"idempotency-key": f"once-{model}"}
    ids = set()
    for _ in range(2):
        message = await claude.messages.create(
            model=model, max_tokens=64, messages=HELLO, extra_headers=headers
        )
        ids.add(message.id)
        async with claude.messages.stream(
            model=f"{model}", max_tokens=64, messages=HELLO
        ) as stream:
            assert await stream.get_final_text() == "Once."
    assert len(ids) == 1
    assert len(fake.requests_for(model)) == 3


async def test_a_message_is_run_again_with_its_stop_sequences(
    claude: anthropic.AsyncAnthropic, api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("One."), reply("Two."))
    message = await claude.messages.create(
        model=model, max_tokens=64, messages=HELLO, stop_sequences=["."]
    )
    again = await api.call("POST", f"/responses/{message.id}/retry", {})
    assert again.body["output_text"] == "Two."
    assert [request.body["stop"] for request in fake.requests_for(model)] == [["."], ["."]]


@pytest.mark.parametrize(("steps", "streams"), [([text("Go")], True), ([], True), ([], False)])
async def test_a_client_that_leaves_cancels_its_message(
    claude: anthropic.AsyncAnthropic, fake: FakeUpstream, steps: list[Any], streams: bool
) -> None:
    model = fake.script([*steps, hang()])

    async def ask() -> None:
        answer: Any = await claude.messages.create(
            model=model, max_tokens=64, messages=HELLO, stream=streams
        )
        async for _ in answer:
            pass

    asking = asyncio.create_task(ask())
    await until(lambda: fake.requests_for(model))
    [request] = fake.requests_for(model)
    asking.cancel()
    await asyncio.wait({asking})
    await until(lambda: request.closed_by_client is not None)


async def test_an_answer_in_json_is_asked_for(
    claude: anthropic.AsyncAnthropic, fake: FakeUpstream
) -> None:
    model = fake.script(reply('{"city": "Ulm"}'))
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    message = await claude.messages.create(
        model=model,
        max_tokens=64,
        messages=HELLO,
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert json.loads(message.content[0].text) == {"city": "Ulm"}
    sent = fake.requests_for(model)[0].body["response_format"]
    assert sent["json_schema"]["schema"] == schema
