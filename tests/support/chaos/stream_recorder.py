"""Reads SSE streams as clients do and records every chunk with its time."""

import asyncio
import io
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from tests.chaos.audit.record import JSON, Reading, ResponseTrace
from tests.chaos.audit.sse import parse
from tests.support.chaos.recorded_request import CONNECTION_ERRORS
from tests.support.stack import Service, Stack


@dataclass(slots=True)
class StreamOptions:
    """How a client reads a stream."""

    disconnect_after: list[int]
    """The reader disconnects after the first number of events, resumes, and so on."""
    pause: float = 0
    """Seconds between two reads, for a slow reader."""
    until: float = float("inf")
    """Time (`time.monotonic()`) after which it does not connect again."""


@dataclass(slots=True)
class _StreamRequest:
    """One SSE request; a body makes it the POST that creates the response."""

    reading: Reading
    web: Service
    path: str
    body: JSON | None = None
    disconnect_after: int | None = None
    pause: float = 0
    answered: asyncio.Event | None = None
    """Set when the response's id is known."""


class StreamRecorder:
    """Records what readers of one stack get."""

    def __init__(self, stack: Stack, pick_web: Callable[[str | None], Awaitable[Service]]) -> None:
        """`pick_web` returns a web process, another one than that of the given name if it can."""
        self._stack = stack
        self._pick_web = pick_web
        self._is_closed = False

    def close(self) -> None:
        """Lets no reader connect again."""
        self._is_closed = True

    async def create(
        self,
        trace: ResponseTrace,
        web: Service,
        body: JSON,
        options: StreamOptions,
        answered: asyncio.Event,
    ) -> None:
        """POSTs with a stream and reads it; a background response to its end, with resumes."""
        reading = Reading(web.name, -1, time.monotonic())
        request = _StreamRequest(
            reading, web, "/responses", body, _next_disconnect(options), answered=answered
        )
        try:
            await self._record(trace, request)
        finally:
            answered.set()
        if trace.id is not None and trace.background and parse(reading).terminal_event is None:
            await self.read(trace, _last_number(reading), options)

    async def read(self, trace: ResponseTrace, after: int, options: StreamOptions) -> None:
        """Reads a background response from the event after number `after` to its end."""
        web = None
        while not self._is_closed and time.monotonic() < options.until:
            web = await self._pick_web(None if web is None else web.name)
            reading = Reading(web.name, after, time.monotonic())
            position = "" if after < 0 else f"&starting_after={after}"
            request = _StreamRequest(
                reading,
                web,
                f"/responses/{trace.id}?stream=true{position}",
                disconnect_after=_next_disconnect(options),
                pause=options.pause,
            )
            status = await self._record(trace, request)
            stream = parse(reading)
            if stream.terminal_event is not None or stream.done_count or status == 404:
                return
            after = _last_number(reading)
            if not stream.events:
                await asyncio.sleep(0.1)  # the web process is down: do not try again at once

    async def _record(self, trace: ResponseTrace, request: _StreamRequest) -> int | None:
        """Sends one SSE request and records its answer; returns the status."""
        reading = request.reading
        headers = {"authorization": f"Bearer {self._stack.key}", "content-type": "application/json"}
        data = None if request.body is None else io.BytesIO(json.dumps(request.body).encode())
        try:
            async with self._stack.session.request(
                "GET" if request.body is None else "POST",
                f"http://127.0.0.1:{request.web.port}/v1{request.path}",
                data=data,
                headers=headers,
            ) as answer:
                if request.body is not None:
                    await _record_create(trace, answer)
                if answer.status == 200:
                    trace.readings.append(reading)
                    await _record_chunks(trace, request, answer)
                return answer.status
        except CONNECTION_ERRORS:
            reading.end = "cut"
            return None
        except asyncio.CancelledError:
            reading.end = "open"
            raise
        finally:
            reading.closed = time.monotonic()


async def _record_create(trace: ResponseTrace, answer: aiohttp.ClientResponse) -> None:
    trace.create.status = answer.status
    trace.create.retry_after = answer.headers.get("retry-after")
    trace.create.answered = time.monotonic()
    if answer.status != 200:
        trace.create.body = await answer.json()


async def _record_chunks(
    trace: ResponseTrace, request: _StreamRequest, answer: aiohttp.ClientResponse
) -> None:
    """Reads to the end of the stream, or until the reader disconnects."""
    reading = request.reading
    while chunk := await answer.content.readany():
        reading.chunks.append((time.monotonic(), chunk))
        if trace.id is None and (events := parse(reading).events):
            trace.id = events[0].data["response"]["id"]
        if request.answered is not None and trace.id is not None:
            request.answered.set()
        limit = request.disconnect_after
        if limit is not None and reading.raw.count(b"\n\n") >= limit:
            reading.end = "left"
            return
        if request.pause:
            await asyncio.sleep(request.pause)
    reading.end = "clean"


def _next_disconnect(options: StreamOptions) -> int | None:
    return options.disconnect_after.pop(0) if options.disconnect_after else None


def _last_number(reading: Reading) -> int:
    events = parse(reading).events
    return events[-1].number if events else reading.after
