"""One session with an MCP server, by the official SDK: streamable HTTP, or else the older SSE
transport.

The session runs in a task of its own, because the task that enters the SDK's context must leave it.
A caller waits for the response or for the end of the session, whichever comes first. So no
behaviour of a server can block a call for ever.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import httpx2
import mcp_types as types
from aiohttp.abc import AbstractResolver
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import ValidationError

from models.config.groups import McpSettings
from models.egress import EgressPolicy
from models.version import VERSION
from models.wire.json_input import clean_text, storable_numbers
from worker.outbound.guarded_http import (
    REQUEST_OUTCOME,
    UNANSWERED,
    UNREACHABLE_STATUS,
    AnswerLimits,
    GuardedTransport,
    RequestOutcome,
)
from worker.tools.mcp_answers import sent, with_sent_answers

_T = TypeVar("_T")
_Transport = AbstractAsyncContextManager[Any]
_NewTransport = Callable[[httpx2.AsyncClient], _Transport]

_UNSUPPORTED_TRANSPORT = frozenset((400, 404, 405))
"""Statuses of a server that knows only the older transport (MCP 2025-11-25, transports,
backwards compatibility)."""

_SDK_MESSAGES = ("Server returned an error response", "Not Found", "Session terminated")
"""The SDK's own messages for a bad status without a message of the server."""

TIMEOUT_ERROR = {
    "type": "http_error",
    "code": 504,
    "message": "The MCP server did not answer in time.",
}
"""The error for a server that does not respond."""

_SESSION_ID = "mcp-session-id"
_CLIENT_INFO = types.Implementation(name="backburner", version=VERSION)


@dataclass(frozen=True, slots=True)
class McpServer:
    """The address of an MCP server, and the headers with our credential."""

    url: str
    """As the egress policy spells it."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class ToolPage(NamedTuple):
    """A page of a server's list of tools."""

    tools: list[Any]
    """As they were sent."""
    next_cursor: str | None
    callable_names: frozenset[str]
    ttl: float = 0.0
    """Seconds that the server lets it be kept; 0: not at all."""


