"""An MCP server as a tool provider: its results, its failures, and that none hangs a response.

These tests use real MCP servers without the rest of the product.
tests/integration/tools/test_mcp.py tests the whole.
"""

import asyncio
import json
import socket
import sys
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from models.config.groups import EgressSettings, McpSettings, ToolSettings
from models.config.settings import Settings
from models.egress import NOT_REACHED, EgressPolicy
from models.errors import ToolFailed
from models.wire.checks.json_schema import require_schema
from tests.support.api import until
from tests.support.chaos.lost_replies import DONE, both_kinds, lose_reply
from tests.support.chaos.proxy import Proxy
from tests.support.mcp_servers import (
    COUNTING_TOOLS,
    PIXEL,
    Fault,
    McpServers,
    RawExchange,
    Transport,
    break_off,
    break_off_in_stream,
    hang,
    hang_in_answer,
    http_answer,
    redirect,
    rpc_error,
    rpc_result,
)
from worker.tools.mcp_provider import McpToolProvider
from worker.tools.provider import ToolCallError, ToolContext, ToolResult
from worker.tools.toolbox import Toolbox

JSON = dict[str, Any]
LOCAL = EgressSettings(allow=("127.0.0.0/8",))


def settings(**more: Any) -> Settings:
    base = {"database_url": "postgresql://unused", "redis_url": "redis://unused"}
    return Settings(
        **{**base, "tools": ToolSettings(time=timedelta(seconds=2)), "egress": LOCAL, **more}
    )


def tool(url: str, **more: Any) -> JSON:
    return {
        "type": "mcp",
        "server_label": "it",
        "server_url": url,
        "require_approval": "never",
        **more,
    }


@dataclass(slots=True)
class ToolboxRun:
    """A toolbox with one MCP server, and the items it has made so far."""

    toolbox: Toolbox
    history: list[JSON] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    async def prepare(self) -> list[JSON]:
        """Runs all pending calls until none is left; returns their items."""
        done: list[JSON] = []
        while pending := self.toolbox.pending(self.history):
            for start in pending:
                call = start(0, lambda prefix: f"{prefix}_{next(self._numbers)}")
                call.open_events()
                call.arguments_done()
                result = await self.toolbox.run(call.to_json())
                failed = isinstance(result, ToolCallError) or result.failed
                call.result(
                    call.failure_fields(str(result))
                    if isinstance(result, ToolCallError)
                    else result.fields,
                    failed=failed,
                )
                self.history.append(call.to_json())
                done.append(call.to_json())
        return done

    async def call(self, name: str, arguments: JSON | str) -> ToolResult | ToolCallError:
        """Calls a tool of the server; `arguments` may be raw text."""
        encoded = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return await self.toolbox.run(item(name, encoded))


def item(name: str, arguments: str = "{}") -> JSON:
    return {
        "id": "mcp_x",
        "type": "mcp_call",
        "status": "in_progress",
        "server_label": "it",
        "name": name,
        "arguments": arguments,
    }


@asynccontextmanager
async def open_run(
    url: str, *, sealed: JSON | None = None, config: Settings | None = None, **more: Any
) -> Any:
    chosen_settings = config or settings()
    toolbox = Toolbox(
        [tool(url, **more)],
        ToolContext(chosen_settings, EgressPolicy(chosen_settings.egress), {"it": sealed or {}}),
        {"mcp": McpToolProvider},
    )
    try:
        yield ToolboxRun(toolbox)
    finally:
        await toolbox.close()


TRANSPORTS: list[tuple[str, Transport]] = [("plain", "mcp"), ("old", "mcp"), ("plain", "sse")]


@pytest.mark.parametrize(("name", "transport"), TRANSPORTS)
async def test_tools_are_listed_and_called_over_every_transport(
    mcp_servers: McpServers, name: str, transport: Transport
) -> None:
    async with open_run(mcp_servers.url(name, transport)) as run:
        (listing,) = await run.prepare()
        assert listing["status"] == "completed"
        assert {entry["name"] for entry in listing["tools"]} >= {
            "echo",
            "get_user_id",
            "picture",
            "weather",
        }
        echo = next(entry for entry in listing["tools"] if entry["name"] == "echo")
        assert echo["description"] == "Says the same."
        assert echo["input_schema"]["properties"]["text"]["type"] == "string"
        assert (await run.call("echo", {"text": "grün \U0001f600"})).fields == {
            "output": "grün \U0001f600"
        }


async def test_a_session_is_opened_once_and_closed_at_the_end(mcp_servers: McpServers) -> None:
    url = mcp_servers.url_with_fault("old", "nothing", hang)
    async with open_run(url) as run:
        await run.prepare()
        for _ in range(3):
            await run.call("echo", {"text": "x"})
    assert len(mcp_servers.requests_to(url, "initialize")) == 1
    assert [request.http_method for request in mcp_servers.requests_to(url)].count("DELETE") == 1
    assert (
        len(
            {
                request.headers.get("mcp-session-id")
                for request in mcp_servers.requests_to(url, "tools/call")
            }
        )
        == 1
    )


