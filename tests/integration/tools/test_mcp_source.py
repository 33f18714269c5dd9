"""An MCP server as a source of tools: what it answers, how it may fail, and that nothing it does holds a response for ever.

These tests speak to real servers, without the rest of the product: tests/integration/tools/test_mcp.py has the whole.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import psutil
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from models.config.groups import EgressSettings, McpSettings, ToolSettings
from models.config.settings import Settings
from models.egress import EgressPolicy
from models.errors import ToolFailed
from tests.support.api import until
from tests.support.mcp_servers import (
    PIXEL,
    Fault,
    McpServers,
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
from worker.tools.mcp import McpToolProvider
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
class Asked:
    """One response's toolbox with one MCP server, and the history it has made so far."""

    toolbox: Toolbox
    history: list[JSON] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    async def prepare(self) -> list[JSON]:
        """Runs all that is due until nothing is; gives back the items."""
        done: list[JSON] = []
        while openings := self.toolbox.pending(self.history):
            for opening in openings:
                call = opening(0, lambda prefix: f"{prefix}_{next(self._numbers)}")
                call.open_events()
                call.arguments_done()
                found = await self.toolbox.run(call.to_json())
                failed = isinstance(found, ToolCallError) or found.failed
                call.result(
                    call.failure_fields(str(found))
                    if isinstance(found, ToolCallError)
                    else found.fields,
                    failed=failed,
                )
                self.history.append(call.to_json())
                done.append(call.to_json())
        return done

    async def call(self, name: str, arguments: JSON | str) -> ToolResult | ToolCallError:
        """Calls a tool of the server."""
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return await self.toolbox.run(item(name, written))


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
async def asking(
    url: str, *, sealed: JSON | None = None, config: Settings | None = None, **more: Any
) -> Any:
    chosen = config or settings()
    toolbox = Toolbox(
        [tool(url, **more)],
        ToolContext(chosen, EgressPolicy(chosen.egress), {"it": sealed or {}}),
        {"mcp": McpToolProvider},
    )
    try:
        yield Asked(toolbox)
    finally:
        await toolbox.close()


Asking = AbstractAsyncContextManager[Asked]

WAYS: list[tuple[str, Transport]] = [("plain", "mcp"), ("old", "mcp"), ("plain", "sse")]


@pytest.mark.parametrize(("name", "transport"), WAYS)
async def test_tools_are_listed_and_called_over_every_transport(
    mcp_servers: McpServers, name: str, transport: Transport
) -> None:
    async with asking(mcp_servers.url(name, transport)) as it:
        (listing,) = await it.prepare()
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
        assert (await it.call("echo", {"text": "grün \U0001f600"})).fields == {
            "output": "grün \U0001f600"
        }


async def test_a_session_is_opened_once_and_closed_at_the_end(mcp_servers: McpServers) -> None:
    url = mcp_servers.url_with_fault("old", "nothing", hang)
    async with asking(url) as it:
        await it.prepare()
        for _ in range(3):
            await it.call("echo", {"text": "x"})
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


async def test_a_session_that_the_server_forgot_is_opened_again_once(
    mcp_servers: McpServers,
) -> None:
    url = mcp_servers.url_with_fault("old", "nothing", hang)
    async with asking(url) as it:
        await it.prepare()
        mcp_servers.forget_sessions()
        assert (await it.call("echo", {"text": "again"})).fields == {"output": "again"}
    assert len(mcp_servers.requests_to(url, "initialize")) == 2


async def test_a_listing_in_the_history_is_not_asked_for_again(mcp_servers: McpServers) -> None:
    url = mcp_servers.url_with_fault("plain", "nothing", hang)
    async with asking(url) as it:
        (listing,) = await it.prepare()
    async with asking(url) as later:
        later.history = [listing]
        assert await later.prepare() == []
        assert "echo" in later.toolbox.server_functions()
        assert (await later.call("echo", {"text": "x"})).fields == {"output": "x"}
    assert len(mcp_servers.requests_to(url, "tools/list")) == 1


