"""MCP servers as tools of a response: listings, calls, and calls that need approval.

The history decides which calls are pending. A server whose tools are listed in the history is not
asked again. A call that the client has approved is made before the model's next turn. So a recovery
needs only the response's items, and opens its own sessions.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import mcp_types as types
import structlog
from aiohttp.abc import AbstractResolver

from models.egress import EgressRefused
from models.errors import InvalidRequest, ToolFailed
from models.wire.checks.json_schema import valid_schema
from models.wire.events import Item
from models.wire.json_input import decode_exactly
from models.wire.mcp import (
    approval_requests,
    approval_responses,
    is_allowed,
    is_repeatable,
    needs_approval,
)
from worker.tools.mcp_items import UnusableTool, blocks_of, item_tool, left_out_text, result_of
from worker.tools.mcp_session import (
    TIMEOUT_ERROR,
    McpAnswerLost,
    McpServer,
    McpServerError,
    McpSession,
    McpSessionLost,
    ToolPage,
)
from worker.tools.provider import ToolCallError, ToolContext, ToolResult
from worker.translation.functions import ServerFunction
from worker.translation.items.server_calls import (
    OpenApprovalRequest,
    OpenCallFactory,
    OpenListTools,
    OpenMcpCall,
    OpenServerCall,
)

logger = structlog.get_logger()

Json = dict[str, Any]
_T = TypeVar("_T")

_MAX_PAGES = 256
"""Pages of a listing."""
_LOGGED = 20
"""Tools that a line of the log names."""
_EMPTY_SCHEMA: Json = {"type": "object", "properties": {}}


class McpToolProvider:
    """One MCP server of one response. `resolver` replaces the system's, in tests."""

    time: float | None = None
    in_order = False

    def __init__(
        self,
        tool: Mapping[str, Any],
        context: ToolContext,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._tool = tool
        self._label: str = tool["server_label"]
        self._context = context
        self._settings = context.settings.mcp
        self._resolver = resolver
        self._allowed_tools: dict[str, Json] | None = None
        """The server's tools that the model may call, by name; None until they are known."""
        self._parameters: dict[str, Json] = {}
        """Name of a tool -> the schema of its arguments for the model."""
        self._session: McpSession | None = None
        self._session_lock = asyncio.Lock()
        self._listing_error: ToolFailed | None = None
        """Why the tools could not be listed. The response ends with this error."""

    # --- what the history makes pending ---

    def pending(self, history: Sequence[Item]) -> list[OpenCallFactory]:
        """The listing, if the history has none; then the approved calls that were not made yet.

        Raises ToolFailed if the listing failed.
        """
        listing = next((item for item in reversed(history) if self._is_listing(item)), None)
        if listing is None:
            if self._listing_error is not None:
                raise self._listing_error
            return [
                lambda index, new_id: OpenListTools(
                    index, new_id(OpenListTools.prefix), server_label=self._label
                )
            ]
        tools = {tool["name"]: tool for tool in listing["tools"]}
        if self._allowed_tools is None and self._label not in self._context.listed:
            try:
                self._note_listed(len(tools), 0)
            except McpServerError as failed:
                raise _listing_failure(self._label, failed) from failed
        self._allowed_tools = {
            name: tool
            for name, tool in tools.items()
            if is_allowed(self._tool, name, tool.get("annotations", {}))
        }
        return [
            self._approved_call(request)
            for request in _approved_requests(history)
            if request["server_label"] == self._label
        ]

    def _is_listing(self, item: Item) -> bool:
        return (
            item["type"] == "mcp_list_tools"
            and item["server_label"] == self._label
            and item["status"] == "completed"
            and (bool(item["tools"]) or "error" not in item)
        )

    def _approved_call(self, request: Item) -> OpenCallFactory:
        fields = {
            "name": request["name"],
            "arguments": request["arguments"],
            "approval_request_id": request["id"],
        }
        return lambda index, new_id: OpenMcpCall(
            index, new_id(OpenMcpCall.prefix), server_label=self._label, **fields
        )

    def functions(self) -> list[ServerFunction]:
        """The server's tools. A call of one is an MCP call or, where approval is needed, an
        approval request."""
        return [self._function(name, tool) for name, tool in (self._allowed_tools or {}).items()]

    def _function(self, name: str, tool: Json) -> ServerFunction:
        is_approval_needed = needs_approval(self._tool, name, tool.get("annotations", {}))
        if name not in self._parameters:
            schema = tool.get("input_schema")
            self._parameters[name] = (
                {**valid_schema(schema), "type": "object"}
                if isinstance(schema, dict)
                else _EMPTY_SCHEMA
            )
        return ServerFunction(
            tool={"type": "mcp", "server_label": self._label, "name": name},
            name=name,
            open_call=partial(
                _new_call,
                OpenApprovalRequest if is_approval_needed else OpenMcpCall,
                {"server_label": self._label, "name": name},
            ),
            description=self._description(tool),
            parameters=self._parameters[name],
            deferred=bool(self._tool.get("defer_loading", False)),
        )

    def _description(self, tool: Json) -> str | None:
        about = self._tool.get("server_description")
        texts = [tool.get("description"), about and f"From the MCP server '{self._label}': {about}"]
        return "\n\n".join(text for text in texts if text) or None

    def owns(self, item: Item) -> bool:
        """Whether the item is a listing or a call of this server."""
        return (
            item["type"] in ("mcp_list_tools", "mcp_call") and item["server_label"] == self._label
        )

    def is_repeatable(self, item: Item) -> bool:
        """Whether the call may be made twice: a listing, or a tool that its server declares
        read-only or idempotent."""
        if item["type"] == "mcp_list_tools":
            return True
        return is_repeatable(
            (self._allowed_tools or {}).get(item["name"], {}).get("annotations", {})
        )

    # --- requests to the server ---

    async def run(self, item: Item) -> ToolResult:
        """Lists the tools, or calls one. After a failed listing the next `pending` ends the
        response. Raises ToolCallError."""
        if item["type"] == "mcp_call":
            return await self._call(item)
        # Counts if the caller cancels the listing.
        self._listing_error = _listing_failure(self._label, McpServerError(TIMEOUT_ERROR))
        try:
            # A little less than the caller's limit, whose error would not name the server.
            async with asyncio.timeout(0.9 * self._context.settings.tools.time.total_seconds()):
                tools, left_out = await self._list()
        except TimeoutError:
            return ToolResult(fields={"error": self._listing_error.message}, failed=True)
        except McpServerError as failed:
            self._listing_error = _listing_failure(self._label, failed)
            return ToolResult(fields={"error": self._listing_error.message}, failed=True)
        self._listing_error = None
        if not left_out:
            return ToolResult(fields={"tools": tools})
        logger.warning(
            "mcp_tools_left_out",
            server_label=self._label,
            count=len(left_out),
            tools=[str(each) for each in left_out[:_LOGGED]],
        )
        return ToolResult(fields={"tools": tools, "error": left_out_text(left_out)})

    async def _call(self, item: Item) -> ToolResult:
        name, arguments = item["name"], _parse_arguments(item["arguments"])
        if name not in (self._allowed_tools or {}):
            raise ToolCallError(
                f"The MCP server '{self._label}' has no tool '{name}' that may be used here."
            )
        try:
            result = await self._request(
                lambda session: session.call(name, arguments), self.is_repeatable(item)
            )
        except McpServerError as failed:
            return ToolResult(fields={"error": failed.error}, failed=True)
        if len(blocks_of(result)) > self._settings.blocks:
            too_many = f"It answered with more than {self._settings.blocks} content blocks."
            return ToolResult(fields={"error": _protocol_error(too_many)}, failed=True)
        return (
            await asyncio.to_thread(result_of, result) if _is_large(result) else result_of(result)
        )

    async def _list(self) -> tuple[list[Json], list[UnusableTool]]:
        """The tools of all pages, as the item shows them, without those that the model may not
        see; and why others were left out. Raises McpServerError."""
        server = self._server()
        if (kept := await self._kept_listing(server)) is not None:
            return self._allowed(kept)
        listing = _Listing()
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._page(cursor)
            listing.add(page)
            if listing.size > self._settings.list_bytes:
                raise _list_too_large(f"more than {self._settings.list_bytes} bytes of tools")
            if len(listing.tools) + len(listing.left_out) > self._settings.tools:
                raise _list_too_large(f"more than {self._settings.tools} tools")
            self._note_listed(len(listing.tools), listing.size)
            cursor = listing.next_cursor(page)
            if cursor is None:
                await self._keep_listing(server, listing)
                return self._allowed(listing)
        raise _list_too_large(f"its tools on more than {_MAX_PAGES} pages")

    async def _kept_listing(self, server: McpServer) -> "_Listing | None":
        """The list that another response of the project has got with the same credentials."""
        cache, project = self._context.listings, self._context.project
        if cache is None or project is None:
            return None
        kept = await cache.get(project, {"url": server.url, "headers": server.headers})
        if kept is None:
            return None
        listing = _Listing()
        listing.tools = {tool["name"]: tool for tool in kept}
        self._note_listed(len(kept), len(json.dumps(kept)))
        return listing

    async def _keep_listing(self, server: McpServer, listing: "_Listing") -> None:
        """A list with tools that cannot be used is not kept: its response says why."""
        cache, project = self._context.listings, self._context.project
        if cache is not None and project is not None and not listing.left_out:
            key = {"url": server.url, "headers": server.headers}
            await cache.put(project, key, list(listing.tools.values()), listing.ttl)

    def _allowed(self, listing: "_Listing") -> tuple[list[Json], list[UnusableTool]]:
        """The tools that the model may see, and those that it could not see. Raises McpServerError
        if none is left."""
        allowed = [
            tool
            for name, tool in listing.tools.items()
            if is_allowed(self._tool, name, tool.get("annotations", {}))
        ]
        missing = [
            fault
            for fault in listing.left_out
            if fault.name is None or is_allowed(self._tool, fault.name, {})
        ]
        if missing and not allowed:
            raise McpServerError(_protocol_error(left_out_text(missing)))
        return allowed, missing

    def _note_listed(self, count: int, size: int) -> None:
        """Counts this server's tools, and their bytes, with those of the response's other servers.
        Raises McpServerError if they are too many together."""
        listed, settings = self._context.listed, self._settings
        listed[self._label] = (count, size)
        if sum(tools for tools, _ in listed.values()) > settings.tools_in_all:
            raise _list_too_large(
                f"more than {settings.tools_in_all} tools together with the other servers"
            )
        if sum(sizes for _, sizes in listed.values()) > settings.list_bytes_in_all:
            raise _list_too_large(
                f"more than {settings.list_bytes_in_all} bytes of tools together with the other "
                "servers"
            )

    async def _page(self, cursor: str | None) -> ToolPage:
        return await self._request(lambda session: session.list_tools(cursor), repeatable=True)

    async def _request(self, send: Callable[[McpSession], Awaitable[_T]], repeatable: bool) -> _T:
        """The response to a request. It is sent once more if the server did not handle it, or, if
        it is repeatable, if the connection ended before the response. Raises McpServerError."""
        try:
            return await send(await self._open_session())
        except McpSessionLost:
            pass
        except McpAnswerLost:
            if not repeatable:
                raise
        return await send(await self._open_session())

    # --- the session ---

    async def _open_session(self) -> McpSession:
        """The session of this response: opened when it is first needed, and again after the
        server has ended it. Raises McpServerError."""
        async with self._session_lock:
            if self._session is not None and self._session.is_open:
                return self._session
            if self._session is not None:
                await self._session.close(gracefully=False)
            self._session = McpSession(
                self._server(), self._context.egress, self._settings, self._resolver
            )
            await self._session.open()
            return self._session

    def _server(self) -> McpServer:
        credentials = self._context.credentials.get(self._label, {})
        try:
            target = self._context.egress.check_url(
                credentials.get("server_url") or self._tool["server_url"]
            )
        except EgressRefused as refusal:
            raise McpServerError(
                {
                    "type": "http_error",
                    "code": 424,
                    "message": f"The MCP server may not be reached: {refusal}.",
                }
            ) from refusal
        headers = dict(credentials.get("headers", {}))
        if (token := credentials.get("authorization")) is not None:
            headers["Authorization"] = token if " " in token else f"Bearer {token}"
        return McpServer(target.url, headers)

    async def close(self) -> None:
        """Ends the session."""
        if self._session is not None:
            await self._session.close()


def _listing_failure(label: str, failed: McpServerError) -> ToolFailed:
    """The failure that ends the response: without the tools the model would answer something else
    (docs/tools.md).

    Message and codes are OpenAI's. A 401 of the MCP server stays a 401.
    """
    message = f"Error retrieving tool list from MCP server: '{label}'. {failed}"
    if failed.status == 401:
        return ToolFailed(
            message,
            reason="mcp_unauthorized",
            status=401,
            param="tools",
            envelope_code="http_error",
        )
    return ToolFailed(
        message, reason="mcp_unlisted", status=424, param="tools", envelope_code="http_error"
    )


def _new_call(
    kind: type[OpenServerCall], place: Mapping[str, str], index: int, new_id: Any
) -> OpenServerCall:
    return kind(index, new_id(kind.prefix), **place)


def _approved_requests(history: Sequence[Item]) -> list[Item]:
    """The approval requests that the client approved and whose call is not in the history."""
    requests = approval_requests(history)
    called = {item.get("approval_request_id") for item in history if item["type"] == "mcp_call"}
    return [
        requests[id_]
        for id_, response in approval_responses(history).items()
        if response["approve"] and id_ in requests and id_ not in called
    ]


def _parse_arguments(text: str) -> Json:
    """The arguments that a model wrote. Raises ToolCallError if they are no JSON object. The
    server checks them against its schema."""
    try:
        arguments = decode_exactly(text.encode())
    except InvalidRequest as fault:
        raise ToolCallError(f"The arguments could not be read. {fault.message}") from fault
    if not isinstance(arguments, dict):
        raise ToolCallError("The arguments must be a JSON object.")
    return arguments


class _Listing:
    """The tools of the pages until now."""

    def __init__(self) -> None:
        self.tools: dict[str, Json] = {}
        self.left_out: list[UnusableTool] = []
        self.size = 0
        """Bytes of all tools as JSON."""
        self.ttl = math.inf
        """Seconds that the list may be kept: the least of its pages."""
        self._cursors: set[str] = set()

    def add(self, page: ToolPage) -> None:
        """The tools of one more page."""
        self.ttl = min(self.ttl, page.ttl)
        for sent_tool in page.tools:
            try:
                tool = self._checked(sent_tool, page)
            except UnusableTool as fault:
                self.left_out.append(fault)
            else:
                self.tools[tool["name"]] = tool

    def _checked(self, sent_tool: Any, page: ToolPage) -> Json:
        """The tool as the item lists it. Raises UnusableTool."""
        tool = item_tool(sent_tool)
        self.size += len(json.dumps(tool))
        if tool["name"] in self.tools:
            raise UnusableTool(tool["name"], "listed twice")
        if sent_tool["name"] not in page.callable_names:
            raise UnusableTool(tool["name"], "its headers cannot be sent")
        return tool

    def next_cursor(self, page: ToolPage) -> str | None:
        """The cursor of the page after this one. Some servers repeat themselves without end: a
        cursor that was followed is not followed again."""
        cursor = page.next_cursor
        if cursor in self._cursors and self.tools:
            return None
        if cursor is not None:
            self._cursors.add(cursor)
        return cursor


def _is_large(result: Json) -> bool:
    sizes = (
        len(value)
        for block in blocks_of(result)
        if isinstance(block, dict)
        for value in block.values()
        if isinstance(value, str)
    )
    return sum(sizes) > _LARGE_RESULT


_LARGE_RESULT = 256 * 1024
"""Characters from which a result is converted in a thread, beside the event loop."""


def _list_too_large(what: str) -> McpServerError:
    return McpServerError(_protocol_error(f"It lists {what}."))


def _protocol_error(message: str) -> Json:
    return {"type": "mcp_protocol_error", "code": types.INTERNAL_ERROR, "message": message}