async def test_a_session_that_the_server_lost_is_opened_again_once(
    mcp_servers: McpServers,
) -> None:
    url = mcp_servers.url_with_fault("old", "nothing", hang)
    async with open_run(url) as run:
        await run.prepare()
        mcp_servers.forget_sessions()
        assert (await run.call("echo", {"text": "again"})).fields == {"output": "again"}
    assert len(mcp_servers.requests_to(url, "initialize")) == 2


async def test_a_call_that_a_server_accepted_before_it_lost_the_session_is_not_made_again(
    mcp_servers: McpServers,
) -> None:
    async def accept_and_restart(exchange: RawExchange) -> None:
        mcp_servers.forget_sessions()
        # An event id without an answer: the client reads on by GET, which is answered 404.
        await exchange.answer(
            200, {"content-type": "text/event-stream"}, b"id: 1\nretry: 10\ndata:\n\n"
        )

    url = mcp_servers.url_with_fault("old", "tools/call", accept_and_restart)
    async with open_run(url) as run:
        await run.prepare()
        result = await run.call("echo", {"text": "once"})
        assert isinstance(result, ToolCallError) or result.failed
    assert len(mcp_servers.requests_to(url, "tools/call")) == 1
    assert any(request.http_method == "GET" for request in mcp_servers.requests_to(url))


async def test_tools_in_the_history_are_not_listed_again(mcp_servers: McpServers) -> None:
    url = mcp_servers.url_with_fault("plain", "nothing", hang)
    async with open_run(url) as run:
        (listing,) = await run.prepare()
    async with open_run(url) as later:
        later.history = [listing]
        assert await later.prepare() == []
        assert "echo" in later.toolbox.server_functions()
        assert (await later.call("echo", {"text": "x"})).fields == {"output": "x"}
    assert len(mcp_servers.requests_to(url, "tools/list")) == 1


async def test_all_pages_of_a_long_list_are_read(mcp_servers: McpServers) -> None:
    async with open_run(mcp_servers.url("many")) as run:
        (listing,) = await run.prepare()
    assert [entry["name"] for entry in listing["tools"]] == [
        f"tool_{number:03}" for number in range(300)
    ]


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (["echo", "unknown"], {"echo"}),
        ({"tool_names": ["echo", "get_user_id"], "read_only": True}, {"get_user_id"}),
        ({"read_only": True}, {"get_user_id", "get_user_permissions", "check_file_access"}),
    ],
)
async def test_only_allowed_tools_are_shown_and_called(
    mcp_servers: McpServers, allowed: Any, names: set[str]
) -> None:
    async with open_run(mcp_servers.url("plain"), allowed_tools=allowed) as run:
        (listing,) = await run.prepare()
        assert {entry["name"] for entry in listing["tools"]} == names
        assert set(run.toolbox.server_functions()) == names
        assert "no tool 'weather'" in str(await run.call("weather", {"city": "Rome"}))


async def test_credentials_are_sent_unchanged_with_every_request(
    mcp_servers: McpServers,
) -> None:
    url = mcp_servers.url_with_fault("old", "nothing", hang)
    for credentials, expected in (
        ({"authorization": "t0ken"}, "Bearer t0ken"),
        ({"authorization": "Basic abc"}, "Basic abc"),
        ({"headers": {"Authorization": "Custom x", "X-Tenant": "42"}}, "Custom x"),
    ):
        before = len(mcp_servers.requests)
        async with open_run(url, sealed=credentials) as run:
            await run.prepare()
        requests = mcp_servers.requests[before:]
        assert {request.headers["authorization"] for request in requests} == {expected}
        assert len(requests) > 3
        if "headers" in credentials:
            assert {request.headers["x-tenant"] for request in requests} == {"42"}


@pytest.mark.parametrize("transport", ["mcp", "sse"])
async def test_a_server_that_needs_a_token_is_refused_without_it(
    mcp_servers: McpServers, transport: Transport
) -> None:
    url = mcp_servers.url_with_token("plain", "t0ken", transport)
    async with open_run(url) as run:
        with pytest.raises(ToolFailed, match="'it'") as failure:
            await run.prepare()
        assert failure.value.status == 401
    async with open_run(url, sealed={"authorization": "t0ken"}) as run:
        assert (await run.prepare())[0]["status"] == "completed"


# --- results ---


async def test_results_of_every_type_become_one_text(mcp_servers: McpServers) -> None:
    async with open_run(mcp_servers.url("plain")) as run:
        await run.prepare()
        assert json.loads((await run.call("weather", {"city": "Rome"})).fields["output"]) == {
            "degrees": 4
        }
        assert (await run.call("only_structured", {})).fields == {"output": '{"answer": 42}'}
        lines = (await run.call("links", {})).fields["output"].splitlines()
        assert lines == [
            "[resource: a.txt at https://example.com/a.txt]",
            "inside",
            "[audio: audio/wav, 6 bytes]",
        ]


