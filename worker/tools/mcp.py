"""MCP servers as tools of a response: what is listed, what is called, what must be approved first (design §11).

The history decides what is due. A server whose tools are listed there is not asked again; a call that the client has approved is made
before the model speaks. So a response that another worker goes on with needs nothing but its items, and opens its sessions anew.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import mcp_types as types
from aiohttp.abc import AbstractResolver

from models.egress import Refused
from models.errors import InvalidRequest, ToolFailed
from models.wire.events import Item
from models.wire.json_input import decode_body
from models.wire.mcp import is_allowed, is_repeatable, needs_approval
from worker.tools.mcp_results import result_of
from worker.tools.mcp_session import OUT_OF_TIME, Server, ServerFailed, Session, SessionLost
from worker.tools.provider import Means, Refusal, Result
from worker.translation.items.mcp import OpenApprovalRequest, OpenListTools, OpenMcpCall
from worker.translation.items.server_calls import HostedFunction, OpenHostedCall, Opening

Json = dict[str, Any]

_MOST_PAGES = 256

_EMPTY: Json = {"type": "object", "properties": {}}


class McpSource:
    """One MCP server of one response. `resolver` stands in for the system's, in tests."""

    def __init__(
        self, tool: Mapping[str, Any], means: Means, resolver: AbstractResolver | None = None
    ) -> None:
        self._tool = tool
        self._label: str = tool["server_label"]
        self._means = means
        self._settings = means.settings.mcp
        self._resolver = resolver
        self._listed: dict[str, Json] | None = None
        """The server's tools that the model may use, by name; None until they are known."""
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._unlisted: ToolFailed | None = None
        """Why the tools could not be listed: once is enough, the response ends with it."""

    # --- what the history asks for ---

    def due(self, history: Sequence[Item]) -> list[Opening]:
        """The listing, if the history holds none; then the calls that were approved and not made yet. Raises ToolFailed when it failed."""
        listing = next((item for item in reversed(history) if self._is_listing(item)), None)
        if listing is None:
            if self._unlisted is not None:
                raise self._unlisted
            return [
                lambda index, new_id: OpenListTools(
                    index, new_id(OpenListTools.prefix), server_label=self._label
                )
            ]
        tools = {tool["name"]: tool for tool in listing["tools"]}
        self._listed = {
            name: tool
            for name, tool in tools.items()
            if is_allowed(self._tool, name, tool.get("annotations", {}))
        }
        return [
            self._approved_call(request)
            for request in _approved(history)
            if request["server_label"] == self._label
        ]

    def _is_listing(self, item: Item) -> bool:
        return (
            item["type"] == "mcp_list_tools"
            and item["server_label"] == self._label
            and "error" not in item
            and item["status"] == "completed"
        )

    def _approved_call(self, request: Item) -> Opening:
        told = {
            "name": request["name"],
            "arguments": request["arguments"],
            "approval_request_id": request["id"],
        }
        return lambda index, new_id: OpenMcpCall(
            index, new_id(OpenMcpCall.prefix), server_label=self._label, **told
        )

    def functions(self) -> list[HostedFunction]:
        """The server's tools, each of them a call or, where approval is needed, the question whether it may be called."""
        return [self._function(name, tool) for name, tool in (self._listed or {}).items()]

    def _function(self, name: str, tool: Json) -> HostedFunction:
        asks = needs_approval(self._tool, name, tool.get("annotations", {}))
        schema = tool.get("input_schema")
        return HostedFunction(
            tool={"type": "mcp", "server_label": self._label, "name": name},
            name=name,
            opens=partial(
                _opened,
                OpenApprovalRequest if asks else OpenMcpCall,
                {"server_label": self._label, "name": name},
            ),
            description=self._description(tool),
            parameters=schema if isinstance(schema, dict) else _EMPTY,
        )

    def _description(self, tool: Json) -> str | None:
        about = self._tool.get("server_description")
        words = [tool.get("description"), about and f"From the MCP server '{self._label}': {about}"]
        return "\n\n".join(word for word in words if word) or None

    def owns(self, item: Item) -> bool:
        """Whether the item is a listing or a call of this server."""
        return (
            item["type"] in ("mcp_list_tools", "mcp_call") and item["server_label"] == self._label
        )

    def is_repeatable(self, item: Item) -> bool:
        """Whether asking twice does no harm: a listing, or a tool that its server declares read-only or idempotent."""
        if item["type"] == "mcp_list_tools":
            return True
        return is_repeatable((self._listed or {}).get(item["name"], {}).get("annotations", {}))

    # --- asking the server ---

    async def run(self, item: Item) -> Result:
        """Lists the tools, or calls one. A listing that failed ends the response when `due` is asked next. Raises Refusal."""
        if item["type"] == "mcp_call":
            return await self._call(item)
        self._unlisted = _no_list(self._label, ServerFailed(OUT_OF_TIME))  # until we know better
        try:
            # a little less than the caller grants: it does not know whose time is over
            async with asyncio.timeout(0.9 * self._means.settings.tools.time.total_seconds()):
                tools = await self._list()
        except TimeoutError:
            return Result(fields={"error": self._unlisted.message}, failed=True)
        except ServerFailed as failed:
            self._unlisted = _no_list(self._label, failed)
            return Result(fields={"error": self._unlisted.message}, failed=True)
        self._unlisted = None
        return Result(fields={"tools": tools})

    async def _call(self, item: Item) -> Result:
        name, arguments = item["name"], _arguments(item["arguments"])
        if name not in (self._listed or {}):
            raise Refusal(
                f"The MCP server '{self._label}' has no tool '{name}' that may be used here."
            )
        try:
            try:
                found = await (await self._opened()).call(name, arguments)
            except SessionLost:
                found = await (await self._opened()).call(name, arguments)
        except ServerFailed as failed:
            return Result(fields={"error": failed.error}, failed=True)
        return await asyncio.to_thread(result_of, found) if _is_large(found) else result_of(found)

    async def _list(self) -> list[Json]:
        """All pages, as the item shows them: those tools that the model may see. Raises ServerFailed."""
        tools: dict[str, Json] = {}
        size = 0
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self._page(cursor)
            written = json.dumps([_shown(tool) for tool in page.tools]).encode()
            size += len(written)
            if size > self._settings.list_bytes:
                raise _too_much(f"more than {self._settings.list_bytes} bytes of tools")
            for tool in _storable(written):
                tools.setdefault(tool["name"], tool)
            if len(tools) > self._settings.tools:
                raise _too_much(f"more than {self._settings.tools} tools")
            if page.next_cursor is None:
                return [
                    tool
                    for name, tool in tools.items()
                    if is_allowed(self._tool, name, tool.get("annotations", {}))
                ]
            cursor = page.next_cursor
        raise _too_much(f"its tools on more than {_MOST_PAGES} pages")

    async def _page(self, cursor: str | None) -> types.ListToolsResult:
        try:
            return await (await self._opened()).list_tools(cursor)
        except SessionLost:
            return await (await self._opened()).list_tools(cursor)

    # --- the session ---

    async def _opened(self) -> Session:
        """The session of this response, opened when it is first needed, and again when the server has ended it. Raises ServerFailed."""
        async with self._opening:
            if self._session is not None and self._session.is_open:
                return self._session
            if self._session is not None:
                await self._session.close(politely=False)
            self._session = Session(
                self._server(), self._means.egress, self._settings, self._resolver
            )
            await self._session.open()
            return self._session

    def _server(self) -> Server:
        sealed = self._means.credentials.get(self._label, {})
        try:
            target = self._means.egress.inspect(
                sealed.get("server_url") or self._tool["server_url"]
            )
        except Refused as refusal:
            raise ServerFailed(
                {
                    "type": "http_error",
                    "code": 424,
                    "message": f"The MCP server may not be reached: {refusal}.",
                }
            ) from refusal
        headers = dict(sealed.get("headers", {}))
        if (token := sealed.get("authorization")) is not None:
            headers["Authorization"] = token if " " in token else f"Bearer {token}"
        return Server(target.url, headers)

    async def close(self) -> None:
        """Ends the session."""
        if self._session is not None:
            await self._session.close()


