"""Real MCP servers of the official SDK over HTTP on 127.0.0.1; faults are added around them.

    async with McpServers() as servers:
        servers.url("plain")          # the `server_url` for streamable HTTP
        servers.url("plain", "sse")                    # the same over the older SSE transport
        servers.url("counting")  # tools that record every call in `servers.counting`
        servers.url("many")                            # 300 tools on 6 pages
        servers.url("old")                             # only the protocol up to 2025-11-25
        servers.guarded("plain", "s3cret")             # 401 without `Authorization: Bearer s3cret`
        servers.spoiled("plain", "tools/call", hang)   # as `plain`, with a fault at this method

Every HTTP request is kept in `servers.requests`, with the moment at which the client closed if
its answer was not complete.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import mcp_types as types
import uvicorn
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.mcpserver import Image
from mcp.server.sse import SseServerTransport
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.support.api import JSON
from tests.support.many_tools import SERVERS, server_tools

Transport = Literal["mcp", "sse"]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
"""A red PNG of one pixel."""

_FIRST_SESSIONLESS_VERSION = "2026-07-28"
"""From this version on the protocol has no handshake and no sessions."""


# What is recorded.


@dataclass(slots=True, eq=False)
class CountedCall:
    """One call of a counting tool. Moments are `time.monotonic()`."""

    tool: str
    arguments: JSON
    started: float
    finished: float | None = None
    cancelled: float | None = None
    """When the server learned that the client no longer waits for the result."""


class ToolCallLog:
    """The log of the counting tools, and the events that hold their calls open."""

    def __init__(self) -> None:
        self.calls: list[CountedCall] = []
        self._gates: dict[str, asyncio.Event] = {}

    def calls_with(self, key: str) -> list[CountedCall]:
        """The calls with this key, in order of their start."""
        return [call for call in self.calls if call.arguments.get("key") == key]

    def hold(self, key: str) -> asyncio.Event:
        """Returns an event. Calls with this key do not return before it is set."""
        return self._gates.setdefault(key, asyncio.Event())

    async def record(self, tool: str, arguments: JSON) -> str:
        """Runs a counting tool. The call is logged before anything else."""
        call = CountedCall(tool, arguments, time.monotonic())
        self.calls.append(call)
        key = str(arguments.get("key"))
        try:
            if key in self._gates:
                await self._gates[key].wait()
        except BaseException:
            call.cancelled = time.monotonic()
            raise
        call.finished = time.monotonic()
        return f"{tool} {key}: call {len(self.calls_with(key))}"


@dataclass(slots=True, eq=False)
class McpRequest:
    """One HTTP request. Moments are `time.monotonic()`."""

    server: str
    http_method: str
    headers: dict[str, str]
    """Names in lower case."""
    body: JSON
    """The JSON-RPC message; empty for GET and DELETE."""
    started: float
    closed_by_client: float | None = None
    """When the client closed the connection before the answer was complete."""
    finished: float | None = None

    @property
    def rpc(self) -> str:
        """The JSON-RPC method, such as `tools/call`."""
        return str(self.body.get("method", ""))


# Faults on the wire.


@dataclass(frozen=True, slots=True)
class RawExchange:
    """A request that a fault answers."""

    request: McpRequest
    receive: Receive
    send: Send

    async def answer(
        self, status: int, headers: Mapping[str, str], body: bytes, *, whole: bool = True
    ) -> None:
        """Sends an answer. If not `whole`, the connection ends after these bytes."""
        fields = [(name.encode(), value.encode()) for name, value in headers.items()]
        length = [] if whole else [(b"content-length", b"%d" % (len(body) + 1000))]
        await self.send(
            {"type": "http.response.start", "status": status, "headers": fields + length}
        )
        await self.send({"type": "http.response.body", "body": body, "more_body": not whole})


Fault = Callable[[RawExchange], Awaitable[None]]


async def hang(exchange: RawExchange) -> None:
    """Sends nothing until the client closes the connection."""
    while (await exchange.receive())["type"] != "http.disconnect":
        continue


async def hang_in_answer(exchange: RawExchange) -> None:
    """Sends the head of an event stream, then nothing until the client closes the connection."""
    await exchange.send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"text/event-stream")],
        }
    )
    await exchange.send(
        {"type": "http.response.body", "body": b": here I am\n\n", "more_body": True}
    )
    await hang(exchange)


async def break_off(exchange: RawExchange) -> None:
    """Sends half a JSON answer and ends the connection."""
    await exchange.answer(
        200, {"content-type": "application/json"}, b'{"jsonrpc": "2.0", "id": ', whole=False
    )


async def break_off_in_stream(exchange: RawExchange) -> None:
    """Sends half an event of a stream and ends the connection."""
    await exchange.answer(
        200,
        {"content-type": "text/event-stream"},
        b'event: message\ndata: {"jsonrpc": "2.0"',
        whole=False,
    )


def http_answer(
    status: int, body: bytes = b"", content_type: str = "application/json", **headers: str
) -> Fault:
    """Sends this answer."""

    async def fault(wire: RawExchange) -> None:
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        await wire.answer(status, {"content-type": content_type, **more}, body)

    return fault


def redirect(location: str, status: int = 307) -> Fault:
    """Sends a redirect."""
    return http_answer(status, location=location)


def rpc_result(result: object | Callable[[JSON], object]) -> Fault:
    """Sends a JSON-RPC result that no SDK has checked.

    A callable receives the request's message.
    """

    async def fault(wire: RawExchange) -> None:
        value_sent = result(wire.request.body) if callable(result) else result
        body = {"jsonrpc": "2.0", "id": wire.request.body.get("id"), "result": value_sent}
        await wire.answer(200, {"content-type": "application/json"}, json.dumps(body).encode())

    return fault


def rpc_error(code: int, message: str) -> Fault:
    """Sends a JSON-RPC error."""

    async def fault(wire: RawExchange) -> None:
        body = {
            "jsonrpc": "2.0",
            "id": wire.request.body.get("id"),
            "error": {"code": code, "message": message},
        }
        await wire.answer(200, {"content-type": "application/json"}, json.dumps(body).encode())

    return fault


# The servers.

_FILES = {"admin": ["report.txt", "salaries.txt"], "guest": ["report.txt"]}
_ROLES = {"user_4711": "admin", "user_0815": "guest"}


def _plain() -> Server[Any]:
    """Three tools that need each other's results, and tools with every kind of result."""
    server = MCPServer("plain", instructions="Tools for tests.", log_level="CRITICAL")
    read_only = types.ToolAnnotations(read_only_hint=True)

    @server.tool(annotations=read_only)
    def get_user_id(username: str) -> str:
        """The id of a user."""
        return {"alice": "user_4711", "bob": "user_0815"}[username]

    @server.tool(annotations=read_only)
    def get_user_permissions(user_id: str) -> str:
        """The permissions of the user with this id."""
        return _ROLES[user_id]

    @server.tool(annotations=read_only)
    def check_file_access(permissions: str, filename: str) -> str:
        """Whether these permissions allow to read a file: yes or no."""
        return "yes" if filename in _FILES[permissions] else "no"

    _add_results(server)
    return server._lowlevel_server