async def test_an_image_reaches_the_model_and_is_named_in_the_output(
    mcp_servers: McpServers,
) -> None:
    async with open_run(mcp_servers.url("plain")) as run:
        await run.prepare()
        result = await run.call("picture", {})
    assert result.fields["output"].startswith("a red pixel\n[image: image/png, ")
    text_part, image_part = result.tool_output
    assert text_part == {"type": "input_text", "text": result.fields["output"]}
    assert image_part["type"] == "input_image"
    assert image_part["image_url"].startswith(f"data:image/png;base64,{PIXEL[:0].decode()}iVBOR")


async def test_text_and_images_beyond_the_limit_are_left_out(
    mcp_servers: McpServers,
) -> None:
    limits = ToolSettings(time=timedelta(seconds=30), answer=1000, images=2_500_000)
    async with open_run(mcp_servers.url("plain"), config=settings(tools=limits)) as run:
        await run.prepare()
        result = await run.call("gallery", {"count": 3})
        error = await run.call("broken", {"why": "y" * 100_000})
    notice = "[The rest is left out: the tool's answer was too long.]"
    assert len(result.fields["output"]) < 1100
    assert [part["type"] for part in result.tool_output] == [
        "input_text",
        "input_image",
        "input_image",
        "input_text",
    ]
    assert result.tool_output[3]["text"] == notice
    assert result.tool_output[0]["text"].endswith(notice)
    assert len(json.dumps(error.fields)) < 1300


async def test_a_tools_error_becomes_a_failed_call(mcp_servers: McpServers) -> None:
    async with open_run(mcp_servers.url("plain")) as run:
        await run.prepare()
        result = await run.call("broken", {"why": "no disk"})
    assert result.failed
    assert result.fields == {
        "error": {
            "type": "mcp_tool_execution_error",
            "content": [{"type": "text", "text": "no disk"}],
        }
    }


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"text"', "null", "[" * 1000, '{"a": NaN}'])
async def test_arguments_that_are_no_json_object_do_not_reach_the_server(
    mcp_servers: McpServers, arguments: str
) -> None:
    url = mcp_servers.url_with_fault("plain", "nothing", hang)
    async with open_run(url) as run:
        await run.prepare()
        assert isinstance(await run.call("echo", arguments), ToolCallError)
    assert not mcp_servers.requests_to(url, "tools/call")


async def test_arguments_that_do_not_fit_the_schema_are_refused_by_the_tool(
    mcp_servers: McpServers,
) -> None:
    async with open_run(mcp_servers.url("plain")) as run:
        await run.prepare()
        result = await run.call("echo", {"words": 1})
    assert result.failed
    assert "text" in result.fields["error"]["content"][0]["text"]


# --- servers that misbehave ---


@dataclass(frozen=True, slots=True)
class BadAnswer:
    name: str
    fault: Fault
    phrase: str
    """Part of the error that the model gets."""
    kind: str = "http_error"


NUL_AND_SURROGATES = (
    b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"a\\u0000b"}]}}'
)
BAD_ANSWERS = [
    BadAnswer("hangs", hang, "within 2 s", "mcp_tool_execution_error"),
    BadAnswer("hangs in its answer", hang_in_answer, "within 2 s", "mcp_tool_execution_error"),
    BadAnswer("dies in its answer", break_off, "broke off"),
    BadAnswer("dies in its stream", break_off_in_stream, "broke off"),
    BadAnswer(
        "answers 500",
        http_answer(500, b"Traceback (most recent call last)", "text/plain"),
        "HTTP 500",
    ),
    BadAnswer("answers 401 in the middle", http_answer(401), "HTTP 401"),
    BadAnswer("answers 404 without sessions", http_answer(404, b"gone", "text/plain"), "HTTP 404"),
    BadAnswer(
        "redirects to metadata", redirect("http://169.254.169.254/latest/meta-data/"), "HTTP 307"
    ),
    BadAnswer("redirects to itself without end", redirect("mcp"), "HTTP 307"),
    BadAnswer("redirects a message away", redirect("http://127.0.0.1:1/", 302), "HTTP 302"),
    BadAnswer(
        "answers invalid UTF-8",
        http_answer(200, b'{"jsonrpc": "2.0", "id": 1, "result": "\xff\xfe"}'),
        "not valid",
        "mcp_protocol_error",
    ),
    BadAnswer(
        "answers invalid UTF-8 in a stream",
        http_answer(200, b"data: \xff\xfe\n\n", "text/event-stream"),
        "not valid",
        "mcp_protocol_error",
    ),
    BadAnswer(
        "answers HTML",
        http_answer(200, b"<html>", "text/html"),
        "content type",
        "mcp_protocol_error",
    ),
    BadAnswer(
        "answers a result of no object", rpc_result("fine"), "not valid", "mcp_protocol_error"
    ),
    BadAnswer("answers nothing at all", http_answer(200), "not valid", "mcp_protocol_error"),
    BadAnswer("answers 202 and no more", http_answer(202), "202", "mcp_protocol_error"),
    BadAnswer(
        "refuses", rpc_error(-32601, "Method not found"), "Method not found", "mcp_protocol_error"
    ),
    BadAnswer(
        "refuses with a code beyond 64 bits", rpc_error(2**64, "odd"), "odd", "mcp_protocol_error"
    ),
    BadAnswer(
        "refuses with a bad status",
        http_answer(400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"odd"}}'),
        "odd",
        "mcp_protocol_error",
    ),
    BadAnswer(
        "refuses with megabytes", rpc_error(-32000, "x" * 9_000_000), "more than 8388608 bytes"
    ),
    BadAnswer(
        "answers 200 000 empty blocks",
        rpc_result({"content": [{"type": "text", "text": ""}] * 200_000}),
        "more than 32000 JSON values",
    ),
    BadAnswer(
        "answers values in a stream of events",
        http_answer(200, b': "\n\ndata: {\n' + b"data: [],\n" * 50_000, "text/event-stream"),
        "more than 32000 JSON values",
    ),
    BadAnswer(
        "answers 1 001 blocks",
        rpc_result({"resultType": "complete", "content": [{"type": "text", "text": ""}] * 1001}),
        "more than 1000 content blocks",
        "mcp_protocol_error",
    ),
    BadAnswer(
        "answers compressed", http_answer(200, b"\x1f\x8b", content_encoding="gzip"), "compressed"
    ),
]