async def test_all_pages_of_a_long_list_are_read(mcp_servers: McpServers) -> None:
    async with asking(mcp_servers.url("many")) as it:
        (listing,) = await it.prepare()
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
async def test_only_allowed_tools_are_shown_offered_and_called(
    mcp_servers: McpServers, allowed: Any, names: set[str]
) -> None:
    async with asking(mcp_servers.url("plain"), allowed_tools=allowed) as it:
        (listing,) = await it.prepare()
        assert {entry["name"] for entry in listing["tools"]} == names
        assert set(it.toolbox.server_functions()) == names
        assert "no tool 'weather'" in str(await it.call("weather", {"city": "Rome"}))


async def test_credentials_are_sent_with_every_request_as_they_were_given(
    mcp_servers: McpServers,
) -> None:
    plain = mcp_servers.url_with_fault("old", "nothing", hang)
    for sealed, sent in (
        ({"authorization": "t0ken"}, "Bearer t0ken"),
        ({"authorization": "Basic abc"}, "Basic abc"),
        ({"headers": {"Authorization": "Custom x", "X-Tenant": "42"}}, "Custom x"),
    ):
        before = len(mcp_servers.requests)
        async with asking(plain, sealed=sealed) as it:
            await it.prepare()
        requests = mcp_servers.requests[before:]
        assert {request.headers["authorization"] for request in requests} == {sent}
        assert len(requests) > 3
        if "headers" in sealed:
            assert {request.headers["x-tenant"] for request in requests} == {"42"}


@pytest.mark.parametrize("transport", ["mcp", "sse"])
async def test_a_server_that_wants_a_token(mcp_servers: McpServers, transport: Transport) -> None:
    url = mcp_servers.url_with_token("plain", "t0ken", transport)
    async with asking(url) as it:
        with pytest.raises(ToolFailed, match="'it'") as failure:
            await it.prepare()
        assert failure.value.status == 401
    async with asking(url, sealed={"authorization": "t0ken"}) as it:
        assert (await it.prepare())[0]["status"] == "completed"


# --- results ---


async def test_results_of_every_kind_become_one_text(mcp_servers: McpServers) -> None:
    async with asking(mcp_servers.url("plain")) as it:
        await it.prepare()
        assert json.loads((await it.call("weather", {"city": "Rome"})).fields["output"]) == {
            "degrees": 4
        }
        assert (await it.call("only_structured", {})).fields == {"output": '{"answer": 42}'}
        linked = (await it.call("links", {})).fields["output"].splitlines()
        assert linked == [
            "[resource: a.txt at https://example.com/a.txt]",
            "inside",
            "[audio: audio/wav, 6 bytes]",
        ]


async def test_an_image_is_shown_to_the_model_and_named_in_the_output(
    mcp_servers: McpServers,
) -> None:
    async with asking(mcp_servers.url("plain")) as it:
        await it.prepare()
        found = await it.call("picture", {})
    assert found.fields["output"].startswith("a red pixel\n[image: image/png, ")
    words, image = found.tool_output
    assert words == {"type": "input_text", "text": found.fields["output"]}
    assert image["type"] == "input_image"
    assert image["image_url"].startswith(f"data:image/png;base64,{PIXEL[:0].decode()}iVBOR")


async def test_large_texts_and_images_beyond_the_limit_are_left_out(
    mcp_servers: McpServers,
) -> None:
    limits = ToolSettings(time=timedelta(seconds=30), answer=1000, images=2_500_000)
    async with asking(mcp_servers.url("plain"), config=settings(tools=limits)) as it:
        await it.prepare()
        found = await it.call("gallery", {"count": 3})
        refused = await it.call("broken", {"why": "y" * 100_000})
    left_out = "[The rest is left out: the tool's answer was too long.]"
    assert len(found.fields["output"]) < 1100
    assert [part["type"] for part in found.tool_output] == [
        "input_text",
        "input_image",
        "input_image",
        "input_text",
    ]
    assert found.tool_output[3]["text"] == left_out
    assert found.tool_output[0]["text"].endswith(left_out)
    assert len(json.dumps(refused.fields)) < 1300


async def test_a_tools_own_error_is_told_as_such(mcp_servers: McpServers) -> None:
    async with asking(mcp_servers.url("plain")) as it:
        await it.prepare()
        found = await it.call("broken", {"why": "no disk"})
    assert found.failed
    assert found.fields == {
        "error": {
            "type": "mcp_tool_execution_error",
            "content": [{"type": "text", "text": "no disk"}],
        }
    }


