"""The connections to Postgres of an event loop. They can run a large statement in a thread."""

import asyncio
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from psycopg import AsyncConnection, waiting
from psycopg.abc import PQGen
from psycopg.errors import Error
from psycopg.rows import TupleRow

T = TypeVar("T")

_THREADS = ThreadPoolExecutor(16, "large-statement")
"""Not those of the event loop, which look up addresses and read files: a large statement may wait
for Postgres for many seconds. More than 16 at a time wait for each other."""
_CHECK_INTERVAL = 0.1
"""Seconds between two looks whether the socket of a silent connection was closed."""
_CANCEL_TIMEOUT = 5.0
"""Seconds for the cancel of a statement, and as many for its end, as psycopg has them. Then its
connection is cut."""


def warn(event: str, **fields: str) -> None:
    """Logs a warning. Commands import this module and log nothing: structlog takes longer to import
    than a command to run."""
    import structlog

    structlog.get_logger().warning(event, **fields)


class Connection(AsyncConnection[TupleRow]):
    """The reason is in docs/architecture.md."""

    runs_in_thread = False
    """Set before a large statement. The connection is closed after it."""

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = _CHECK_INTERVAL,
        timeout: float | None = None,  # noqa: ASYNC109  (psycopg declares it)
    ) -> T:
        """What psycopg calls for each step of a statement. Raises what its own method raises."""
        if not self.runs_in_thread:
            return await super().wait(gen, interval, timeout)
        # libpq then sends without the interpreter's lock, and does not move its buffer.
        self.pgconn.nonblocking = 0
        step = asyncio.get_running_loop().run_in_executor(
            _THREADS, waiting.wait, gen, self.pgconn.socket, interval, timeout
        )
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await self._end(step)
            raise

    async def _end(self, step: asyncio.Future[T]) -> None:
        """Returns when the thread does not use this connection any more: closed before, it would
        free memory that is in use. Cuts the connection after `_CANCEL_TIMEOUT`, or if this is
        cancelled too."""
        try:
            await self.cancel_safe(timeout=_CANCEL_TIMEOUT)
            await asyncio.wait((step,), timeout=_CANCEL_TIMEOUT)
        except Error as error:
            warn("statement_not_cancelled", error=str(error).strip())
        finally:
            if not step.done():
                self._cut()
            while not step.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((step,))
            if not step.cancelled():
                # Retrieved, so that asyncio does not log it.
                step.exception()

    def _cut(self) -> None:
        """Ends the connection for the thread, which then sees an error at once."""
        with suppress(Error, OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as copy:
            copy.shutdown(socket.SHUT_RDWR)