@pytest.mark.parametrize("bad", BAD_ANSWERS, ids=lambda bad: bad.name)
async def test_a_bad_answer_to_a_call_is_a_failed_call(
    mcp_servers: McpServers, bad: BadAnswer
) -> None:
    url = mcp_servers.url_with_fault("plain", "tools/call", bad.fault)
    async with open_run(url) as run:
        await run.prepare()
        result = await run.call("echo", {"text": "x"})
        error = (
            str(result) if isinstance(result, ToolCallError) else json.dumps(result.fields["error"])
        )
        assert bad.phrase in error
        assert "Traceback" not in error
        assert "169.254" not in error
        if isinstance(result, ToolResult):
            assert result.failed
            assert result.fields["error"]["type"] == bad.kind


BAD_SSE_ANSWERS = [
    bad
    for bad in BAD_ANSWERS
    if bad.name
    in (
        "hangs",
        "dies in its answer",
        "answers 500",
        "redirects to metadata",
        "answers invalid UTF-8",
    )
]


@pytest.mark.parametrize("bad", BAD_SSE_ANSWERS, ids=lambda bad: bad.name)
async def test_a_bad_answer_over_the_older_transport_is_a_failed_call(
    mcp_servers: McpServers, bad: BadAnswer
) -> None:
    async with open_run(mcp_servers.url_with_fault("plain", "tools/call", bad.fault, "sse")) as run:
        await run.prepare()
        result = await run.call("echo", {"text": "x"})
        assert isinstance(result, ToolCallError) or result.failed


@both_kinds
@pytest.mark.parametrize("name", COUNTING_TOOLS)
async def test_a_call_without_an_answer_is_made_again_only_if_it_may_be_made_twice(
    mcp_servers: McpServers, name: str, kind: str
) -> None:
    """As when the server closes an idle connection while a request is sent on it."""
    parts = urlsplit(mcp_servers.url("counting"))
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = Proxy(parts.hostname, parts.port)
    key = f"{name}-{kind}"
    try:
        async with open_run(proxy.url(parts.geturl())) as run:
            await run.prepare()
            lose_reply(proxy, b'"tools/call"', kind)
            result = await run.call(name, {"key": key})
    finally:
        await proxy.close()
    assert isinstance(result, ToolResult)
    may_repeat = name != "count_unsafe"
    assert result.failed is not may_repeat
    if result.failed:
        assert "broke off before it answered" in result.fields["error"]["message"]
    made = len(mcp_servers.tool_calls.calls_with(key))
    assert made == (kind == DONE) + may_repeat


async def test_a_connection_that_was_idle_for_long_is_not_used_again(
    mcp_servers: McpServers,
) -> None:
    """The server may close it in the moment in which a call is sent."""
    parts = urlsplit(mcp_servers.url("counting"))
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = Proxy(parts.hostname, parts.port)
    try:
        async with open_run(proxy.url(parts.geturl())) as run:
            await run.prepare()
            await run.call("count_unsafe", {"key": "first"})
            used = time.monotonic()
            await until(lambda: time.monotonic() - used > 4.5)
            proxy.lose()  # an old connection answers nothing any more
            result = await run.call("count_unsafe", {"key": "later"})
    finally:
        await proxy.close()
    assert isinstance(result, ToolResult)
    assert not result.failed, result.fields