@pytest.mark.parametrize("written", ["", "{", "[1]", '"text"', "null", "[" * 1000, '{"a": NaN}'])
async def test_arguments_that_are_no_json_object_do_not_reach_the_server(
    mcp_servers: McpServers, written: str
) -> None:
    url = mcp_servers.url_with_fault("plain", "nothing", hang)
    async with asking(url) as it:
        await it.prepare()
        assert isinstance(await it.call("echo", written), ToolCallError)
    assert not mcp_servers.requests_to(url, "tools/call")


async def test_arguments_that_do_not_fit_the_schema_are_the_tools_to_judge(
    mcp_servers: McpServers,
) -> None:
    async with asking(mcp_servers.url("plain")) as it:
        await it.prepare()
        found = await it.call("echo", {"words": 1})
    assert found.failed
    assert "text" in found.fields["error"]["content"][0]["text"]


# --- servers that misbehave ---


@dataclass(frozen=True, slots=True)
class Bad:
    name: str
    fault: Fault
    words: str
    """In what the model is told of a call."""
    kind: str = "http_error"


NUL_AND_SURROGATES = (
    b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"a\\u0000b"}]}}'
)
BAD = [
    Bad("hangs", hang, "within 2 s", "mcp_tool_execution_error"),
    Bad("hangs in its answer", hang_in_answer, "within 2 s", "mcp_tool_execution_error"),
    Bad("dies in its answer", break_off, "broke off"),
    Bad("dies in its stream", break_off_in_stream, "broke off"),
    Bad(
        "answers 500",
        http_answer(500, b"Traceback (most recent call last)", "text/plain"),
        "HTTP 500",
    ),
    Bad("answers 401 in the middle", http_answer(401), "HTTP 401"),
    Bad("answers 404 without sessions", http_answer(404, b"gone", "text/plain"), "HTTP 404"),
    Bad("redirects to metadata", redirect("http://169.254.169.254/latest/meta-data/"), "HTTP 307"),
    Bad("redirects to itself for ever", redirect("mcp"), "HTTP 307"),
    Bad("redirects a message away", redirect("http://127.0.0.1:1/", 302), "HTTP 302"),
    Bad(
        "answers invalid UTF-8",
        http_answer(200, b'{"jsonrpc": "2.0", "id": 1, "result": "\xff\xfe"}'),
        "not valid",
        "mcp_protocol_error",
    ),
    Bad(
        "answers invalid UTF-8 in a stream",
        http_answer(200, b"data: \xff\xfe\n\n", "text/event-stream"),
        "not valid",
        "mcp_protocol_error",
    ),
    Bad(
        "answers HTML",
        http_answer(200, b"<html>", "text/html"),
        "content type",
        "mcp_protocol_error",
    ),
    Bad("answers an unknown result", rpc_result({"tools": 1}), "not valid", "mcp_protocol_error"),
    Bad("answers a result of no object", rpc_result("fine"), "not valid", "mcp_protocol_error"),
    Bad("answers nothing at all", http_answer(200), "not valid", "mcp_protocol_error"),
    Bad("answers 202 and no more", http_answer(202), "202", "mcp_protocol_error"),
    Bad("refuses", rpc_error(-32601, "Method not found"), "Method not found", "mcp_protocol_error"),
    Bad(
        "refuses with a bad status",
        http_answer(400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"odd"}}'),
        "odd",
        "mcp_protocol_error",
    ),
    Bad("refuses with megabytes", rpc_error(-32000, "x" * 9_000_000), "more than 8388608 bytes"),
    Bad("answers compressed", http_answer(200, b"\x1f\x8b", content_encoding="gzip"), "compressed"),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
async def test_a_bad_answer_to_a_call_is_a_failed_call(mcp_servers: McpServers, bad: Bad) -> None:
    url = mcp_servers.url_with_fault("plain", "tools/call", bad.fault)
    async with asking(url) as it:
        await it.prepare()
        found = await it.call("echo", {"text": "x"})
        told = str(found) if isinstance(found, ToolCallError) else json.dumps(found.fields["error"])
        assert bad.words in told
        assert "Traceback" not in told
        assert "169.254" not in told
        if isinstance(found, ToolResult):
            assert found.failed
            assert found.fields["error"]["type"] == bad.kind


