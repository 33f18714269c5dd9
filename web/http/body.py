"""The body of a request, read within the size limit."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import orjson
from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive

from models.db.connection import ACTING_PROJECT
from models.errors import (
    ClientDisconnected,
    InvalidRequest,
    RequestTimeout,
    RequestTooLarge,
    UnsupportedMediaType,
)
from models.http_bodies import is_uncompressed
from models.load.budget import Reservation, SharedBudget
from models.load.fair_queue import FairQueue
from models.load.pacing import LARGE, PAUSE, pause_if_large
from models.projects.quotas import Limits
from models.wire.checks.faults import not_an_object
from models.wire.json_input import BodyLimits, count_values, decode_counted
from web.http.json_responses import json_response
from web.http.request_record import request_record
from web.http.transport import LEAST_PROGRESS

_MAX_DRAIN_BYTES = 256 * 1024 * 1024
_DRAIN_TIMEOUT = 5.0
_MAX_INLINE_BYTES = 64 * 1024
UNCOUNTED_BYTES = 64 * 1024
"""Smaller bodies are always read: a process has as much for each connection anyway."""
_UNCOUNTED_COST = 256 * 1024
"""Bytes. A smaller body counts too if its cost is larger: it has thousands of values."""
_VALUE_COST = 100
"""Bytes for each value of a body, beside its text (docs/adr/0039)."""
_REST = 2.0
"""The thread for large bodies rests so many times as long as it has worked."""
_LONGEST_REST = 0.5
"""Seconds."""
_LARGE_BODIES = ThreadPoolExecutor(1, "large-body")
_FOR_LARGE_BODIES = FairQueue(1)
"""The permit for that thread."""
_NO_PROJECT = UUID(int=0)
_PERIODS = 40
"""Longest time of a body for which memory was reserved, in periods: others wait for that memory."""
BODY_READ = "backburner.body_read"
"""The key of a request's scope that is set when the body was read."""

T = TypeVar("T")
Hold = Callable[[], Reservation]
"""Makes what a request has of the process's memory for large bodies and answers (`held_bytes`)."""