async def test_a_session_survives_a_bad_answer(mcp_servers: McpServers) -> None:
    url = mcp_servers.url_with_fault("old", "tools/call", break_off)
    async with open_run(url) as run:
        await run.prepare()
        for _ in range(3):
            assert "broke off" in json.dumps((await run.call("echo", {"text": "x"})).fields)
    assert len(mcp_servers.requests_to(url, "initialize")) == 1


BAD_LISTS: list[tuple[str, Fault, int]] = [
    ("hangs", hang, 424),
    ("dies", break_off, 424),
    ("answers 500", http_answer(500), 424),
    ("answers 403", http_answer(403), 424),
    ("redirects", redirect("http://169.254.169.254/"), 424),
    ("sends invalid UTF-8", http_answer(200, b"\xff"), 424),
    ("tools is not a list", rpc_result({"tools": "all of them"}), 424),
    (
        "a schema is a string",
        rpc_result({"tools": [{"name": "a", "inputSchema": "string"}]}),
        424,
    ),
    ("pages without end", rpc_result(lambda body: {"tools": [], "nextCursor": "again"}), 424),
    (
        "too many tools",
        rpc_result(
            {
                "tools": [
                    {"name": f"t{number}", "inputSchema": {"type": "object"}}
                    for number in range(2000)
                ]
            }
        ),
        424,
    ),
    (
        "too many bytes",
        rpc_result(
            {
                "tools": [
                    {"name": "t", "description": "x" * 3_000_000, "inputSchema": {"type": "object"}}
                ]
            }
        ),
        424,
    ),
]


@pytest.mark.parametrize(
    ("_name", "fault", "status"), BAD_LISTS, ids=[name for name, *_ in BAD_LISTS]
)
async def test_a_server_without_its_list_fails_the_response(
    mcp_servers: McpServers, _name: str, fault: Fault, status: int
) -> None:
    async with open_run(mcp_servers.url_with_fault("old", "tools/list", fault)) as run:
        with pytest.raises(ToolFailed, match="'it'") as failure:
            await run.prepare()
    assert failure.value.status == status
    (listing,) = run.history
    assert (listing["status"], listing["tools"]) == ("failed", [])
    assert listing["error"]


async def test_what_is_invalid_in_a_schema_is_not_shown_to_the_model(
    mcp_servers: McpServers,
) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "nonsense", "minimum": "many"}},
        "x\x00y": "a\x00b",
    }
    fault = rpc_result(
        {
            "tools": [
                {"name": "odd tool!", "inputSchema": schema, "description": "a\x00b"},
                {"name": "odd tool!", "inputSchema": {"type": "object"}},
            ]
        }
    )
    async with open_run(mcp_servers.url_with_fault("old", "tools/list", fault)) as run:
        (listing,) = await run.prepare()
        ((model_name, function),) = run.toolbox.server_functions().items()
    cleaned = {
        "type": "object",
        "properties": {"n": {"type": "nonsense", "minimum": "many"}},
        "x�y": "a�b",
    }
    assert listing["tools"] == [
        {"name": "odd tool!", "input_schema": cleaned, "description": "a�b"}
    ]
    assert "'odd tool!' (listed twice)" in listing["error"]
    assert function.parameters == {**cleaned, "properties": {"n": {}}}
    assert model_name.replace("_", "").replace("-", "").isalnum()
    assert len(model_name) <= 64


def listed(name: Any, schema: Any = None, **more: Any) -> JSON:
    return {"name": name, "inputSchema": schema or {"type": "object"}, **more}


BOUNDS = {
    "minimum": -9223372036854776000,
    "maximum": 18446744073709552000,
    "exclusiveMaximum": float("inf"),
    "multipleOf": 10**100,
    "const": float("nan"),
}
USABLE: list[tuple[JSON, JSON]] = [
    (listed("plain"), {}),
    (listed("bounds", {"type": "object", "properties": {"n": BOUNDS}}), {}),
    (listed("half", description="a \ud83d b", title="\ude00"), {"description": "a \ufffd b"}),
    (listed("half \ud83d"), {"name": "half \ufffd"}),
    (listed("nul", description="a\0b"), {"description": "a\ufffdb"}),
    (listed("nullable", {"type": ["object", "null"]}), {"input_schema": {"type": "object"}}),
    (
        listed("union", {"anyOf": [{"type": "object"}]}),
        {"input_schema": {"anyOf": [{"type": "object"}], "type": "object"}},
    ),
    ({"name": "none"}, {"input_schema": {"type": "object", "properties": {}}}),
    (
        {"name": "null", "inputSchema": None, "description": None, "annotations": None},
        {"input_schema": {"type": "object", "properties": {}}},
    ),
    ({"name": "empty", "inputSchema": {}}, {"input_schema": {"type": "object"}}),
    (
        listed("nulls", {"type": "object", "properties": None, "required": None}),
        {"input_schema": {"type": "object", "properties": None, "required": None}},
    ),
    (listed("misplaced", {"type": "object", "properties": {"required": ["a"]}}), {}),
    (listed("cycle", {"type": "object", "properties": {"a": {"$ref": "#"}}}), {}),
    (listed("odd texts", description=7, annotations="none"), {"description": None}),
    (
        listed("odd hints", annotations={"readOnlyHint": "yes", "idempotentHint": True}),
        {"annotations": {"idempotentHint": True}},
    ),
    (listed("odd rest", icons="none", execution=7, outputSchema="none", _meta=3), {}),
]
UNUSABLE: list[tuple[Any, str]] = [
    (listed("text", "string"), "'text' (its input schema is no object)"),
    (listed("list", {"type": "array"}), "'list' (its input is no object)"),
    (listed("plain"), "'plain' (listed twice)"),
    (
        listed("deep", {"type": "object", "x": json.loads("[" * 189 + "]" * 189)}),
        "'deep' (it cannot be stored as JSON)",
    ),
    (listed(""), "a tool (without a name)"),
    (listed(5), "a tool (without a name)"),
    ({"inputSchema": {}}, "a tool (without a name)"),
    ("tool", "a tool (without a name)"),
    (None, "a tool (without a name)"),
]


