"""When the body of a request is late (docs/limits.md, "Before the API key is known")."""

import asyncio
from collections.abc import Callable

_LEAST_PROGRESS = 1024
"""Bytes of a body that must arrive in a period."""


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
