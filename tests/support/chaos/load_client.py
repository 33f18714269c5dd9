"""One client of a load: it creates its response, does not give up, and records what it gets."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from tests.chaos.audit.record import ClientRequest, Reading, ResponseTrace
from tests.support.api import ENDINGS, JSON, TERMINAL, Api, Stream, StreamRefused, decode
from tests.support.chaos.recorded_request import CONNECTION_ERRORS, send_recorded
from tests.support.stack import Stack

DELTA = "response.output_text.delta"


class LoadKind(StrEnum):
    """How a response of the load is created and read."""

    STREAMED = "streamed"
    """In the background, read from its POST on."""
    POLLED = "polled"
    """In the background, read by GET."""
    CHAINED = "chained"
    """In the background, continues another response, read by GET with `stream=true`."""
    FOREGROUND = "foreground"
    """Streamed to the client that waits for it."""
    WAITING = "waiting"
    """Sent as JSON to the client that waits for it."""


BACKGROUND = (LoadKind.STREAMED, LoadKind.POLLED, LoadKind.CHAINED)
ALL = tuple(LoadKind)


@dataclass(slots=True)
class Member:
    """One response of the load, and what its client got."""

    kind: LoadKind
    trace: ResponseTrace
    """The record of it for the auditor."""
    frames: list[bytes] = field(default_factory=list)
    connections: int = 0
    """How often its reader had to connect; 1 if nothing disturbed it."""
    last_seen: JSON | None = None
    """The response as its client got it last."""

    @property
    def model(self) -> str:
        """Its model; no other response uses it."""
        return self.trace.marker

    @property
    def response_id(self) -> str:
        """Its id; only when its client knows it."""
        assert self.trace.id is not None
        return self.trace.id

    @property
    def is_background(self) -> bool:
        """Whether it is a background response."""
        return self.kind in BACKGROUND

    @property
    def deltas(self) -> int:
        """The number of text deltas that its reader got."""
        return sum(frame.startswith(f"event: {DELTA}\n".encode()) for frame in self.frames)

    @property
    def has_ended(self) -> bool:
        """Whether its reader got the terminal event."""
        if not self.frames:
            return False
        head = self.frames[-1].partition(b"\n")[0]
        return head.removeprefix(b"event: ").decode() in ENDINGS


class LoadClient:
    """Sends the requests of one member to the web processes of a stack."""

    def __init__(
        self, stack: Stack, member: Member, *, expects_disconnects: Callable[[], bool]
    ) -> None:
        """`expects_disconnects` says whether a broken connection is the client's own doing."""
        self._stack = stack
        self._member = member
        self._expects_disconnects = expects_disconnects

    async def run(self, apis: list[Api], parent_id: str | None) -> None:
        """Creates the response at the first web process and reads it to its end."""
        member, trace = self._member, self._member.trace
        match member.kind:
            case LoadKind.STREAMED:
                await self._post_stream(apis[0])
                await self._follow([*apis[1:], apis[0]])
            case LoadKind.POLLED:
                await self._create(apis[0], {"background": True})
                await self._poll(apis)
            case LoadKind.CHAINED:
                await self._create(apis[0], {"background": True, "previous_response_id": parent_id})
                await self._follow(apis)
            case LoadKind.FOREGROUND:
                await self._post_stream(apis[0])
            case LoadKind.WAITING:
                await self._create(apis[0], {})
                member.last_seen = trace.create.body if trace.create.status == 200 else None

    async def get(self, api: Api) -> JSON | None:
        """Sends a GET; returns the response, or None if it could not be answered now."""
        return await get_trace(self._stack, self._member.trace, api)

    @asynccontextmanager
    async def reading(self, api: Api, after: int) -> AsyncIterator[Reading]:
        """Records how a stream ended, whatever ends it."""
        reading = Reading(web_name(self._stack, api), after, time.monotonic())
        try:
            yield reading
            reading.end = "clean"
        except CONNECTION_ERRORS:
            reading.end = "left" if self._expects_disconnects() else "cut"
        finally:
            reading.closed = time.monotonic()
            if reading.chunks:
                self._member.trace.readings.append(reading)

    async def _create(self, api: Api, fields: JSON) -> None:
        await create_trace(self._stack, self._member.trace, api, fields)

    async def _post_stream(self, api: Api) -> None:
        """POSTs with a stream and reads as long as the connection lasts."""
        trace = self._member.trace
        trace.create = ClientRequest("create", web_name(self._stack, api), time.monotonic())
        async with (
            self.reading(api, -1) as reading,
            api.post_stream(self._member.model, background=trace.background) as stream,
        ):
            trace.create.answered, trace.create.status = time.monotonic(), 200
            await self._read(reading, stream)

    async def _follow(self, apis: list[Api]) -> None:
        """Resumes by number until the end, at one web process after the other."""
        member = self._member
        for api in itertools.cycle(apis):
            if member.has_ended:
                return
            number = decode(member.frames[-1])["sequence_number"] if member.frames else -1
            try:
                async with (
                    self.reading(api, number) as reading,
                    api.follow(member.response_id, number if number >= 0 else None) as stream,
                ):
                    await self._read(reading, stream)
            except StreamRefused as refusal:
                if refusal.status != 503:
                    raise
            await asyncio.sleep(0.1)

    async def _read(self, reading: Reading, stream: Stream) -> None:
        member = self._member
        member.connections += 1
        reading.chunks = stream.reads
        while await stream.next() is not None:
            member.frames.append(stream.frames[-1])
            member.trace.id = member.trace.id or stream.response_id
        if member.has_ended:
            member.last_seen = decode(member.frames[-1])["response"]

    async def _poll(self, apis: list[Api]) -> None:
        member = self._member
        for api in itertools.cycle(apis):
            if member.last_seen is not None and member.last_seen["status"] in TERMINAL:
                return
            await asyncio.sleep(0.1)
            member.last_seen = await self.get(api) or member.last_seen


async def create_trace(stack: Stack, trace: ResponseTrace, api: Api, fields: JSON) -> None:
    """POSTs the response of this trace without a stream."""
    trace.create = ClientRequest("create", web_name(stack, api), time.monotonic())
    body = {"model": trace.marker, "input": trace.input_text, **fields}
    await send_recorded(trace.create, api, "POST", "/responses", body)
    trace.id = trace.create.body.get("id")


async def get_trace(stack: Stack, trace: ResponseTrace, api: Api) -> JSON | None:
    """Sends a GET; returns the response, or None if it could not be answered now."""
    request = ClientRequest("get", web_name(stack, api), time.monotonic())
    trace.requests.append(request)
    await send_recorded(request, api, "GET", f"/responses/{trace.id}")
    assert request.status in (200, 503, None), request
    return request.body if request.status == 200 else None


def web_name(stack: Stack, api: Api) -> str:
    """The name of the web process; the last one if several had its port."""
    port = urlsplit(api.base_url).port
    return next(
        (process.name for process in reversed(stack.started) if process.port == port), "elsewhere"
    )