def _add_results(server: MCPServer[Any]) -> None:
    """Adds tools with every kind of result."""

    @server.tool(structured_output=False)
    def echo(text: str) -> str:
        """Says the same."""
        return text

    @server.tool(structured_output=False)
    def picture() -> list[Any]:
        """An image and text about it."""
        return ["a red pixel", Image(data=PIXEL, format="png")]

    @server.tool(structured_output=False)
    def gallery(count: int) -> list[Any]:
        """That many images of a MiB each, and as much text."""
        image = types.ImageContent(
            type="image", data=base64.b64encode(bytes(3 * 262144)).decode(), mime_type="image/png"
        )
        return ["x" * 1048576, *[image] * count]

    @server.tool()
    def weather(city: str) -> dict[str, int]:
        """The weather as structured content."""
        return {"degrees": len(city)}

    @server.tool()
    def only_structured() -> types.CallToolResult:
        """Structured content without text."""
        return types.CallToolResult(content=[], structured_content={"answer": 42})

    @server.tool(structured_output=False)
    def links() -> list[Any]:
        """A result that is neither text nor image."""
        resource = types.TextResourceContents(
            uri="file:///notes.txt", text="inside", mime_type="text/plain"
        )
        return [
            types.ResourceLink(type="resource_link", uri="https://example.com/a.txt", name="a.txt"),
            types.EmbeddedResource(type="resource", resource=resource),
            types.AudioContent(
                type="audio", data=base64.b64encode(b"RIFF").decode(), mime_type="audio/wav"
            ),
        ]

    @server.tool()
    def broken(why: str) -> types.CallToolResult:
        """A tool that returns an error."""
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=why)], is_error=True
        )

    @server.tool(structured_output=False)
    def megabytes(count: int) -> str:
        """That many MiB of text."""
        return "0123456789abcdef" * (count * 65536)


