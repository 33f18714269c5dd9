"""An upstream with Anthropic's Messages API behind the Responses API."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam, ToolResultBlockParam

from models.config.upstream import UpstreamSettings
from models.upstream_probe import probe_upstream
from tests.integration.operator.test_operations import backburner
from tests.support import messages_script as claude
from tests.support.api import JSON, Api
from tests.support.chaos.attempts import assert_one_stream
from tests.support.fake_upstream import FakeUpstream, Step, call, done, finish, reply, status, usage
from tests.support.mcp_servers import McpServers
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack
from tests.support.strict_types import check_response
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, item_statuses

FILE = """
[upstreams.claude]
base_url = "{claude}"
api_key = "key-of-claude"
preset = "anthropic"
headers = {{ anthropic-beta = "a-beta" }}
max_retries = 1
circuit_failures = 50

[upstreams.house]
base_url = "{house}"
reasoning_back = "reasoning_content"

[routes]
"*-both" = ["claude", "house"]
"*" = "claude"
"""
WEATHER: JSON = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ASKED = {"reasoning": {"effort": "high"}, "tools": [WEATHER]}
ANSWER: JSON = {"type": "function_call_output", "call_id": "toolu_1", "output": "rain"}


@dataclass(frozen=True, slots=True)
class ClaudeStack:
    """A deployment with an Anthropic upstream and a chat upstream."""

    stack: Stack
    claude: FakeUpstream
    house: FakeUpstream

    @property
    def api(self) -> Api:
        return self.stack.api()


@pytest.fixture(scope="module")
async def deployed(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[ClaudeStack]:
    folder = tmp_path_factory.mktemp("messages")
    async with AsyncExitStack() as context:
        first, house = [await context.enter_async_context(FakeUpstream()) for _ in range(2)]
        (folder / "backburner.toml").write_text(
            FILE.format(claude=first.base_url, house=house.base_url)
        )
        settings = {
            **SHORT_LEASES,
            **TOOL_SETTINGS,
            "BACKBURNER_CONFIG": str(folder / "backburner.toml"),
        }
        own_stack = await context.enter_async_context(
            stack(folder, database_server, suite_settings, fake, settings=settings)
        )
        yield ClaudeStack(own_stack, first, house)
        assert not first.faults, first.faults
        assert not house.faults, house.faults
        for request in first.requests:
            if request.path == "/v1/messages":
                assert claude.faults_of(request.body) == []


def weather_turn(signature: str = "sig") -> list[Step]:
    return [
        claude.begin(),
        claude.thinking("I ", "look.", signature=signature),
        claude.redacted("xyz"),
        claude.said("Let me see."),
        claude.tool_use("toolu_1", "get_weather", '{"city":', ' "Bonn"}'),
        claude.end("tool_use"),
    ]


def said(text: str) -> list[Step]:
    return [claude.begin(), claude.said(text), claude.end()]


SIGNED = [
    {"type": "thinking", "thinking": "I look.", "signature": "sig"},
    {"type": "redacted_thinking", "data": "xyz"},
]


async def test_a_chain_carries_thinking_back_exactly(deployed: ClaudeStack) -> None:
    model = deployed.claude.script(weather_turn(), said("It rains."))
    first = await deployed.api.create(model, input="Weather?", instructions="Be brief.", **ASKED)
    check_response(first)
    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
    assert "encrypted_content" not in first["output"][0]
    assert first["usage"]["input_tokens_details"]["cached_tokens"] == 20
    last = await deployed.api.create(
        model, input=[ANSWER], previous_response_id=first["id"], **ASKED
    )
    assert last["output_text"] == "It rains."
    one, two = deployed.claude.requests_for(model)
    assert (one.path, one.headers["x-api-key"]) == ("/v1/messages", "key-of-claude")
    assert "authorization" not in one.headers
    assert (one.headers["anthropic-version"], one.headers["anthropic-beta"]) == (
        "2023-06-01",
        "a-beta",
    )
    assert two.messages[1]["content"][:2] == SIGNED
    assert [block["type"] for block in two.messages[1]["content"][2:]] == ["text", "tool_use"]
    assert two.messages[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}
    ]


async def test_a_key_for_the_cache_has_an_effect(deployed: ClaudeStack) -> None:
    model = deployed.claude.script(said("Hello."))
    asked = {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "presence_penalty": 1}
    answer = await deployed.api.call("POST", "/responses", {"model": model, "input": "Hi", **asked})
    assert (answer.status, answer.headers["x-ignored-parameters"]) == (200, "presence_penalty")
    [request] = deployed.claude.requests_for(model)
    mark = request.messages[0]["content"][0]["cache_control"]
    assert mark == {"type": "ephemeral", "ttl": "1h"}


async def test_a_client_that_keeps_the_history_carries_thinking_itself(
    deployed: ClaudeStack,
) -> None:
    model = deployed.claude.script(weather_turn(), said("It rains."))
    include = ["reasoning.encrypted_content"]
    first = await deployed.api.create(model, store=False, include=include, **ASKED)
    assert "sig" not in json.dumps(first["output"][0]["encrypted_content"])
    await deployed.api.create(model, store=False, input=[*first["output"], ANSWER], **ASKED)
    blocks = deployed.claude.requests_for(model)[1].messages[1]["content"]
    assert blocks[:2] == SIGNED


async def test_tools_of_the_server_run_and_a_broken_turn_is_repeated(
    deployed: ClaudeStack, mcp_servers: McpServers
) -> None:
    called = [
        claude.begin(),
        claude.thinking("Count.", signature="sig"),
        claude.tool_use("toolu_a", "count_unsafe", '{"key": "claude"}'),
        claude.end("tool_use"),
    ]
    overloaded = claude.error("overloaded_error", "Overloaded")
    model = deployed.claude.script(
        called,
        [claude.begin(), claude.said("Half"), claude.events(overloaded)],
        [status(529, overloaded, retry=True)],
        said("Counted."),
    )
    async with deployed.api.post_stream(
        model, background=True, tools=[counting_server(mcp_servers)], reasoning={"effort": "low"}
    ) as stream:
        await stream.to_end()
    assert_one_stream(stream.frames)
    assert item_statuses(stream.final) == [
        "mcp_list_tools completed",
        "reasoning completed",
        "mcp_call completed",
        "message completed",
    ]
    assert stream.final["output_text"] == "Counted."
    sent = deployed.claude.requests_for(model)[-1].messages
    assert sent[1]["content"][0] == {"type": "thinking", "thinking": "Count.", "signature": "sig"}
    assert sent[2]["content"][0]["content"] == "count_unsafe claude: call 1"


async def test_each_of_two_upstreams_gets_a_history_that_it_accepts(deployed: ClaudeStack) -> None:
    model = "turns-both"
    refusal = [status(529, claude.error("overloaded_error", "Overloaded"))]
    deployed.claude.script(weather_turn(), refusal, said("Sun."), name=model)
    weather = [
        call(0, "call_h", "get_weather", '{"city": "Rom"}'),
        finish("tool_calls"),
        usage(),
        done(),
    ]
    deployed.house.script(weather, reply("Never."), name=model)
    first = await deployed.api.create(model, input="Weather?", **ASKED)
    second = await deployed.api.create(
        model, input=[ANSWER], previous_response_id=first["id"], **ASKED
    )
    third = await deployed.api.create(
        model,
        input=[{**ANSWER, "call_id": second["output"][-1]["call_id"], "output": "sun"}],
        previous_response_id=second["id"],
        **ASKED,
    )
    assert third["output_text"] == "Sun."
    [to_house] = deployed.house.requests_for(model)
    assert "signature" not in json.dumps(to_house.body)
    blocks = deployed.claude.requests_for(model)[-1].messages
    assert blocks[1]["content"][:2] == SIGNED
    assert [block["type"] for block in blocks[3]["content"]] == ["tool_use"]


async def test_thinking_that_the_upstream_refuses_is_left_out(deployed: ClaudeStack) -> None:
    words = (
        "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant "
        "message cannot be modified."
    )
    refused = [status(400, claude.error("invalid_request_error", words))]
    model = deployed.claude.script(weather_turn(), refused, said("It rains."))
    first = await deployed.api.create(model, **ASKED)
    last = await deployed.api.create(
        model, input=[ANSWER], previous_response_id=first["id"], **ASKED
    )
    assert last["output_text"] == "It rains."
    assert "sig" not in json.dumps(deployed.claude.requests_for(model)[-1].messages)


ERRORS: list[tuple[int, str, str, int, str]] = [
    (400, "invalid_request_error", "max_tokens: too high", 400, "max_tokens: too high"),
    (400, "invalid_request_error", "prompt is too long: 9 tokens > 8", 400, "prompt is too long"),
    (401, "authentication_error", "invalid x-api-key", 502, "credential"),
    (404, "not_found_error", "model: nope", 400, "does not exist"),
    (413, "request_too_large", "Request exceeds the maximum size", 413, "maximum size"),
    (429, "rate_limit_error", "Slow down", 429, "Slow down"),
]


@pytest.mark.parametrize(("code", "kind", "words", "shown", "message"), ERRORS)
async def test_errors_have_our_status(
    deployed: ClaudeStack, code: int, kind: str, words: str, shown: int, message: str
) -> None:
    model = deployed.claude.script([status(code, claude.error(kind, words))])
    answer = await deployed.api.call("POST", "/responses", {"model": model, "input": "Hi"})
    assert (answer.status, message in answer.error["message"]) == (shown, True), answer.raw
    assert b"key-of-claude" not in answer.raw


async def test_a_compaction_and_a_count_use_the_upstream(deployed: ClaudeStack) -> None:
    deployed.claude.count_answers["/v1/messages/count_tokens"] = [status(200, {"input_tokens": 42})]
    model = deployed.claude.script(said("Hello."), said("A summary."), said("On."))
    counted = await deployed.api.call(
        "POST", "/responses/input_tokens", {"model": model, "input": "Hi"}
    )
    assert counted.body["input_tokens"] == 42
    request = next(each for each in deployed.claude.requests if each.path.endswith("count_tokens"))
    assert set(request.body) == {"model", "messages"}
    first = await deployed.api.create(model, input="Hi")
    compacted = await deployed.api.call(
        "POST", "/responses/compact", {"model": model, "previous_response_id": first["id"]}
    )
    assert compacted.status == 200, compacted.body
    await deployed.api.create(
        model, input=[*compacted.body["output"], {"role": "user", "content": "?"}]
    )
    assert "A summary." in deployed.claude.requests_for(model)[-1].body_text


async def test_the_check_and_the_list_of_models_know_the_api(deployed: ClaudeStack) -> None:
    settings = UpstreamSettings(base_url=deployed.claude.base_url, preset="anthropic")
    assert (await asyncio.to_thread(probe_upstream, settings)).models
    assert deployed.claude.requests[-1].query == "limit=1000"
    model = deployed.claude.script(said("Hello."))
    checked = await backburner(
        deployed.stack, "upstream", "check", "claude", "--model", model, "--json"
    )
    assert checked.facts["api"] == "messages"
    assert checked.facts["findings"][0]["verdict"] == "works", checked.facts
    assert checked.facts["settings"] == checked.facts["advice"] == []


async def test_both_doors_speak_messages(deployed: ClaudeStack) -> None:
    """Anthropic's client before an Anthropic upstream: the thinking that it gets goes back."""
    model = deployed.claude.script(weather_turn(), said("It rains."))
    base_url = deployed.api.base_url.removesuffix("/v1")
    weather: ToolParam = {"name": "get_weather", "input_schema": WEATHER["parameters"]}
    messages: list[MessageParam] = [{"role": "user", "content": "Weather?"}]
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key=deployed.stack.key) as client:
        asked = partial(
            client.messages.create,
            model=model,
            max_tokens=4000,
            thinking={"type": "enabled", "budget_tokens": 2000},
            tools=[weather],
        )
        first = await asked(messages=messages)
        assert first.stop_reason == "tool_use"
        result: ToolResultBlockParam = {
            "type": "tool_result",
            "tool_use_id": first.content[-1].id if first.content[-1].type == "tool_use" else "",
            "content": "rain",
        }
        answered: list[MessageParam] = [
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        last = await asked(messages=[*messages, *answered])
    assert [block.text for block in last.content if block.type == "text"] == ["It rains."]
    assert deployed.claude.requests_for(model)[1].messages[1]["content"][:2] == SIGNED
