"""When the body of a request is late (docs/limits.md, "Before the API key is known")."""

import asyncio
from collections.abc import Callable

from starlette.types import Message, Receive

from models.errors import RequestTimeout

_LEAST_PROGRESS = 1024
"""Bytes of a body that must arrive in a period."""
_PERIODS = 40
"""Longest time of a body for which memory was reserved, in periods: others wait for that memory."""


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

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._received = 0
        self._was_read = self._is_read()
        self._timer = loop.call_later(self._seconds, self._end, loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        is_expected = self._was_read and self._is_read()
        if is_expected and self._received < _LEAST_PROGRESS:
            self._timer = None
            self._on_late()
        else:
            self._begin(loop)


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
        return max(_LEAST_PROGRESS, reserved // _PERIODS)