def _server_with(
    tools: list[types.Tool],
    call: Callable[[str, JSON], Awaitable[str]],
    *,
    page: int = 1000,
    ttl_ms: int = 0,
) -> Server[Any]:
    """A server with these tools, listed `page` at a time."""

    async def list_tools(
        _: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        first = int(params.cursor) if params is not None and params.cursor is not None else 0
        last = first + page
        return types.ListToolsResult(
            tools=tools[first:last],
            next_cursor=str(last) if last < len(tools) else None,
            ttl_ms=ttl_ms,
        )

    async def call_tool(
        _: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        answer_text = await call(params.name, params.arguments or {})
        return types.CallToolResult(content=[types.TextContent(type="text", text=answer_text)])

    return Server("listed", on_list_tools=list_tools, on_call_tool=call_tool)


COUNTING_TOOLS = ("count_unsafe", "count_read_only", "count_idempotent")
"""The counting tools. Each takes `{"key": string}` and ignores other arguments."""


def _counting(log: ToolCallLog) -> Server[Any]:
    schema = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
    hints = (
        None,
        types.ToolAnnotations(read_only_hint=True),
        types.ToolAnnotations(idempotent_hint=True),
    )
    tools = [
        types.Tool(name=name, description="Counts.", input_schema=schema, annotations=hint)
        for name, hint in zip(COUNTING_TOOLS, hints, strict=True)
    ]
    return _server_with(tools, log.record)


def _many() -> Server[Any]:
    async def call(name: str, _: JSON) -> str:
        return name

    schema = {"type": "object", "properties": {}}
    tools = [
        types.Tool(name=f"tool_{number:03}", description=f"Tool {number}.", input_schema=schema)
        for number in range(300)
    ]
    return _server_with(tools, call, page=50)


def _catalog(label: str) -> Server[Any]:
    """One of the servers with 64 tools (tests/support/many_tools.py). Its list may be kept."""

    async def call(name: str, _: JSON) -> str:
        return f"{label} has done {name}"

    tools = [types.Tool.model_validate(tool) for tool in server_tools(label)]
    return _server_with(tools, call, ttl_ms=600_000)


def _sse_app(server: Server[Any]) -> ASGIApp:
    """The older transport: events on GET `/sse`, messages on POST `/messages/`."""
    transport = SseServerTransport("/messages/")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await transport.handle_post_message(scope, receive, send)
            return
        with contextlib.suppress(asyncio.CancelledError):
            async with transport.connect_sse(scope, receive, send) as (read, write):
                await server.run(read, write, server.create_initialization_options())

    return app


class McpServers:
    """All servers behind one HTTP port, in the event loop of the tests."""

    def __init__(self) -> None:
        self.tool_calls = ToolCallLog()
        self.requests: list[McpRequest] = []
        self.faults: list[BaseException] = []
        """Errors of the servers themselves, without the faults that tests add."""
        self._servers = {
            "plain": _plain(),
            "counting": _counting(self.tool_calls),
            "many": _many(),
            "old": _plain(),
            **{label: _catalog(label) for label in SERVERS},
        }
        self._apps: dict[tuple[str, str], ASGIApp] = {}
        self._aliases: dict[str, tuple[str, dict[str, Fault]]] = {}
        """Name -> (server, JSON-RPC or HTTP method -> fault)."""
        self._required_tokens: dict[str, str] = {}
        """Name -> the bearer token it requires."""
        self._forgotten_sessions: set[str] = set()
        self._sessions: set[str] = set()
        self._numbers = itertools.count(1)
        self._port = 0
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        # one task from beginning to end: the SDK's task groups must be left by the task that
        # entered them
        self._task = asyncio.create_task(self._serve())
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait({self._task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            self._task.result()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._stop.set()
        await self._task

    def url(self, name: str, transport: Transport = "mcp") -> str:
        """The address of a server; `old` speaks streamable HTTP only."""
        return f"http://127.0.0.1:{self._port}/{name}/{transport}"

    def url_with_token(self, name: str, token: str, transport: Transport = "mcp") -> str:
        """The address of the same server behind a bearer token."""
        alias = f"{name}-{next(self._numbers)}"
        self._aliases[alias] = (name, {})
        self._required_tokens[alias] = token
        return self.url(alias, transport)

    def url_with_fault(
        self, name: str, method: str, fault: Fault, transport: Transport = "mcp"
    ) -> str:
        """The address of the same server with a fault at one JSON-RPC method, at `GET`, `DELETE`,
        or `*` (all).
        """
        alias = f"{name}-{next(self._numbers)}"
        self._aliases[alias] = (name, {method: fault})
        return self.url(alias, transport)

    def forget_sessions(self) -> None:
        """Forgets all sessions, as a restart does: they answer 404."""
        self._forgotten_sessions |= self._sessions

    def requests_to(self, url: str, rpc: str | None = None) -> list[McpRequest]:
        """The requests to this address so far; with `method` only those for this one."""
        name = url.split("/")[3]
        return [
            request
            for request in self.requests
            if request.server == name and (rpc is None or request.rpc == rpc)
        ]

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as running:
            for name, server in self._servers.items():
                # the handlers hold requests open on purpose: an idle time or a cap of sessions
                # would be a fault that no test wants
                self._apps[name, "mcp"] = server.streamable_http_app(
                    streamable_http_path="/mcp",
                    json_response=name == "many",
                    session_idle_timeout=None,
                    max_sessions=None,
                )
                await running.enter_async_context(server.session_manager.run())
                self._apps[name, "sse"] = _sse_app(server)
            with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
                self._port = listening.getsockname()[1]
                await self._answer_until_stopped(listening)

    async def _answer_until_stopped(self, listening: socket.socket) -> None:
        http = _NoSignalsServer(
            uvicorn.Config(
                self._app,
                interface="asgi3",
                log_config=None,
                lifespan="off",
                timeout_graceful_shutdown=1,
                ws="none",
            )
        )
        serving = asyncio.create_task(http.serve([listening]))
        self._ready.set()
        await self._stop.wait()
        http.should_exit = True
        await serving

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, _, rest = scope["path"].removeprefix("/").partition("/")
        headers = {key.decode().lower(): value.decode("latin-1") for key, value in scope["headers"]}
        body = await _body(receive)
        request = McpRequest(name, scope["method"], headers, _message(body), time.monotonic())
        self.requests.append(request)
        watched = _TrackedRequest(request, body, receive, send)
        served, faults = self._aliases.get(name, (name, {}))
        try:
            if (refusal := self._refusal(request, served)) is not None:
                await refusal(watched.exchange())
            elif (
                fault := faults.get(request.rpc)
                or faults.get(request.http_method)
                or faults.get("*")
            ) is not None:
                await fault(watched.exchange())
            else:
                app = self._apps[served, "mcp" if rest == "mcp" else "sse"]
                await app({**scope, "root_path": f"/{name}"}, watched.receive, watched.send)
        except Exception as fault_of_ours:
            if "response already completed" in str(fault_of_ours):
                return  # the SDK's SSE server answers a client that has left
            self.faults.append(fault_of_ours)
            raise
        self._remember_session(watched)

    def _refusal(self, request: McpRequest, server: str) -> Fault | None:
        token = self._required_tokens.get(request.server)
        if token is not None and request.headers.get("authorization") != f"Bearer {token}":
            return http_answer(401, b'{"error": "invalid_token"}', www_authenticate="Bearer")
        if request.headers.get("mcp-session-id") in self._forgotten_sessions:
            return http_answer(404, b"unknown session", "text/plain")
        if (
            server == "old"
            and request.headers.get("mcp-protocol-version", "") >= _FIRST_SESSIONLESS_VERSION
        ):
            return http_answer(400, b"Bad Request: Unsupported protocol version", "text/plain")
        return None

    def _remember_session(self, tracked: "_TrackedRequest") -> None:
        if tracked.session is not None:
            self._sessions.add(tracked.session)


class _NoSignalsServer(uvicorn.Server):
    """Leaves signals to the test session."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _body(receive: Receive) -> bytes:
    """Reads the whole body: JSON-RPC messages are small."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


def _message(body: bytes) -> JSON:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


class _TrackedRequest:
    """A request whose body was read already.

    It notes when its answer is complete or its client has closed.
    """

    def __init__(self, request: McpRequest, body: bytes, receive: Receive, send: Send) -> None:
        self.session: str | None = None
        self._request = request
        self._body: bytes | None = body
        self._receive = receive
        self._send = send

    def exchange(self) -> RawExchange:
        return RawExchange(self._request, self.receive, self.send)

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        message = await self._receive()
        if message["type"] == "http.disconnect" and self._request.finished is None:
            self._request.closed_by_client = self._request.closed_by_client or time.monotonic()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = {
                bytes(name).lower(): bytes(value) for name, value in message.get("headers", ())
            }
            self.session = headers.get(b"mcp-session-id", b"").decode() or None
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._request.finished = time.monotonic()