@pytest.mark.parametrize("name", ["old", "plain"])
async def test_an_odd_tool_does_not_take_the_others_with_it(
    mcp_servers: McpServers, name: str
) -> None:
    tools = [*(tool for tool, _ in USABLE), *(tool for tool, _ in UNUSABLE)]
    fault = rpc_result({"tools": tools, "nextCursor": ""})
    async with open_run(mcp_servers.url_with_fault(name, "tools/list", fault)) as run:
        (listing,) = await run.prepare()
        functions = run.toolbox.server_functions()
    assert listing["status"] == "completed"
    for shown, (tool, expected) in zip(listing["tools"], USABLE, strict=True):
        assert shown["name"] == expected.get("name", tool["name"])
        for field_name, value in expected.items():
            assert shown.get(field_name) == value
    for _, why in UNUSABLE:
        assert why in listing["error"]
    assert listing["tools"][1]["input_schema"]["properties"]["n"] == {
        "minimum": -(2.0**63),
        "maximum": 2.0**64,
        "exclusiveMaximum": sys.float_info.max,
        "multipleOf": 1e100,
    }
    for function in functions.values():
        require_schema(dict(function.parameters), "tools", "it", code="x", strict=False)


async def test_only_what_the_client_allows_is_missed(mcp_servers: McpServers) -> None:
    fault = rpc_result({"tools": [listed("good"), listed("bad", "string")]})
    url = mcp_servers.url_with_fault("old", "tools/list", fault)
    async with open_run(url, allowed_tools=["good"]) as run:
        (listing,) = await run.prepare()
    assert "error" not in listing
    async with open_run(url, allowed_tools=["bad"]) as run:
        with pytest.raises(ToolFailed, match="'bad'"):
            await run.prepare()


async def test_a_list_that_repeats_itself_is_read_once(mcp_servers: McpServers) -> None:
    fault = rpc_result({"tools": [listed("good")], "nextCursor": "again"})
    async with open_run(mcp_servers.url_with_fault("old", "tools/list", fault)) as run:
        (listing,) = await run.prepare()
    assert [tool["name"] for tool in listing["tools"]] == ["good"]


RESULTS: list[tuple[str, JSON, str]] = [
    ("half an emoji", {"content": [{"type": "text", "text": "a \ud83d b"}]}, "a \ufffd b"),
    ("half in a key", {"structuredContent": {"\ude00": 1}}, '{"\ufffd": 1}'),
    ("no content", {}, ""),
    ("null", {"content": None, "structuredContent": None, "isError": None}, ""),
    ("a text", {"content": "plain"}, "plain"),
    ("a block", {"content": {"type": "text", "text": "one"}}, "one"),
    ("texts", {"content": ["one", "two"]}, "one\ntwo"),
    ("no type", {"content": [{"text": "x"}]}, '{"text": "x"}'),
    ("no text", {"content": [{"type": "text"}]}, '{"type": "text"}'),
    ("a number", {"content": [{"type": "text", "text": 5}]}, '{"type": "text", "text": 5}'),
    (
        "unknown",
        {"content": [{"type": "text", "text": "a"}, {"type": "video", "url": "http://v"}]},
        'a\n{"type": "video", "url": "http://v"}',
    ),
    (
        "odd extras",
        {"content": [{"type": "text", "text": "a", "annotations": 5, "_meta": []}], "_meta": 7},
        "a",
    ),
    ("structured", {"structuredContent": {"n": 10**30}}, '{"n": 1' + "0" * 30 + "}"),
    ("a list", {"structuredContent": [1, 2], "content": []}, "[1, 2]"),
    ("empty text", {"structuredContent": 3, "content": [{"type": "text", "text": ""}]}, "3"),
    ("an old result", {"toolResult": {"a": 1}}, '{"toolResult": {"a": 1}}'),
    (
        "a link",
        {"content": [{"type": "resource_link", "uri": "not a url"}]},
        "[resource: not a url at not a url]",
    ),
    (
        "a resource",
        {"content": [{"type": "resource", "resource": {"text": "in \ud83d"}}]},
        "in \ufffd",
    ),
    (
        "bytes",
        {"content": [{"type": "resource", "resource": {"uri": "x:y", "blob": "AA=="}}]},
        "[resource: x:y, of unknown type]",
    ),
    (
        "an image without a type",
        {"content": [{"type": "image", "data": "data:image/png;base64,AAAA"}]},
        "[image: image/png, 19 bytes]",
    ),
    ("deep", {"structuredContent": json.loads("[" * 150 + "]" * 150)}, "[" * 150 + "]" * 150),
    (
        "newlines",
        {"content": [{"type": "text", "text": "a\u2028b\x85c\r\nd"}]},
        "a\u2028b\x85c\r\nd",
    ),
]


