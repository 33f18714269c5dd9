"""The last look before a request leaves this process: is the work still its own?

A process that was frozen may have lost a response or a row to another one without knowing it. Its
leases are dated by its own monotonic clock, which goes on while it is frozen. So every connection
of a worker to the outside awaits `pass_fence` when it is open and has nothing more to wait for:
directly before the first bytes of a request are written. What the process was doing before does
not matter then. Only a freeze between that and the kernel's `send` remains (docs/guarantees.md).
"""

import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta

import aiohttp

Fence = Callable[[], Awaitable[None]]
"""Returns when a request may be sent. Does not return, or raises, if it may not."""

FENCE: ContextVar[Fence | None] = ContextVar("fence", default=None)
"""What the requests of this task, and of the tasks that it starts, must pass. None: they belong to
a client's own connection, which no other process takes over."""


class RowLeaseEnded(Exception):
    """The lease of the row has ended: another process may work on it."""


class RowLease:
    """The lease of a row that this process has taken, by this process's clock."""

    def __init__(self, duration: timedelta, sent_at: float) -> None:
        """`sent_at`: `time.monotonic()` before the statement that took the row was sent."""
        self._duration = duration.total_seconds()
        self._renewed_at = sent_at

    def renew(self, sent_at: float) -> None:
        """A statement that was sent at this time has begun the lease again."""
        self._renewed_at = sent_at

    async def require(self) -> None:
        """A `Fence`. Raises RowLeaseEnded."""
        if time.monotonic() - self._renewed_at >= self._duration:
            raise RowLeaseEnded("the lease has ended, another process may have the row")


async def pass_fence() -> None:
    """Awaited directly before a request is written to its connection."""
    fence = FENCE.get()
    if fence is not None:
        await fence()


def fenced() -> aiohttp.TraceConfig:
    """For a session of aiohttp: makes each of its requests pass the fence. aiohttp calls it with a
    connection that is open, before it writes the head."""

    async def before_head(*_: object) -> None:
        await pass_fence()

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(before_head)
    trace.freeze()
    return trace
