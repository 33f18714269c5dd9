"""Requests of projects that have moved: what they name is here, or the other cell serves them.

A request that names something that is still here (a response, a conversation, a file, …, in its
path or its JSON body), or that repeats a create of here, is served here. All others are sent to the
other cell with the client's key, and its answer is passed on as it comes.

What is here may leave while a request is served (departure.py). So before an answer that refuses
or changes something is sent, the request is looked at again: if what it names has left, the other
cell answers it.
"""

import asyncio
import math
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from uuid import UUID

import aiohttp
import orjson
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from features.cells.moved_queries import FIND_PLACE, MovedKey, Place
from features.cells.socket_relay import SocketRelay
from models.db.arrays import Uuids
from models.db.database import fetch_idempotent
from models.errors import ClientDisconnected, RequestTooLarge, Unauthenticated, Unavailable
from models.keys import hash_key
from models.load.budget import Reservation
from models.tasks import cancel_all
from web.http.auth import read_api_key
from web.http.body import BODY_READ, UNCOUNTED_BYTES, ReservedBody, announced_size, run_sized
from web.http.connection import wait_for_disconnect
from web.http.json_responses import json_response
from web.idempotency.keys import IdempotencyKey, parse_idempotency_key
from web.state import AppState

_RELAYED = "x-backburner-relayed"
"""The header of a relayed request: when its project has moved from the cell that relays it. Only a
later move relays it again: the cell to which a project comes back serves what has come back."""
_MOST_DIGITS = 16
_ID = re.compile(rb"(?:resp|conv|file|vs|batch|cntr|sched|whe)[_-]([0-9a-f]{32})(?![0-9a-f])")
_MAX_IDS = 1000
"""Of a request; further ones are not looked for."""
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "expect")
)
_REQUEST_ID = "x-request-id"
_NOT_SENT_ON = _HOP_BY_HOP | {"content-length", _REQUEST_ID, _RELAYED}
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

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send
    ) -> tuple[Receive, Send] | None:
        """See `Relay` in web/hooks.py."""
        connection = HTTPConnection(scope)
        try:
            moved = self.keys.get(hash_key(read_api_key(connection)))
        except Unauthenticated:
            return receive, send
        path: str = scope["path"]
        may_relay = path.startswith("/v1/") and not path.startswith("/v1/organization/")
        if moved is None or not may_relay or moved.moved_at <= _relayed_by(connection.headers):
            return receive, send
        if scope["type"] == "websocket":
            socket = SocketRelay(self._state, moved.project, scope, receive, send)
            await socket.serve(
                self._connections(), _target(moved.url, scope), _headers(moved, scope)
            )
            return None
        memory = Reservation(self._state.budgets.bodies, moved.project)
        body = _Body(receive, connection.headers, self._state, memory)
        try:
            await body.read(scope)
            named = await _named(moved.project_id, scope, connection.headers, body.content)
            if (await self.place(named)).here:
                return body.receive, _Answer(self, moved, scope, body, named, send)
            await self._relay(moved, scope, send, body)
        finally:
            memory.release()
        return None

    async def place(self, named: "_Named") -> Place:
        """Where what a request names is now."""
        if not named.ids and named.key is None and named.body_hash is None:
            return Place(here=False, elsewhere=False)
        values = {
            "project": named.project,
            "ids": Uuids(named.ids),
            "key": named.key,
            "body_hash": named.body_hash,
        }
        return (await fetch_idempotent(self._state.pool, FIND_PLACE, values))[0]

    async def _relay(self, moved: MovedKey, scope: Scope, send: Send, body: "_Body") -> None:
        """Ends when the answer has ended, or the client has disconnected."""
        sending = asyncio.create_task(self.send_on(moved, scope, send, body))
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

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT),
                connector=aiohttp.TCPConnector(limit=0),
                auto_decompress=False,
                skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            )
        return self._session

    async def send_on(self, moved: MovedKey, scope: Scope, send: Send, body: "_Body") -> None:
        """Sends the request to the other cell, and its answer to the client. Raises Unavailable."""
        begun = False
        try:
            async with self._connections().request(
                scope["method"],
                _target(moved.url, scope),
                headers=_headers(moved, scope),
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


def _target(url: str, scope: Scope) -> str:
    query = scope["query_string"].decode("latin-1")
    return f"{url.rstrip('/')}{scope['path']}{'?' if query else ''}{query}"


def _relayed_by(headers: Headers) -> float:
    """Which move has relayed this request. -1: none. Infinity: the client has made up a header."""
    value = headers.get(_RELAYED)
    if value is None:
        return -1
    is_number = value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS
    return int(value) if is_number else math.inf


def _headers(moved: MovedKey, scope: Scope) -> list[tuple[str, str]]:
    headers = [
        (name, value)
        for name, value in Headers(scope=scope).items()
        if name not in _NOT_SENT_ON and not name.startswith("sec-websocket-")
    ]
    return [*headers, (_REQUEST_ID, scope["request_id"]), (_RELAYED, str(moved.moved_at))]


@dataclass(frozen=True, slots=True)
class _Named:
    """What a request names."""

    project: UUID
    ids: list[UUID]
    changes: bool
    """it changes what its path names"""
    key: str | None
    """of an earlier create that it may repeat"""
    body_hash: bytes | None
    """of an earlier create of an SDK that it may repeat"""


async def _named(project: UUID, scope: Scope, headers: Headers, content: bytes) -> _Named:
    return await run_sized(partial(_find, project, scope, headers, content), len(content))


def _find(project: UUID, scope: Scope, headers: Headers, content: bytes) -> _Named:
    in_path = _ID.findall(scope["path"].encode())
    digits = dict.fromkeys([*in_path, *_ID.findall(content)])
    repeat: IdempotencyKey | None = None
    if scope["method"] == "POST":
        with suppress(orjson.JSONDecodeError):
            repeat = parse_idempotency_key(headers, orjson.loads(content or b"null"))
    if repeat is not None and not repeat.may_repeat:
        repeat = None
    return _Named(
        project,
        [UUID(each.decode()) for each in digits][:_MAX_IDS],
        bool(in_path) and scope["method"] not in ("GET", "HEAD"),
        None if repeat is None else repeat.key,
        repeat.body_hash if repeat is not None and repeat.key is None else None,
    )


class _Answer:
    """Sends the answer of this cell, unless what the request names has left it meanwhile."""

    def __init__(
        self,
        relay: CellRelay,
        moved: MovedKey,
        scope: Scope,
        body: "_Body",
        named: _Named,
        send: Send,
    ) -> None:
        self._relay = relay
        self._moved = moved
        self._scope = scope
        self._body: _Body | None = body
        self._named = named
        self._send = send
        self._is_replaced = False

    async def __call__(self, message: Message) -> None:
        """Raises Unavailable."""
        body, self._body = self._body, None
        if body is not None and not self._is_replaced:
            refused: bool = message.get("status", 200) >= HTTPStatus.BAD_REQUEST
            if refused or self._named.changes:
                self._is_replaced = await self._replace(body, message["status"])
        if not self._is_replaced:
            await self._send(message)

    async def _replace(self, body: "_Body", status: int) -> bool:
        """Whether another answer was sent."""
        place = await self._relay.place(self._named)
        if not place.here:
            error = Unavailable("What this request names has just moved. Please retry.")
            if body.may_repeat:
                try:
                    await self._relay.send_on(self._moved, self._scope, self._send, body)
                except Unavailable as unavailable:
                    error = unavailable
                else:
                    return True
        elif place.elsewhere and status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
            error = Unavailable("What this request names is in two cells yet. Please retry.")
        else:
            return False
        answer = json_response(error.body(), status=error.status, headers=error.headers)
        await answer(self._scope, body.receive, self._send)
        return True


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
        self._is_received = False
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

    @property
    def may_repeat(self) -> bool:
        """Whether it can be sent on although it was read here."""
        return self._is_read

    def outgoing(self) -> bytes | AsyncIterator[bytes] | None:
        """What is sent on."""
        if not self._has_body:
            return None
        return self.content if self._is_read else self._pieces()

    async def receive(self) -> Message:
        """The messages of a request whose body was perhaps read."""
        if self._is_read and self._has_body and not self._is_received:
            self._is_received = True
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
