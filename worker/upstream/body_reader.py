"""Reads the body of an upstream's response without waking a task for each read.

aiohttp reads by a future, and the task behind it returns through a dozen coroutines: of a thousand
streams, that takes as long as all the work on their events. Here a protocol stands between the
transport and the one of aiohttp, which stays the HTTP parser. What has arrived is given to aiohttp,
and taken from its buffers, for all streams together, when the next batch of the journal begins: the
events would wait for that in any case.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import cast

import aiohttp

_READ_BYTES = 16 * 1024
"""Bytes of one read at most. What one read brings is parsed without a pause."""
_EVENT_ENDS = (b"}\n\n", b"}\n\n\r\n")
"""The last bytes of an event, and of one in a chunk. What ends otherwise is read at once: it may be
the end of the stream."""
_MOST_WAITING = 16
"""Reads of one connection that wait for the next batch, at most."""

Pause = Callable[[], Awaitable[None]]
"""To be called and awaited before anything more is read."""
Use = Callable[[bytes], Pause | None]
"""Uses the bytes of one read; none are the end of the body."""


_LATEST = 0.05
"""Seconds after which what has arrived is read although no batch begins: Postgres is slow."""


class Arrivals:
    """The bodies of which something has arrived that is not read yet."""

    def __init__(self) -> None:
        self._readers: dict[BodyReader, None] = {}
        self._latest = 0.0
        self._request_batch: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None

    def wait_for_batches(self, request: Callable[[], None]) -> None:
        """From now on each batch of the journal calls `read` when it begins. `request`: requests
        one. Without batches they are read as soon as they arrive."""
        self._request_batch, self._latest = request, _LATEST

    def add(self, reader: "BodyReader") -> None:
        """Something has arrived for this one."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._latest, self.read)
            self._request_batch()
        self._readers[reader] = None

    def read(self) -> None:
        """Reads all of them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        readers, self._readers = self._readers, {}
        for reader in readers:
            reader.read()


class BodyReader(asyncio.Protocol):
    """Reads one body. What arrives during a pause waits in aiohttp's buffer; when that is full,
    nothing more is read from the connection."""

    def __init__(self, response: aiohttp.ClientResponse, use: Use, arrivals: Arrivals) -> None:
        """`use` is called in the context in which this is made."""
        self._content = response.content
        self._use = use
        self._arrivals = arrivals
        self._received: list[bytes] = []
        """What aiohttp has not got yet."""
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._wake: asyncio.Future[Pause | None] | None = None
        """What the task waits for. None, or done: nothing is read."""
        self._is_over = False
        self._transport: asyncio.Transport | None = None
        """None: the connection is aiohttp's alone."""
        if not self._content.is_eof() and response.connection is not None:
            self._transport = response.connection.transport
        if self._transport is not None:
            self._protocol = cast("asyncio.Protocol", self._transport.get_protocol())
            self._transport.set_protocol(self)

    def end(self) -> None:
        """Nothing more is read."""
        self._is_over = True

    async def run(self) -> None:
        """Reads until the end. Raises what `use` and its pauses raise, and aiohttp's errors."""
        try:
            while not self._is_over:
                self._wake = self._loop.create_future()
                self._read()
                pause = await self._wake
                if pause is not None:
                    await pause()
        finally:
            self._detach()
            del self._use  # it refers to who has this

    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        is_small = len(data) < _READ_BYTES and len(self._received) < _MOST_WAITING
        if is_small and data.endswith(_EVENT_ENDS):
            self._arrivals.add(self)
        else:
            self.read()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.read()
        self._protocol.connection_lost(exc)
        if not self._content.is_eof() and self._content.exception() is None:
            # aiohttp closes the connection when a chunk is malformed, and leaves the body open.
            self._content.set_exception(aiohttp.ClientPayloadError("malformed body"))
        self.read()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def read(self) -> None:
        """Uses what has arrived."""
        self._context.run(self._read)

    def _read(self) -> None:
        if not self._received:
            self._read_buffer()
        while self._received:  # one after the other: what comes before an error is used
            self._protocol.data_received(self._received.pop(0))
            self._read_buffer()

    def _read_buffer(self) -> None:
        """Uses what aiohttp has parsed, until there is a pause."""
        wake, content = self._wake, self._content
        if content.is_eof():
            self._detach()
        if wake is None:
            return
        try:
            while not wake.done():
                data = content.read_nowait(_READ_BYTES)
                if data or content.is_eof():
                    pause = self._use(data)
                    self._is_over |= not data
                    if self._is_over or pause is not None:
                        wake.set_result(pause)
                if len(data) < _READ_BYTES and not content.is_eof():
                    return
        except Exception as error:  # noqa: BLE001 - the task raises it
            if not wake.done():
                wake.set_exception(error)

    def _detach(self) -> None:
        """Gives the connection back to aiohttp: at the end of the body another request may get it
        at once."""
        if self._transport is not None:
            self._transport.set_protocol(self._protocol)
            self._transport = None
        while self._received:
            self._protocol.data_received(self._received.pop(0))