class McpServerError(Exception):
    """A request failed. `error` is the field of a `mcp_call`: an MCP protocol error or an HTTP
    error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error

    @property
    def status(self) -> int | None:
        """The HTTP status; None for a protocol error."""
        return self.error["code"] if self.error["type"] == "http_error" else None


class McpSessionLost(McpServerError):
    """The server no longer knows the session, so it did not handle the request. The session is
    closed; the caller may use a new one."""


class McpAnswerLost(McpServerError):
    """The connection ended before the server answered: it handled the request, or it did not. The
    caller may send it again if it may be handled twice."""


class McpSession:
    """A session that is open until `close`, or until its server ends it."""

    def __init__(
        self,
        server: McpServer,
        egress: EgressPolicy,
        settings: McpSettings,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._server = server
        self._egress = egress
        self._settings = settings
        self._resolver = resolver
        self._client: Client | None = None
        self._session_task: asyncio.Task[None] | None = None
        self._requests: set[asyncio.Task[Any]] = set()
        self._close_requested = asyncio.Event()
        self._id: str | None = None
        self._has_unanswered = False
        """A request was cancelled. `close` then ends the session at once, without a last
        request."""

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return (
            self._client is not None
            and self._session_task is not None
            and not self._session_task.done()
        )

    async def open(self) -> None:
        """Connects by the newer transport, or else by the older one. Raises McpServerError."""
        try:
            async with asyncio.timeout(self._settings.connect.total_seconds()):
                failed = await self._connect(self._streamable)
                if failed is not None and failed.status in _UNSUPPORTED_TRANSPORT:
                    failed = _more_specific(failed, await self._connect(self._sse))
        except TimeoutError:
            await self.close(gracefully=False)
            raise McpServerError(TIMEOUT_ERROR) from None
        if failed is not None:
            raise failed

    async def list_tools(self, cursor: str | None) -> ToolPage:
        """One page of the server's tools. Raises McpServerError, also its subclasses."""
        assert self._client is not None
        page = await self._request(
            self._client.list_tools(cursor=cursor), _LIST_FACTOR * self._settings.list_bytes
        )
        answer = sent(page)
        tools, ttl = answer.get("tools"), answer.get("ttlMs")
        if tools is not None and not isinstance(tools, list):
            raise McpServerError(_protocol_error(types.PARSE_ERROR, _NOT_VALID))
        # The SDK leaves out tools that want headers which cannot be sent.
        names = frozenset(tool.name for tool in page.tools)
        return ToolPage(
            tools or [], page.next_cursor, names, ttl / 1000 if type(ttl) is int else 0.0
        )

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of a call as the server sent it, also if the tool reports an error. Raises
        McpServerError, also its subclasses."""
        assert self._client is not None
        # Not `call_tool`: it lists the tools to check results against schemas, and refuses those
        # that do not fit.
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(name=name, arguments=arguments)
        )
        send = partial(self._client.session.send_request, request, types.CallToolResult)
        try:
            return sent(await self._request(send()))
        except McpServerError as failed:
            if failed.error["code"] != types.HEADER_MISMATCH or failed.status is not None:
                raise
            # The server did nothing: it wants some arguments as headers too, and only its list of
            # tools names them.
            await self.list_tools(None)
            return sent(await self._request(send()))

    async def close(self, *, gracefully: bool = True) -> None:
        """Ends the session and closes its connections.

        `gracefully`: asks the server to delete the session first, within the setting
        `mcp.farewell`.
        """
        session_task, self._session_task = self._session_task, None
        for request in self._requests:
            request.cancel()
        if session_task is None:
            return
        if gracefully and not self._has_unanswered and not session_task.done():
            self._close_requested.set()
            await asyncio.wait({session_task}, timeout=self._settings.farewell.total_seconds())
        session_task.cancel()
        await asyncio.wait({session_task, *self._requests})
        self._client = None

    # --- opening ---

    async def _connect(self, transport: _NewTransport) -> McpServerError | None:
        """Opens the SDK's client over this transport. Returns the error, or None."""
        outcome = RequestOutcome()
        REQUEST_OUTCOME.set(outcome)
        opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        session_task = self._session_task = asyncio.create_task(
            self._run_session(transport, opened)
        )
        session_task.add_done_callback(_retrieve_exception)
        await asyncio.wait((session_task, opened), return_when=asyncio.FIRST_COMPLETED)
        if opened.done():
            self._client = opened.result()
            return None
        self._session_task = None
        return _failure(outcome, session_task.exception())

    async def _run_session(
        self, transport: _NewTransport, opened: "asyncio.Future[Client]"
    ) -> None:
        async with (
            self._http() as http,
            Client(
                with_sent_answers(transport(http)), cache=None, client_info=_CLIENT_INFO
            ) as client,
        ):
            opened.set_result(client)
            await self._close_requested.wait()
            if self._id is not None:
                await http.delete(self._server.url, headers={_SESSION_ID: self._id})

    def _http(self) -> httpx2.AsyncClient:
        connect = self._settings.connect.total_seconds()
        transport = GuardedTransport(
            self._egress,
            connect=connect,
            limits=AnswerLimits(self._settings.answer_bytes, self._settings.answer_values),
            resolver=self._resolver,
        )
        return httpx2.AsyncClient(
            transport=transport,
            headers=dict(self._server.headers),
            # `open` and the toolbox limit the time.
            timeout=httpx2.Timeout(None),
            trust_env=False,
            max_redirects=self._settings.redirects,
            event_hooks={"response": [self._save_session_id]},
        )

    async def _save_session_id(self, response: httpx2.Response) -> None:
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
        """The same HTTP client: the older transport makes its own."""
        assert not headers
        del timeout, auth
        return self._http()

    # --- requests ---

    async def _request(self, call: Coroutine[Any, Any, _T], max_bytes: int | None = None) -> _T:
        """The response to a call of the SDK. A cancellation returns at once; the SDK cleans up
        in its own task. `max_bytes`: of the response, if that is less than any may have."""
        outcome = RequestOutcome(max_bytes=max_bytes)
        REQUEST_OUTCOME.set(outcome)
        assert self._session_task is not None
        request = asyncio.create_task(call)
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        request.add_done_callback(_retrieve_exception)
        failure = asyncio.create_task(self._wait_for_failure(outcome))
        try:
            await asyncio.wait(
                {request, self._session_task, failure}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            failure.cancel()
            if not request.done():
                request.cancel()
                self._has_unanswered = True
        if not request.done() or request.cancelled():
            raise _failure(outcome, None)
        fault = request.exception()
        if fault is None:
            return request.result()
        if outcome.posted_status == 404 and self._id is not None:
            await self.close(gracefully=False)
            raise McpSessionLost(_http_error(404, "The MCP server does not keep its sessions."))
        raise _failure(outcome, fault) from fault

    async def _wait_for_failure(self, outcome: RequestOutcome) -> None:
        """Returns when an HTTP request has failed and the SDK had time to raise its error. Over
        SSE the SDK does not notice the failure."""
        while True:
            await outcome.failed.wait()
            await asyncio.sleep(_ERROR_DELAY)
            if outcome.is_bad:
                return
            outcome.failed.clear()  # a redirect that was followed


_LIST_FACTOR = 2
"""A list of tools may have so many times its limit in bytes as it is sent: with what is not kept of
each tool."""
_ERROR_DELAY = 0.5
"""Seconds that the SDK has to raise its own error."""
_NOT_VALID = "The MCP server's answer is not valid."
_MAX_MESSAGE = 2000
"""Characters of a server's error message."""


def _retrieve_exception(task: "asyncio.Task[Any]") -> None:
    """Marks the exception of a task as seen: asyncio logs exceptions that nothing has retrieved."""
    if not task.cancelled():
        task.exception()


def _more_specific(newer: McpServerError, older: McpServerError | None) -> McpServerError | None:
    """The error to show of the newer transport's and the older's; None if the older one
    connected."""
    return older if older is None or older.status in (401, 403) else newer


def _failure(outcome: RequestOutcome, fault: BaseException | None) -> McpServerError:
    """The error of a failed request, in the shape of `mcp_call.error`. It may contain the
    server's message, but no details of our network."""
    if outcome.fault is not None:
        is_lost = outcome.fault == UNANSWERED and outcome.posted_status is None
        kind = McpAnswerLost if is_lost else McpServerError
        return kind(_http_error(UNREACHABLE_STATUS, f"The MCP server {outcome.fault}."))
    cause = _root_cause(fault)
    if (
        outcome.status is not None
        and outcome.status >= 300
        and not _has_server_message(cause, outcome.status)
    ):
        return McpServerError(
            _http_error(outcome.status, f"The MCP server answered with HTTP {outcome.status}.")
        )
    if isinstance(cause, ValidationError) or (
        isinstance(cause, MCPError) and cause.code == types.PARSE_ERROR
    ):
        return McpServerError(_protocol_error(types.PARSE_ERROR, _NOT_VALID))
    if isinstance(cause, MCPError) and cause.code != types.CONNECTION_CLOSED:
        return McpServerError(_protocol_error(cause.code, clean_text(cause.message)[:_MAX_MESSAGE]))
    return McpServerError(_http_error(UNREACHABLE_STATUS, "The MCP server ended the session."))


def _root_cause(fault: BaseException | None) -> BaseException | None:
    """The first exception in nested groups: the SDK's task groups wrap the exception that ends
    them."""
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault


def _has_server_message(cause: BaseException | None, status: int) -> bool:
    """Whether the server explained its bad status in a JSON-RPC error."""
    return (
        isinstance(cause, MCPError)
        and cause.message not in _SDK_MESSAGES
        and status >= 400
        and status not in (401, 403)
    )


def _protocol_error(code: int, message: str) -> dict[str, Any]:
    """`code`: a number of any size, which a server has sent."""
    return {"type": "mcp_protocol_error", "code": storable_numbers(code), "message": message}


def _http_error(code: int, message: str) -> dict[str, Any]:
    return {"type": "http_error", "code": code, "message": message}
