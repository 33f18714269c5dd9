"""A WebSocket whose frames are written into the traces of the responses that it creates."""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.chaos.audit.record import JSON, Reading, ReadingEnd, ResponseTrace
from tests.chaos.audit.sse import ENDINGS
from tests.support.api import Api
from tests.support.websocket_client import socket


@dataclass(slots=True)
class _Running:
    """A create whose frames are being received."""

    trace: ResponseTrace
    reading: Reading
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def finish(self, end: ReadingEnd) -> None:
        """Nothing more comes for this create."""
        if not self.ended.is_set():
            self.reading.end, self.reading.closed = end, time.monotonic()
            self.ended.set()


class RecordedSocket:
    """One connection. Its lanes run creates side by side, each lane one after the other."""

    def __init__(self, connection: ClientConnection, web: str, context: AsyncExitStack) -> None:
        """`web`: the name of the web process. `context` closes the connection."""
        self._connection = connection
        self._web = web
        self._context = context
        self._running: dict[str | None, _Running] = {}
        self._frames = 0
        self._disconnect_after: int | None = None
        self._is_left = False
        self.is_open = True
        self._receiving = asyncio.create_task(self._receive())

    @classmethod
    async def open(cls, api: Api, web: str) -> "RecordedSocket | None":
        """Opens a connection; None if the handshake failed."""
        context = AsyncExitStack()
        try:
            opened = await context.enter_async_context(socket(api))
        except (OSError, InvalidHandshake, EOFError):  # a time-out is an OSError
            return None
        return cls(opened.connection, web, context)

    def disconnect_after(self, frames: int) -> None:
        """The client closes the connection after so many more frames."""
        self._disconnect_after = self._frames + frames

    async def create(self, trace: ResponseTrace, body: JSON, lane: str | None = None) -> None:
        """Sends a create; returns at its end, at an error or at the end of the connection."""
        now = time.monotonic()
        trace.create.web, trace.create.sent = self._web, now
        running = _Running(trace, Reading(self._web, -1, now, is_socket=True))
        self._running[lane] = running
        frame = {"type": "response.create", **body}
        if lane is not None:
            frame["stream_id"] = lane
        try:
            await self._connection.send(json.dumps(frame))
        except ConnectionClosed:
            running.finish("cut")
        if not self.is_open:
            running.finish("cut")
        await running.ended.wait()
        del self._running[lane]

    async def close(self) -> None:
        """Closes the connection; what still runs is cancelled by the server."""
        self._is_left = True
        await self._context.aclose()
        await self._receiving

    async def _receive(self) -> None:
        """Records all frames, until either side closes the connection."""
        end: ReadingEnd = "clean"
        try:
            async for message in self._connection:
                assert isinstance(message, str), "a binary frame"
                self._record(message)
                self._frames += 1
                if self._frames == self._disconnect_after:
                    self._is_left = True
                    self._connection.transport.abort()
                    break
        except ConnectionClosed as error:
            end = "cut" if error.rcvd is None else "clean"
        self.is_open = False
        for running in self._running.values():
            running.finish("left" if self._is_left else end)

    def _record(self, message: str) -> None:
        """Writes a frame into the trace that it belongs to."""
        now = time.monotonic()
        data = json.loads(message)
        running = self._running.get(data.get("stream_id"))
        if running is None:  # an error of the whole connection
            return
        trace, reading = running.trace, running.reading
        if data["type"] == "error":
            if trace.create.status is None:
                trace.create.status, trace.create.body = data["status"], data
                trace.create.retry_after = data["error"].get("headers", {}).get("retry-after")
                trace.create.answered = now
            running.finish("cut")
            return
        if trace.create.status is None:
            trace.create.status, trace.create.answered = 200, now
            trace.id = data["response"]["id"]
            trace.readings.append(reading)
        reading.chunks.append((now, message.encode()))
        if data["type"] in ENDINGS:
            running.finish("clean")
