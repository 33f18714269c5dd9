"""Requests of projects that have moved: what they name is here, or the other cell serves them.

A request that names something that is still here (a response, a conversation, a file, …, in its
path or its JSON body), or that repeats a create of here, is served here. All others are sent to the
other cell with the client's key, and its answer is passed on as it comes.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from uuid import UUID

import aiohttp
import orjson
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from features.cells.moved_queries import IS_HERE, MovedKey
from models.db.arrays import Uuids
from models.db.database import fetch_idempotent
from models.errors import ClientDisconnected, RequestTooLarge, Unauthenticated, Unavailable
from models.keys import hash_key
from models.load.budget import Reservation
from models.tasks import cancel_all
from web.http.auth import read_api_key
from web.http.body import BODY_READ, UNCOUNTED_BYTES, ReservedBody, announced_size, run_sized
from web.http.connection import wait_for_disconnect
from web.idempotency.keys import IdempotencyKey, parse_idempotency_key
from web.state import AppState

_RELAYED = "x-backburner-relayed"
"""The header of a relayed request. It is not relayed again."""
_ID = re.compile(rb"(?:resp|conv|file|vs|batch|cntr|sched|whe)[_-]([0-9a-f]{32})(?![0-9a-f])")
_MAX_IDS = 1000
"""Of a request; further ones are not looked for."""
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "expect")
)
_REQUEST_ID = "x-request-id"
_OWN_HEADERS = (_REQUEST_ID, "date", "server")
"""Headers that each answer of this process has."""
_CONNECT = 2.0
"""Seconds in which the other cell must accept a connection."""


class CellRelay:
    """Of one web process. `keys`: those of projects that have moved, by their hash."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self.keys: dict[bytes, MovedKey] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """See `Relay` in web/hooks.py."""
        connection = HTTPConnection(scope)
        try:
            moved = self.keys.get(hash_key(read_api_key(connection)))
        except Unauthenticated:
            return receive
        path: str = scope["path"]
        may_relay = path.startswith("/v1/") and not path.startswith("/v1/organization/")
        if moved is None or not may_relay or _RELAYED in connection.headers:
            return receive
        memory = Reservation(self._state.budgets.bodies, moved.project)
        body = _Body(receive, connection.headers, self._state, memory)
        try:
            await body.read(scope)
            if await self._is_here(moved, scope, connection.headers, body.content):
                return body.receive
            await self._relay(moved.url, scope, send, body)
        finally:
            memory.release()
        return None

    async def _relay(self, url: str, scope: Scope, send: Send, body: "_Body") -> None:
        """Ends when the answer has ended, or the client has disconnected."""
        sending = asyncio.create_task(self._send_on(url, scope, send, body))
        leaving = asyncio.create_task(body.wait_for_disconnect())
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise ClientDisconnected
            sending.result()
        finally:
            await cancel_all({sending, leaving})

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()

    async def _is_here(
        self, moved: MovedKey, scope: Scope, headers: Headers, content: bytes
    ) -> bool:
        found, repeat = await run_sized(partial(_named, scope, headers, content), len(content))
        is_repeat = repeat is not None and repeat.may_repeat
        if not found and not is_repeat:
            return False
        values = {
            "project": moved.project_id,
            "ids": Uuids(found),
            "key": repeat.key if repeat and is_repeat else None,
            "body_hash": repeat.body_hash if repeat and is_repeat and repeat.key is None else None,
        }
        rows = await fetch_idempotent(self._state.pool, IS_HERE, values)
        return bool(rows[0])

    async def _send_on(self, url: str, scope: Scope, send: Send, body: "_Body") -> None:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                timeout=timeout,
                connector=connector,
                auto_decompress=False,
                skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            )
        query = scope["query_string"].decode("latin-1")
        target = f"{url.rstrip('/')}{scope['path']}{'?' if query else ''}{query}"
        headers = [
            (name, value)
            for name, value in Headers(scope=scope).items()
            if name not in _HOP_BY_HOP and name not in ("content-length", _REQUEST_ID)
        ]
        headers += [(_REQUEST_ID, scope["request_id"]), (_RELAYED, "1")]
        begun = False
        try:
            async with self._session.request(
                scope["method"],
                target,
                headers=headers,
                data=body.outgoing(),
                allow_redirects=False,
            ) as answer:
                await send(_start(answer))
                begun = True
                async for piece in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except (aiohttp.ClientError, OSError) as error:
            if begun:  # the client must see that the answer has no end
                raise asyncio.CancelledError from error
            raise Unavailable("The cell of this project does not answer.") from error


def _named(
    scope: Scope, headers: Headers, content: bytes
) -> tuple[list[UUID], IdempotencyKey | None]:
    """The ids that a request names, and what it may repeat."""
    digits = [*_ID.findall(scope["path"].encode()), *_ID.findall(content)]
    repeat = None
    if scope["method"] == "POST":
        with suppress(orjson.JSONDecodeError):
            repeat = parse_idempotency_key(headers, orjson.loads(content or b"null"))
    return [UUID(each.decode()) for each in dict.fromkeys(digits)][:_MAX_IDS], repeat


def _start(answer: aiohttp.ClientResponse) -> Message:
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in answer.headers.items()
        if name.lower() not in _HOP_BY_HOP and name.lower() not in _OWN_HEADERS
    ]
    return {"type": "http.response.start", "status": answer.status, "headers": headers}


class _Body:
    """The body of a request. JSON is read before, other content passes as it comes."""

    def __init__(
        self, receive: Receive, headers: Headers, state: AppState, memory: Reservation
    ) -> None:
        self._receive = receive
        self._memory = memory
        self._limit = state.body_limits.size
        self._pause = state.settings.web.body_pause.total_seconds()
        self._announced = announced_size(headers)
        self._is_json = headers.get("content-type", "").startswith("application/json")
        self._has_body = self._announced > 0 or "transfer-encoding" in headers
        self._is_read = not self._has_body
        self.content = b""

    async def read(self, scope: Scope) -> None:
        """Reads JSON. Raises RequestTooLarge, RequestTimeout, ShareUsedUp and Unavailable."""
        if not self._is_json or not self._has_body:
            return
        if self._announced > self._limit:
            raise RequestTooLarge(f"{self._limit} bytes")
        if self._announced > UNCOUNTED_BYTES:
            await self._memory.grow(int(self._announced))
        arriving, content, has_more = ReservedBody(self._receive, self._pause), bytearray(), True
        while has_more:
            message = await arriving.next(self._memory.amount)
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            content += message.get("body", b"")
            if len(content) > self._limit:
                raise RequestTooLarge(f"{self._limit} bytes")
            if len(content) > UNCOUNTED_BYTES:
                await self._memory.grow(len(content))
            has_more = message.get("more_body", False)
        self.content, self._is_read = bytes(content), True
        scope[BODY_READ] = True

    def outgoing(self) -> bytes | AsyncIterator[bytes] | None:
        """What is sent on."""
        if not self._has_body:
            return None
        return self.content if self._is_read else self._pieces()

    async def receive(self) -> Message:
        """The messages of a request whose body was perhaps read."""
        if self._is_read and self._has_body:
            self._is_read = self._has_body = False
            return {"type": "http.request", "body": self.content, "more_body": False}
        return await self._receive()

    async def wait_for_disconnect(self) -> None:
        """Waits until the client has disconnected; for ever if the body is passed on."""
        if not self._is_read:
            await asyncio.Event().wait()
        await wait_for_disconnect(self._receive)

    async def _pieces(self) -> AsyncIterator[bytes]:
        has_more = True
        while has_more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            has_more = message.get("more_body", False)
            yield message.get("body", b"")