@dataclass(slots=True)
class JsonBody:
    """A decoded JSON body. Call `release` once the create is committed: clients may wait for hours,
    and the process must not keep the body for so long."""

    value: Any
    size: int
    """bytes of the encoded body"""
    memory: Reservation | None = None
    """Of the process's budget for bodies."""
    limits: Limits | None = None
    """The quotas under which the create was admitted; None: its project has none."""
    release_permit: Callable[[], None] | None = None
    """Gives back the permit of the create."""

    def release(self) -> None:
        """Drops the value, and releases all that the body has. Idempotent."""
        self.value = None
        if self.memory is not None:
            self.memory.release()
        if self.release_permit is not None:
            self.release_permit()
            self.release_permit = None

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work` on this body; see `run_sized`."""
        return await run_sized(work, self.size)

    async def pause(self) -> None:
        """Lets everything else go on between two steps over all of a large body."""
        await pause_if_large(self.size)


async def run_sized(work: Callable[[], T], size: int) -> T:
    """The result of `work` on a body of `size` bytes; runs in a thread if the body is larger than
    64 KiB.

    In the event loop a large body would delay all streams; the largest take longer than a lease
    lasts. One thread works on all large bodies: each further one would take its turn at the
    interpreter between two turns of the event loop (docs/adr/0039). Projects take turns. After each
    piece of work the thread rests.
    """
    if size <= _MAX_INLINE_BYTES:
        return work()
    async with _FOR_LARGE_BODIES.permit(ACTING_PROJECT.get() or _NO_PROJECT):
        return await asyncio.get_running_loop().run_in_executor(_LARGE_BODIES, _then_rest, work)


def _then_rest(work: Callable[[], T]) -> T:
    """The result of `work`, after a rest that is longer. A parser does not give up the interpreter
    lock, and many bodies, one after the other, would leave the event loop little time."""
    began = time.thread_time()
    try:
        return work()
    finally:
        time.sleep(min(_REST * (time.thread_time() - began), _LONGEST_REST))


def bind_bodies(app: FastAPI, bodies: SharedBudget, pause: float) -> None:
    """Makes `read_json` count the bytes of this application's requests in `bodies`. `pause`:
    seconds in which a part of a body that has a reservation must arrive."""
    app.state.bodies, app.state.body_pause = bodies, pause


def held_bytes(request: Request) -> Reservation:
    """What this request has of the process's memory for large bodies and answers: nothing yet. It
    is given back at the end of the request."""
    record = request_record(request)
    held = Reservation(request.app.state.bodies, record.project or "")
    record.at_end(held.release)
    return held


async def counted_json(request: Request, body: Any) -> Response:
    """A JSON answer. One of more than 64 KiB counts among the large bodies until it is sent. Raises
    ShareUsedUp or Unavailable."""
    encoded = orjson.dumps(body)
    if len(encoded) > UNCOUNTED_BYTES:
        await held_bytes(request).grow(len(encoded))
    return json_response(encoded)


async def read_json(request: Request, limits: BodyLimits, also: str = "") -> JsonBody:
    """The JSON body. `also`: another content type that the route accepts, for the message.

    Raises UnsupportedMediaType, RequestTooLarge (before the whole body is read) or InvalidRequest;
    before a large body is read or decoded ShareUsedUp or Unavailable, if the process has many
    others; RequestTimeout if a large body arrives slowly.
    """
    _require_json(request.headers, also)
    announced = _require_size(request.headers, limits.size)
    memory = _BodyMemory(request)
    if announced > UNCOUNTED_BYTES:
        await memory.grow(int(announced))
    raw = await _read(request, limits.size, memory)
    cost = await decoding_cost(raw, limits)
    if cost:
        await memory.grow_to_decode(cost)
    if max(len(raw), cost) <= LARGE:
        value = await run_sized(partial(decode_counted, raw, limits), len(raw))
    else:
        await asyncio.sleep(PAUSE)
        pause = partial(time.sleep, PAUSE)
        value = await run_sized(partial(decode_counted, raw, limits, pause=pause), len(raw))
        await asyncio.sleep(PAUSE)
    return JsonBody(value, len(raw), memory.reservation)


class _BodyMemory:
    """What is reserved for a body; nothing for a small one."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.reservation: Reservation | None = None

    @property
    def amount(self) -> int:
        return 0 if self.reservation is None else self.reservation.amount

    async def grow(self, amount: int) -> None:
        await self._reserved().grow(amount)

    async def grow_to_decode(self, amount: int) -> None:
        await self._reserved().grow_to_decode(amount)

    def _reserved(self) -> Reservation:
        if self.reservation is None:
            self.reservation = held_bytes(self._request)
            self.reservation.is_arriving = True
        return self.reservation


async def decoding_cost(raw: bytes | bytearray, limits: BodyLimits) -> int:
    """The bytes that a body counts together with the objects that are made of it; 0 for a small
    one. Raises RequestTooLarge if it has too many values."""
    if (_VALUE_COST + 1) * len(raw) <= _UNCOUNTED_COST:
        return 0
    values = await run_sized(partial(count_values, raw, limits), len(raw))
    cost = len(raw) + _VALUE_COST * values
    return cost if len(raw) > UNCOUNTED_BYTES or cost > _UNCOUNTED_COST else 0


def json_object(value: Any) -> dict[str, Any]:
    """The value of a body if it is a JSON object. Raises InvalidRequest."""
    if type(value) is not dict:
        raise not_an_object(value)
    return value


async def body_pieces(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body as it arrives, at most `limit` bytes; nothing of it is kept.

    Raises UnsupportedMediaType, RequestTooLarge or ClientDisconnected.
    """
    _require_uncompressed(request.headers)
    _require_size(request.headers, limit)
    size = 0
    has_more = True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise RequestTooLarge(f"{limit} bytes")
        has_more = message.get("more_body", False)
        if not has_more:
            request.scope[BODY_READ] = True
        if piece:
            yield piece


async def drain(request: Request) -> None:
    """Reads and drops the rest of the body, at most 256 MiB or 5 s of it, before an error is sent.

    Most clients read the response only after they have sent all of the body. A client that waits
    for `100 Continue` is not drained.
    """
    if BODY_READ in request.scope or "expect" in request.headers:
        return
    try:
        async with asyncio.timeout(_DRAIN_TIMEOUT):
            await _drop_body(request)
    except TimeoutError:
        return


def _require_json(headers: Headers, also: str) -> None:
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise UnsupportedMediaType(
            f"Unsupported content type: '{content_type[:100]}'. "
            f"Send 'Content-Type: application/json'{also and f' or {also}'}."
        )
    _require_uncompressed(headers)


def _require_uncompressed(headers: Headers) -> None:
    if not is_uncompressed(headers):
        raise UnsupportedMediaType(
            "Compressed request bodies are not supported. Send the body without Content-Encoding."
        )


def _require_size(headers: Headers, limit: int) -> float:
    """The announced size. Raises RequestTooLarge."""
    announced = announced_size(headers)
    if announced > limit:
        raise RequestTooLarge(f"{limit} bytes")
    return announced


def announced_size(headers: Headers) -> float:
    """The `Content-Length`; 0 without a usable one."""
    content_length = headers.get("content-length", "")
    if not (content_length.isascii() and content_length.isdigit()):
        return 0
    # `int` refuses thousands of digits.
    return int(content_length) if len(content_length) <= 18 else float("inf")


class ReservedBody:
    """The arrival of a body for which memory is reserved: of each such body a fortieth must arrive
    in a period. Time in which the server does not read does not count."""

    def __init__(self, receive: Receive, seconds: float) -> None:
        """`seconds` is the length of a period."""
        self._receive = receive
        self._seconds = seconds
        self._left = seconds
        self._received = 0
        """bytes since the period began"""

    async def next(self, reserved: int) -> Message:
        """The next message of the request. `reserved`: bytes. Raises RequestTimeout."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._left):
                message = await self._receive()
        except TimeoutError:
            raise RequestTimeout(
                f"The body of the request arrives too slowly: {self._least(reserved)} bytes are "
                f"expected every {self._seconds:g} seconds."
            ) from None
        self._left -= clock() - began
        self._received += len(message.get("body", b""))
        if self._received >= self._least(reserved):
            self._left, self._received = self._seconds, 0
        return message

    @staticmethod
    def _least(reserved: int) -> int:
        return max(LEAST_PROGRESS, reserved // _PERIODS)


async def _read(request: Request, limit: int, memory: _BodyMemory) -> bytearray:
    # Pieces that are joined at the end need twice the memory.
    body = bytearray()
    reserved = ReservedBody(request.receive, request.app.state.body_pause)
    has_more = True
    while has_more:
        message = await (reserved.next(memory.amount) if memory.amount else request.receive())
        if message["type"] == "http.disconnect":
            # Nothing can be sent any more, but the log should not show an error of this server.
            raise InvalidRequest("The request body ended early.", code="invalid_json")
        piece: bytes = message.get("body", b"")
        size = len(body) + len(piece)
        if size > limit:
            raise RequestTooLarge(f"{limit} bytes")
        if size > UNCOUNTED_BYTES and size > memory.amount:
            await memory.grow(min(2 * size, limit))
        body += piece
        has_more = message.get("more_body", False)
    request.scope[BODY_READ] = True
    return body


async def _drop_body(request: Request) -> None:
    dropped = 0
    while dropped < _MAX_DRAIN_BYTES:
        message = await request.receive()
        dropped += len(message.get("body", b""))
        if not message.get("more_body", False):
            return
