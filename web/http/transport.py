"""The bytes of one HTTP connection, beside what uvicorn does with them.

What has arrived is given to the parser in portions of little work, none of which has the beginnings
of two requests. A body that arrives too slowly is late. The head of a response is sent together
with its body, and a large body is waited for until it is sent.
"""

import asyncio
import re
import weakref
from collections.abc import Callable
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

WORK_OF_A_TURN: Final = 256
"""Portions and calls of the parser for one connection in one turn of the event loop. A portion that
has begun is finished."""
_PORTION = 32 * 1024
"""Bytes."""
_SHORT_LINES = 256
"""A portion with more lines is shorter: chunks of one byte and the shortest header fields are calls
for a few bytes each."""
_SHORT_PORTION = 2048
_END = b"\r\n\r\n"
"""The end of a head, and of a chunked body."""
_LINE_ENDS = re.compile(rb"[\r\n]+")
LEAST_PROGRESS: Final = 1024
"""Bytes of a body that must arrive in a period (docs/limits.md, "Before the API key is known")."""
LARGE_BODY: Final = 64 * 1024
"""Bytes. A larger body is sent without a copy of it, and its request ends when it was sent."""
_PAUSES: Final = 40
"""Longest time in which a client may take a large body, in times of `web.send_timeout`."""


def is_line_end(data: bytes, start: int) -> bool:
    """Whether line ends are next in `data`: at most the end of a request, and none begins."""
    return data[start] in b"\r\n"


def portion_end(data: bytes, start: int, body_left: int) -> int:
    """The end of the portion that begins at `start`. `body_left`: bytes that are left of a body
    with a length, which the parser delivers in one piece."""
    if body_left:
        return min(start + body_left, len(data))
    limit = min(start + _PORTION, len(data))
    if data.count(b"\n", start, limit) > _SHORT_LINES:
        limit = min(start + _SHORT_PORTION, len(data))
    # The end of a request may have come in two pieces; without this, a request would follow it.
    line_ends = _LINE_ENDS.match(data, start, limit)
    if line_ends is not None:
        return line_ends.end()
    end = data.find(_END, start, limit)
    return limit if end < 0 else end + len(_END)


class ReadingControl(FlowControl):
    """uvicorn's flow control. Reading pauses also while something that was received is kept."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_declined = False
        """The application does not take more now."""
        self._is_held = False

    def pause_reading(self) -> None:
        """The application does not take more now."""
        self._is_declined = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """The application takes more."""
        self._is_declined = False
        if not self._is_held:
            super().resume_reading()

    def hold(self, is_held: bool) -> None:
        """Whether something that was received is kept."""
        if is_held == self._is_held:
            return
        self._is_held = is_held
        if is_held:
            super().pause_reading()
        elif not self._is_declined:
            super().resume_reading()


class ResponseTransport(asyncio.Transport):
    """What uvicorn writes one response to.

    uvicorn writes the head and the body separately: two system calls, and two packets that each
    wake the client. Here a head that announces the length of its body waits for the first part of
    it. The head of a stream does not wait: its first event may come much later.
    """

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        """`transport`: of the connection."""
        super().__init__()
        self._transport = transport
        # It refers to this object, and what it holds of a request is to be freed with the request.
        self._cycle: RequestResponseCycle = weakref.proxy(cycle)
        self._head: bytes | None = None
        """None: not written yet; empty: sent"""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends a part of the response, or keeps the head."""
        cycle = self._cycle
        if self._head is None and cycle.response_started:
            has_body = cycle.chunked_encoding is False and cycle.scope["method"] != "HEAD"
            self._head = bytes(data) if has_body else b""
            if has_body:
                return
        elif self._head:
            if len(data) > LARGE_BODY:
                self._transport.write(self._head)
            else:
                data = self._head + data
            self._head = b""
        self._transport.write(data)

    def close(self) -> None:
        """Sends what is left, and closes the connection."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is closed."""
        return self._transport.is_closing()


async def until_sent(transport: asyncio.Transport, flow: FlowControl, pause: float) -> None:
    """Returns when the network has taken what was written to the connection, all but some KiB, or
    the connection is closed. A client that takes less than a fortieth of it in `pause` seconds is
    disconnected: others wait for the memory."""
    left = total = transport.get_write_buffer_size()
    while True:
        try:
            async with asyncio.timeout(pause):
                await flow.drain()
                return
        except TimeoutError:
            before, left = left, transport.get_write_buffer_size()
            if before - left < max(1, total // _PAUSES):
                transport.abort()


class BodyDeadline:
    """Periods of one length, from the head of a request to the end of its body. A piece of the body
    must arrive in each of them. A period in which the server did not always read does not count:
    the client could not send, and has the whole next one."""

    def __init__(
        self, seconds: float, *, is_read: Callable[[], bool], on_late: Callable[[], None]
    ) -> None:
        """`seconds` is the length of a period. `is_read` tells whether the server reads at this
        moment. `on_late` is called at the end of a period without a piece."""
        self._seconds = seconds
        self._is_read = is_read
        self._on_late = on_late
        self._timer: asyncio.TimerHandle | None = None
        self._received = 0
        """bytes since the period began"""
        self._was_read = True
        """The server has always read since the period began."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins the first period, if none runs."""
        if self._timer is None:
            self._begin(loop)

    def received(self, size: int) -> None:
        """`size` bytes of the body have arrived."""
        self._received += size
        self._was_read = self._was_read and self._is_read()

    def stop(self) -> None:
        """The body is complete, or not wanted any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """The connection has ended. Forgets whom to call: the connection, which owns this object,
        would otherwise be left to the garbage collector."""
        self.stop()
        self._is_read, self._on_late = _never_read, _ignore

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._received = 0
        self._was_read = self._is_read()
        self._timer = loop.call_later(self._seconds, self._end, loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        is_expected = self._was_read and self._is_read()
        if is_expected and self._received < LEAST_PROGRESS:
            self._timer = None
            self._on_late()
        else:
            self._begin(loop)


def _never_read() -> bool:
    return False


def _ignore() -> None:
    """There is no connection any more."""