SSE_BAD = [
    bad
    for bad in BAD
    if bad.name
    in (
        "hangs",
        "dies in its answer",
        "answers 500",
        "redirects to metadata",
        "answers invalid UTF-8",
    )
]


@pytest.mark.parametrize("bad", SSE_BAD, ids=lambda bad: bad.name)
async def test_a_bad_answer_over_the_older_transport_is_a_failed_call_too(
    mcp_servers: McpServers, bad: Bad
) -> None:
    async with asking(mcp_servers.url_with_fault("plain", "tools/call", bad.fault, "sse")) as it:
        await it.prepare()
        found = await it.call("echo", {"text": "x"})
        assert isinstance(found, ToolCallError) or found.failed


async def test_a_session_survives_a_bad_answer(mcp_servers: McpServers) -> None:
    url = mcp_servers.url_with_fault("old", "tools/call", break_off)
    async with asking(url) as it:
        await it.prepare()
        for _ in range(3):
            assert "broke off" in json.dumps((await it.call("echo", {"text": "x"})).fields)
    assert len(mcp_servers.requests_to(url, "initialize")) == 1


BAD_LISTS: list[tuple[str, Fault, int]] = [
    ("hangs", hang, 424),
    ("dies", break_off, 424),
    ("answers 500", http_answer(500), 424),
    ("answers 403", http_answer(403), 424),
    ("is away", redirect("http://169.254.169.254/"), 424),
    ("sends invalid UTF-8", http_answer(200, b"\xff"), 424),
    ("lists no list", rpc_result({"tools": "all of them"}), 424),
    (
        "lists what is no schema",
        rpc_result({"tools": [{"name": "a", "inputSchema": "string"}]}),
        424,
    ),
    ("lists without end", rpc_result(lambda body: {"tools": [], "nextCursor": "again"}), 424),
    (
        "lists too much",
        rpc_result(
            {"tools": [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(2000)]}
        ),
        424,
    ),
    (
        "lists too large",
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
async def test_without_its_list_a_server_is_of_no_use(
    mcp_servers: McpServers, _name: str, fault: Fault, status: int
) -> None:
    async with asking(mcp_servers.url_with_fault("old", "tools/list", fault)) as it:
        with pytest.raises(ToolFailed, match="'it'") as failure:
            await it.prepare()
    assert failure.value.status == status
    (listing,) = it.history
    assert (listing["status"], listing["tools"]) == ("failed", [])
    assert listing["error"]


async def test_what_a_server_calls_a_schema_is_handed_on(mcp_servers: McpServers) -> None:
    lies = {
        "type": "object",
        "properties": {"n": {"type": "nonsense", "minimum": "many"}},
        "x\x00y": "a\x00b",
    }
    fault = rpc_result(
        {
            "tools": [
                {"name": "odd tool!", "inputSchema": lies, "description": "a\x00b"},
                {"name": "odd tool!", "inputSchema": {"type": "object"}},
            ]
        }
    )
    async with asking(mcp_servers.url_with_fault("old", "tools/list", fault)) as it:
        (listing,) = await it.prepare()
        ((spoken, function),) = it.toolbox.server_functions().items()
    cleaned = {
        "type": "object",
        "properties": {"n": {"type": "nonsense", "minimum": "many"}},
        "x�y": "a�b",
    }
    assert listing["tools"] == [
        {"name": "odd tool!", "input_schema": cleaned, "description": "a�b"}
    ]
    assert function.parameters == cleaned
    assert spoken.replace("_", "").replace("-", "").isalnum()
    assert len(spoken) <= 64


async def test_a_history_may_call_anything_a_schema() -> None:
    source = McpToolProvider(
        tool("http://127.0.0.1:1/"), ToolContext(settings(), EgressPolicy(LOCAL))
    )
    listing = {
        "type": "mcp_list_tools",
        "status": "completed",
        "server_label": "it",
        "tools": [{"name": "a", "input_schema": 7}, {"name": "b"}],
    }
    source.pending([listing])
    assert [dict(function.parameters) for function in source.functions()] == [
        {"type": "object", "properties": {}}
    ] * 2


# --- cancelling, and what is left behind ---


@pytest.mark.parametrize(("name", "transport"), WAYS)
async def test_a_cancelled_call_closes_its_request_at_once(
    mcp_servers: McpServers, name: str, transport: Transport
) -> None:
    url = mcp_servers.url_with_fault(name, "tools/call", hang, transport)
    async with asking(url) as it:
        await it.prepare()
        call = asyncio.create_task(it.call("echo", {"text": "x"}))
        await until(lambda: mcp_servers.requests_to(url, "tools/call"))
        call.cancel()
        await asyncio.wait({call}, timeout=1)
        assert call.cancelled()
        await it.toolbox.close()
        await until(lambda: mcp_servers.requests_to(url, "tools/call")[0].closed_by_client)


async def test_nothing_is_left_of_many_sessions(mcp_servers: McpServers) -> None:
    async def one(number: int) -> None:
        fault = (break_off, http_answer(500), hang_in_answer)[number % 3]
        method = ("tools/call", "GET", "nothing")[number % 3]
        config = settings(tools=ToolSettings(time=timedelta(seconds=30)))
        name, transport = WAYS[number % 3]
        async with asking(
            mcp_servers.url_with_fault(name, method, fault, transport), config=config
        ) as it:
            await it.prepare()
            await asyncio.gather(it.call("echo", {"text": "x"}), it.call("weather", {"city": "x"}))

    await one(0)  # what is made once for the process
    us = psutil.Process()
    theirs = {id(task) for task in asyncio.all_tasks()}
    descriptors = us.num_fds()
    for start in range(0, 60, 12):
        await asyncio.gather(*(one(number) for number in range(start, start + 12)))

    def ours() -> list[str]:
        return [
            repr(task)
            for task in asyncio.all_tasks()
            if id(task) not in theirs and "worker/tools" in repr(task) and not task.done()
        ]

    await until(lambda: not ours())
    # the servers' own sockets close a moment after ours: both ends are in this process
    await until(lambda: us.num_fds() <= descriptors + 3)


# --- the guard ---


class Answers(AbstractResolver):
    """A resolver that answers something else each time."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = list(addresses)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self._addresses[min(self.asked, len(self._addresses) - 1)]
        self.asked += 1
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


def through(resolver: AbstractResolver, url: str) -> McpToolProvider:
    return McpToolProvider(tool(url), ToolContext(settings(), EgressPolicy(LOCAL)), resolver)


LISTING: JSON = {
    "id": "mcpl_1",
    "type": "mcp_list_tools",
    "status": "in_progress",
    "server_label": "it",
    "tools": [],
}


async def test_a_name_is_judged_by_the_address_that_is_connected_to(
    mcp_servers: McpServers,
) -> None:
    port = mcp_servers.url("plain").split(":")[2].split("/")[0]
    resolver = Answers("127.0.0.1")
    source = through(resolver, f"http://mcp.example.test:{port}/plain/mcp")
    found = await source.run(LISTING)
    assert (
        "HTTP 421" in found.fields["error"]
    )  # the SDK's server itself refuses a Host it does not know
    assert resolver.asked > 0
    await source.close()


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
async def test_a_name_that_leads_inside_is_refused(address: str) -> None:
    source = through(Answers(address), "http://mcp.example.test/mcp")
    found = await source.run(LISTING)
    assert "not on the public internet" in found.fields["error"]
    assert address not in found.fields["error"]
    await source.close()


async def test_a_name_that_changes_its_answer_gains_nothing(mcp_servers: McpServers) -> None:
    """The first look-up leads to an allowed address, the next ones inside: each connection is judged by its own."""
    port = mcp_servers.url("plain").split(":")[2].split("/")[0]
    resolver = Answers("127.0.0.1", "10.0.0.1")
    source = through(resolver, f"http://localhost:{port}/plain/mcp")
    asked_before = len(mcp_servers.requests)
    found: Callable[[], int] = lambda: len(mcp_servers.requests) - asked_before  # noqa: E731 - read twice
    source._settings = McpSettings(connect=timedelta(seconds=5))
    await source.run(LISTING)  # over the one connection that was judged, and is kept
    assert (found(), resolver.asked) == (2, 1)
    await source.close()
    assert "not on the public internet" in (await source.run(LISTING)).fields["error"]
    assert found() == 2
    await source.close()