def as_event(result: Callable[[JSON], JSON]) -> Fault:
    """Sends a result in a stream of events, with the characters themselves."""

    async def fault(wire: RawExchange) -> None:
        answer = {"jsonrpc": "2.0", "id": str(wire.request.body["id"])}
        encoded = json.dumps({**answer, "result": result(wire.request.body)})
        data = encoded.replace("\\u2028", "\u2028").replace("\\u0085", "\x85")
        ping = b': ping\n\nevent: message\ndata: {"jsonrpc":"2.0","method":"notifications/x"}\n\n'
        await wire.answer(
            200,
            {"content-type": "text/event-stream; charset=utf-8"},
            ping + f"event: message\nid: 1\ndata: {data}\n\n".encode(),
        )

    return fault


@pytest.mark.parametrize("name", ["plain", "old"])
@pytest.mark.parametrize("fault_of", [rpc_result, as_event])
async def test_a_result_that_exists_is_never_lost(
    mcp_servers: McpServers, name: str, fault_of: Callable[..., Fault]
) -> None:
    results = {case: result for case, result, _ in RESULTS}
    fault = fault_of(lambda body: results[body["params"]["arguments"]["text"]])
    async with open_run(mcp_servers.url_with_fault(name, "tools/call", fault)) as run:
        await run.prepare()
        for case, _, output in RESULTS:
            result = await run.call("echo", {"text": case})
            assert not isinstance(result, ToolCallError), case
            assert (result.failed, result.fields) == (False, {"output": output}), case


async def test_bytes_that_are_not_json_to_the_letter_are_read(mcp_servers: McpServers) -> None:
    sent = b'\xef\xbb\xbf{"jsonrpc":"2.0","id":"%d","result":{"content":["\xff"]}}'

    async def fault(wire: RawExchange) -> None:
        await wire.answer(
            200,
            {"content-type": "Application/JSON; charset=UTF-8"},
            sent % wire.request.body["id"],
        )

    async with open_run(mcp_servers.url_with_fault("plain", "tools/call", fault)) as run:
        await run.prepare()
        result = await run.call("echo", {"text": "x"})
    assert result.fields == {"output": "\ufffd"}


async def test_arguments_reach_the_server_as_the_model_wrote_them(mcp_servers: McpServers) -> None:
    url = mcp_servers.url("plain")
    async with open_run(url) as run:
        await run.prepare()
        for number in ("123456789012345678901234567890", "18446744073709551615", "1.5"):
            await run.call("echo", f'{{"text": {number}}}')
            request = mcp_servers.requests_to(url, "tools/call")[-1]
            assert json.dumps(request.body["params"]["arguments"]["text"]) == number


async def test_an_odd_handshake_opens_the_session(mcp_servers: McpServers) -> None:
    handshake = {"protocolVersion": "2025-06-18", "capabilities": None, "serverInfo": {"name": 5}}
    answers = {"initialize": handshake, "tools/list": {"tools": [listed("good")]}}

    async def fault(wire: RawExchange) -> None:
        if wire.request.rpc not in answers:
            refusal = http_answer(202 if wire.request.rpc.startswith("notifications") else 404)
            await refusal(wire)
            return
        await rpc_result(answers[wire.request.rpc])(wire)

    async with open_run(mcp_servers.url_with_fault("old", "*", fault)) as run:
        (listing,) = await run.prepare()
    assert listing["tools"]


async def test_an_invalid_schema_in_the_history_is_replaced() -> None:
    provider = McpToolProvider(
        tool("http://127.0.0.1:1/"), ToolContext(settings(), EgressPolicy(LOCAL))
    )
    listing = {
        "type": "mcp_list_tools",
        "status": "completed",
        "server_label": "it",
        "tools": [{"name": "a", "input_schema": 7}, {"name": "b"}],
    }
    provider.pending([listing])
    assert [dict(function.parameters) for function in provider.functions()] == [
        {"type": "object", "properties": {}}
    ] * 2