def _no_list(label: str, failed: ServerFailed) -> ToolFailed:
    """Without its tools the model would answer something else than was asked. Words and codes are OpenAI's; 401 is as design §11 has it."""
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


def _opened(
    kind: type[OpenHostedCall], place: Mapping[str, str], index: int, new_id: Any
) -> OpenHostedCall:
    return kind(index, new_id(kind.prefix), **place)


def _approved(history: Sequence[Item]) -> list[Item]:
    """The approval requests that were granted and whose call is not in the history."""
    requests = {item["id"]: item for item in history if item["type"] == "mcp_approval_request"}
    made = {item.get("approval_request_id") for item in history if item["type"] == "mcp_call"}
    answers = {
        item["approval_request_id"]: item["approve"]
        for item in history
        if item["type"] == "mcp_approval_response"
    }
    return [
        requests[id_]
        for id_, granted in answers.items()
        if granted and id_ in requests and id_ not in made
    ]


def _arguments(written: str) -> Json:
    """The arguments a model wrote. Raises Refusal for what is no JSON object; whether they fit its schema, the tool says."""
    try:
        found = decode_body(written.encode())
    except InvalidRequest as fault:
        raise Refusal(f"The arguments could not be read. {fault.message}") from fault
    if not isinstance(found, dict):
        raise Refusal("The arguments must be a JSON object.")
    return found


def _shown(tool: types.Tool) -> Json:
    """A tool as the item lists it (contract §6.1)."""
    told = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    kept = {"name": told["name"], "input_schema": told["inputSchema"]}
    return kept | {name: told[name] for name in ("description", "annotations") if name in told}


def _storable(written: bytes) -> list[Json]:
    """The tools as they can be stored and sent on, however the server spelt them: characters, depth and numbers."""
    try:
        found: list[Json] = decode_body(written)
    except InvalidRequest:
        raise _too_much("tools that cannot be stored as JSON") from None
    return found


def _is_large(found: types.CallToolResult) -> bool:
    return (
        sum(
            len(getattr(block, "data", "") or getattr(block, "text", "")) for block in found.content
        )
        > _LARGE
    )


_LARGE = 256 * 1024
"""Characters from which a result is looked through beside the event loop."""


def _too_much(what: str) -> ServerFailed:
    return ServerFailed(
        {"type": "mcp_protocol_error", "code": -32603, "message": f"It lists {what}."}
    )
