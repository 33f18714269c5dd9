"""What MCP servers answer, as it was sent.

The SDK checks each answer as a whole: one odd tool, or one content block of an unknown type, and
all of the answer is lost, also the result of a call that was made. So it gets a small valid answer,
which carries the one that was sent; the rest of this package reads that one, member by member.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

import mcp_types as types
from mcp.shared.message import SessionMessage

Json = dict[str, Any]

_SENT = "backburner/sent"
"""The member of an answer's `_meta` that has the answer as it was sent."""
_MODERN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""What newer versions of the protocol demand; older ones do not know it."""


class _Sent(str):
    """An answer that passes the SDK's checks as a string, so that its depth and its numbers do not
    matter there."""

    __slots__ = ("answer",)
    answer: Json


def sent(result: types.Result) -> Json:
    """The answer as the server sent it. `result`: to `tools/list` or `tools/call`."""
    carrier = dict(result.meta or {}).get(_SENT)
    return carrier.answer if isinstance(carrier, _Sent) else {}


@asynccontextmanager
async def with_sent_answers(
    transport: AbstractAsyncContextManager[Any],
) -> AsyncIterator[tuple[Any, Any]]:
    """The streams of a transport, for the SDK's client."""
    async with transport as (answers, requests):
        methods: dict[str, str] = {}
        yield _Answers(answers, methods), _Requests(requests, methods)


class _Stream:
    """The interface of the SDK's streams, around one of them."""

    def __init__(self, inner: Any, methods: dict[str, str]) -> None:
        """`methods`: id of a request -> its method."""
        self._inner = inner
        self._methods = methods

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Requests(_Stream):
    """What is sent."""

    async def send(self, item: SessionMessage) -> None:
        message = item.message
        if isinstance(message, types.JSONRPCRequest):
            self._methods[str(message.id)] = message.method
        await self._inner.send(item)


class _Answers(_Stream):
    """What is received."""

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return self._checked(await self._inner.receive())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._checked(await anext(self._inner))

    def _checked(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            method = self._methods.pop(str(message.id), "")
            if isinstance(message, types.JSONRPCResponse):
                message.result = _valid(method, message.result)
        return item


def _valid(method: str, result: Json) -> Json:
    """An answer that the SDK accepts."""
    match method:
        case "initialize":
            return _handshake(result)
        case "tools/list":
            cursor = result.get("nextCursor")
            more = {} if cursor in (None, "") else {"nextCursor": str(cursor)}
            tools = [stub for tool in _list(result.get("tools")) if (stub := _stub(tool))]
            return {"tools": tools, **more, **_MODERN, "_meta": _carried(result)}
        case "tools/call" if result.get("resultType", "complete") in ("complete", None):
            return {"content": [], **_MODERN, "_meta": _carried(result)}
    return result


def _carried(answer: Json) -> Json:
    carrier = _Sent()
    carrier.answer = answer
    return {_SENT: carrier}


def _handshake(result: Json) -> Json:
    """Only its version matters."""
    given = result.get("serverInfo")
    info: Mapping[str, Any] = given if isinstance(given, dict) else {}
    return {
        "protocolVersion": result.get("protocolVersion"),
        "capabilities": {"tools": {}},
        "serverInfo": {name: str(info.get(name) or "unknown") for name in ("name", "version")},
    }


def _stub(tool: Any) -> Json | None:
    """As much of a tool as the SDK reads: which arguments are sent as headers."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return None
    schema = tool.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        properties = {}
    known = {name: inner for name, inner in properties.items() if isinstance(inner, dict | bool)}
    return {"name": tool["name"], "inputSchema": {"type": "object", "properties": known}}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