# --- cancels, and leftovers ---


@pytest.mark.parametrize(("name", "transport"), TRANSPORTS)
async def test_a_cancelled_call_closes_its_request_at_once(
    mcp_servers: McpServers, name: str, transport: Transport
) -> None:
    url = mcp_servers.url_with_fault(name, "tools/call", hang, transport)
    async with open_run(url) as run:
        await run.prepare()
        call = asyncio.create_task(run.call("echo", {"text": "x"}))
        await until(lambda: mcp_servers.requests_to(url, "tools/call"))
        call.cancel()
        await asyncio.wait({call}, timeout=1)
        assert call.cancelled()
        await run.toolbox.close()
        await until(lambda: mcp_servers.requests_to(url, "tools/call")[0].closed_by_client)


async def test_closed_sessions_leave_no_task_and_no_descriptor(mcp_servers: McpServers) -> None:
    async def run_session(number: int) -> None:
        fault = (break_off, http_answer(500), hang_in_answer)[number % 3]
        method = ("tools/call", "GET", "nothing")[number % 3]
        config = settings(tools=ToolSettings(time=timedelta(seconds=30)))
        name, transport = TRANSPORTS[number % 3]
        async with open_run(
            mcp_servers.url_with_fault(name, method, fault, transport), config=config
        ) as run:
            await run.prepare()
            await asyncio.gather(
                run.call("echo", {"text": "x"}), run.call("weather", {"city": "x"})
            )

    await run_session(0)  # creates what the process needs only once
    process = psutil.Process()
    other_tasks = {id(task) for task in asyncio.all_tasks()}
    descriptors = process.num_fds()
    for start in range(0, 60, 12):
        await asyncio.gather(*(run_session(number) for number in range(start, start + 12)))

    def open_tasks() -> list[str]:
        return [
            repr(task)
            for task in asyncio.all_tasks()
            if id(task) not in other_tasks and "worker/tools" in repr(task) and not task.done()
        ]

    await until(lambda: not open_tasks())
    # The servers run in this process too, and close their sockets a moment later.
    await until(lambda: process.num_fds() <= descriptors + 3)


# --- the guard ---


class FakeResolver(AbstractResolver):
    """A resolver that returns these addresses in turn; the last one is repeated."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = list(addresses)
        self.lookups = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self._addresses[min(self.lookups, len(self._addresses) - 1)]
        self.lookups += 1
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=family,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
        ]

    async def close(self) -> None:
        """Nothing to close."""


def provider_with(resolver: AbstractResolver, url: str) -> McpToolProvider:
    return McpToolProvider(tool(url), ToolContext(settings(), EgressPolicy(LOCAL)), resolver)


LISTING: JSON = {
    "id": "mcpl_1",
    "type": "mcp_list_tools",
    "status": "in_progress",
    "server_label": "it",
    "tools": [],
}


async def test_a_host_name_is_checked_by_the_address_of_the_connection(
    mcp_servers: McpServers,
) -> None:
    port = mcp_servers.url("plain").split(":")[2].split("/")[0]
    resolver = FakeResolver("127.0.0.1")
    provider = provider_with(resolver, f"http://mcp.example.test:{port}/plain/mcp")
    result = await provider.run(LISTING)
    # The SDK's server refuses an unknown Host header, so the connection was made.
    assert "HTTP 421" in result.fields["error"]
    assert resolver.lookups > 0
    await provider.close()


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:169.254.169.254",
        "192.168.0.1",
        "0.0.0.0",
        "fd00::1",
    ],
)
async def test_a_host_name_with_an_internal_address_is_refused(address: str) -> None:
    provider = provider_with(FakeResolver(address), "http://mcp.example.test/mcp")
    result = await provider.run(LISTING)
    assert NOT_REACHED in result.fields["error"]
    assert address not in result.fields["error"]
    await provider.close()


async def test_a_host_name_that_changes_its_address_is_checked_again(
    mcp_servers: McpServers,
) -> None:
    """The first lookup is allowed, later ones are internal: each new connection is checked."""
    port = mcp_servers.url("plain").split(":")[2].split("/")[0]
    resolver = FakeResolver("127.0.0.1", "10.0.0.1")
    provider = provider_with(resolver, f"http://localhost:{port}/plain/mcp")
    requests_before = len(mcp_servers.requests)
    new_requests: Callable[[], int] = lambda: len(mcp_servers.requests) - requests_before  # noqa: E731
    provider._settings = McpSettings(connect=timedelta(seconds=5))
    await provider.run(LISTING)  # uses the one connection that was checked
    assert (new_requests(), resolver.lookups) == (2, 1)
    await provider.close()
    assert NOT_REACHED in (await provider.run(LISTING)).fields["error"]
    assert new_requests() == 2
    await provider.close()
