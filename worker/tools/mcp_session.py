"""One session with an MCP server, by the official client: streamable HTTP, or else the older SSE transport (design §11).

A session is held open by a task of its own, because what the SDK enters must be left by the task that entered it. Whoever asks waits for
the answer or for the end of the session, whichever comes first, so nothing that a server does or leaves undone can hold a call for ever.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeVar

import httpx2
import mcp_types as types
from aiohttp.abc import AbstractResolver
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import ValidationError

from models.config.settings import McpSettings
from models.egress import Egress
from models.wire.json_input import storable
from worker.outbound.guarded_http import EXCHANGE, UNREACHED, Exchange, GuardedTransport

_T = TypeVar("_T")
_Transport = AbstractAsyncContextManager[Any]
_NewTransport = Callable[[httpx2.AsyncClient], _Transport]

_NO_SUCH_TRANSPORT = frozenset((400, 404, 405))
"""What a server answers that knows only the older transport (MCP 2025-11-25, transports, backwards compatibility)."""

_SAID_BY_THE_SDK = ("Server returned an error response", "Not Found", "Session terminated")
"""What the SDK makes of an answer with a bad status that says nothing itself."""

OUT_OF_TIME = {
    "type": "http_error",
    "code": 504,
    "message": "The MCP server did not answer in time.",
}
"""The error of a server that hangs."""

_SESSION_ID = "mcp-session-id"
_US = types.Implementation(name="backburner", version=version("backburner"))


@dataclass(frozen=True, slots=True)
class Server:
    """Where an MCP server is, and what proves to it that we may call."""

    url: str
    """In the guard's plain spelling."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class ServerFailed(Exception):
    """No answer that can be used. `error` is a `mcp_call`'s: an MCP protocol error or an HTTP error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error

    @property
    def status(self) -> int | None:
        """The HTTP status, where there was one."""
        return self.error["code"] if self.error["type"] == "http_error" else None


class SessionLost(ServerFailed):
    """The server does not know the session any more, so it has done nothing: it may be asked again, in a new one. This one is closed."""


class Session:
    """A session that is open until `close`, or until its server ends it."""

    def __init__(
        self,
        server: Server,
        egress: Egress,
        settings: McpSettings,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._server = server
        self._egress = egress
        self._settings = settings
        self._resolver = resolver
        self._client: Client | None = None
        self._holder: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[Any]] = set()
        self._leave = asyncio.Event()
        self._id: str | None = None
        self._is_abandoned = False
        """Something was asked and left unanswered: no leave is taken, so that its request is closed at once."""

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self._client is not None and self._holder is not None and not self._holder.done()

    async def open(self) -> None:
        """Connects, by the newer transport or else the older. Raises ServerFailed."""
        try:
            async with asyncio.timeout(self._settings.connect.total_seconds()):
                failed = await self._connect(self._streamable)
                if failed is not None and failed.status in _NO_SUCH_TRANSPORT:
                    failed = _more_telling(failed, await self._connect(self._sse))
        except TimeoutError:
            await self.close(politely=False)
            raise ServerFailed(OUT_OF_TIME) from None
        if failed is not None:
            raise failed

    async def list_tools(self, cursor: str | None) -> types.ListToolsResult:
        """One page of the server's tools. Raises ServerFailed or SessionLost."""
        assert self._client is not None
        return await self._ask(self._client.list_tools(cursor=cursor))

    async def call(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """The result of a call, whether or not the tool says that it failed. Raises ServerFailed or SessionLost."""
        assert self._client is not None
        # not `call_tool`: that lists the tools to compare results with schemas, and refuses those that do not fit
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(name=name, arguments=arguments)
        )
        try:
            return await self._ask(self._client.session.send_request(request, types.CallToolResult))
        except ServerFailed as failed:
            if failed.error["code"] != types.HEADER_MISMATCH or failed.status is not None:
                raise
            # nothing was done: some of the arguments must be repeated as headers, and which ones, only the list says
            await self.list_tools(None)
            return await self._ask(self._client.session.send_request(request, types.CallToolResult))

    async def close(self, *, politely: bool = True) -> None:
        """Ends the session and closes its connections. `politely`: takes leave of the server first, for a second at most."""
        holder, self._holder = self._holder, None
        for asking in self._asking:
            asking.cancel()
        if holder is None:
            return
        if politely and not self._is_abandoned and not holder.done():
            self._leave.set()
            await asyncio.wait({holder}, timeout=self._settings.farewell.total_seconds())
        holder.cancel()
        await asyncio.wait({holder, *self._asking})
        self._client = None

    # --- opening ---

    async def _connect(self, transport: _NewTransport) -> ServerFailed | None:
        """Enters the client over this transport; what went wrong, where something did."""
        exchange = Exchange()
        EXCHANGE.set(exchange)
        opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        holder = self._holder = asyncio.create_task(self._hold(transport, opened))
        holder.add_done_callback(_look_at)
        await asyncio.wait((holder, opened), return_when=asyncio.FIRST_COMPLETED)
        if opened.done():
            self._client = opened.result()
            return None
        self._holder = None
        return _failure(exchange, holder.exception())

    async def _hold(self, transport: _NewTransport, opened: "asyncio.Future[Client]") -> None:
        async with (
            self._http() as http,
            Client(transport(http), cache=None, client_info=_US) as client,
        ):
            opened.set_result(client)
            await self._leave.wait()
            if self._id is not None:
                await http.delete(self._server.url, headers={_SESSION_ID: self._id})

    def _http(self) -> httpx2.AsyncClient:
        connect = self._settings.connect.total_seconds()
        transport = GuardedTransport(
            self._egress, connect=connect, most=self._settings.answer_bytes, resolver=self._resolver
        )
        return httpx2.AsyncClient(
            transport=transport,
            headers=dict(self._server.headers),
            timeout=httpx2.Timeout(
                None
            ),  # clocks stand over everything: here over opening, in worker/tools over each question
            trust_env=False,
            max_redirects=self._settings.redirects,
            event_hooks={"response": [self._note_session]},
        )

    async def _note_session(self, response: httpx2.Response) -> None:
        self._id = response.headers.get(_SESSION_ID, self._id)

    def _streamable(self, http: httpx2.AsyncClient) -> _Transport:
        return streamable_http_client(
            self._server.url,
            http_client=http,
            terminate_on_close=False,
            max_sse_event_size=self._settings.answer_bytes,
        )

    def _sse(self, _: httpx2.AsyncClient) -> _Transport:
        return sse_client(self._server.url, httpx_client_factory=self._http_for_sse)

    def _http_for_sse(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        """The same client: the older transport insists on making its own."""
        assert not headers
        del timeout, auth
        return self._http()

    # --- asking ---

    async def _ask(self, question: Coroutine[Any, Any, _T]) -> _T:
        """The answer. Cancelled, it leaves at once: what the SDK has to tidy up, it does behind us."""
        exchange = Exchange()
        EXCHANGE.set(exchange)
        assert self._holder is not None
        asking = asyncio.create_task(question)
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        asking.add_done_callback(_look_at)
        unanswerable = asyncio.create_task(self._is_unanswerable(exchange))
        try:
            await asyncio.wait(
                {asking, self._holder, unanswerable}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            unanswerable.cancel()
            if not asking.done():
                asking.cancel()
                self._is_abandoned = True
        if not asking.done() or asking.cancelled():
            raise _failure(exchange, None)
        fault = asking.exception()
        if fault is None:
            return asking.result()
        if exchange.status == 404 and self._id is not None:
            await self.close(politely=False)
            raise SessionLost(_http(404, "The MCP server does not keep its sessions."))
        raise _failure(exchange, fault) from fault

    async def _is_unanswerable(self, exchange: Exchange) -> None:
        """Returns when a request has failed for good and the SDK had time to say how: over SSE it does not notice."""
        while True:
            await exchange.failed.wait()
            await asyncio.sleep(_NOTICED)
            if exchange.is_bad:
                return
            exchange.failed.clear()  # a redirect that was followed


_NOTICED = 0.5
"""Seconds."""
_LONGEST_MESSAGE = 2000
"""Characters of what a server says about its refusal."""


def _look_at(task: "asyncio.Task[Any]") -> None:
    """A task that nobody waits for any more may end in any way; asyncio would log what nobody has looked at."""
    if not task.cancelled():
        task.exception()


def _more_telling(newer: ServerFailed, older: ServerFailed | None) -> ServerFailed | None:
    """Which of two failures to tell, the newer transport's or the older's; None when the older one has worked."""
    return older if older is None or older.status in (401, 403) else newer


def _failure(exchange: Exchange, fault: BaseException | None) -> ServerFailed:
    """What a failed question was about, in the shapes of `mcp_call.error`. The server's words are repeated, our network's are not."""
    if exchange.fault is not None:
        return ServerFailed(_http(UNREACHED, f"The MCP server {exchange.fault}."))
    cause = _cause(fault)
    if (
        exchange.status is not None
        and exchange.status >= 300
        and not _says_more(cause, exchange.status)
    ):
        return ServerFailed(
            _http(exchange.status, f"The MCP server answered with HTTP {exchange.status}.")
        )
    if isinstance(cause, ValidationError) or (
        isinstance(cause, MCPError) and cause.code == types.PARSE_ERROR
    ):
        return ServerFailed(_protocol(types.PARSE_ERROR, "The MCP server's answer is not valid."))
    if isinstance(cause, MCPError) and cause.code != types.CONNECTION_CLOSED:
        return ServerFailed(_protocol(cause.code, storable(cause.message)[:_LONGEST_MESSAGE]))
    return ServerFailed(_http(UNREACHED, "The MCP server ended the session."))


def _cause(fault: BaseException | None) -> BaseException | None:
    """What a group of exceptions is about: the SDK's task groups wrap whatever ends them."""
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault


def _says_more(cause: BaseException | None, status: int) -> bool:
    """Whether the server explained its bad status in a JSON-RPC error."""
    return (
        isinstance(cause, MCPError)
        and cause.message not in _SAID_BY_THE_SDK
        and status >= 400
        and status not in (401, 403)
    )


def _protocol(code: int, message: str) -> dict[str, Any]:
    return {"type": "mcp_protocol_error", "code": code, "message": message}


def _http(code: int, message: str) -> dict[str, Any]:
    return {"type": "http_error", "code": code, "message": message}
