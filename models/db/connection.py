"""The connections to Postgres of an event loop, which can run a large statement in a thread, and
the pool of them that the projects of a process share."""

import asyncio
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeVar
from uuid import UUID

from psycopg import AsyncConnection, waiting
from psycopg.abc import PQGen
from psycopg.errors import Error
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from models.load.fair_queue import FairQueue
from models.uncancellable import run_uncancellable

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
    check_interval = _CHECK_INTERVAL
    """Seconds. Longer for one that waits for notifications: each look wakes the process."""

    async def wait(
        self,
        gen: PQGen[T],
        interval: float | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (psycopg declares it)
    ) -> T:
        """What psycopg calls for each step of a statement. Raises what its own method raises."""
        interval = interval or self.check_interval
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


ACTING_PROJECT: ContextVar[UUID | None] = ContextVar("acting_project", default=None)
"""Whose work the statements of this task are. None: the process's own, or that of several projects
together. A web process sets it with the key of a request, a worker with the run of a response."""


class SharedPool(AsyncConnectionPool[Connection]):
    """A pool that the projects share (`ACTING_PROJECT`).

    The work of a project waits for its turn, and leaves connections for the others and for the
    process itself, which takes whatever is free
    (docs/architecture.md).

    It hands out the connection that was returned last: statements that come one after another run
    in one session, which has planned them and whose caches they have filled. psycopg's pool takes
    the one that was returned first, so that they visit all sessions in turn. Those that only a
    burst has used stay unused then, and the pool closes them.
    """

    def __init__(self, *arguments: Any, max_size: int, **named: Any) -> None:
        super().__init__(*arguments, max_size=max_size, **named)
        self._slots = FairQueue(max_size)
        self._users: dict[Connection, UUID] = {}
        """The connections that are in use for a project."""

    async def getconn(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  (psycopg_pool declares it)
    ) -> Connection:
        """Raises PoolTimeout if there is no connection within `timeout` seconds."""
        project = ACTING_PROJECT.get()
        if project is None:
            return await super().getconn(timeout)
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        try:
            async with asyncio.timeout(end - time.monotonic()):
                await self._slots.acquire(project)
        except TimeoutError:
            raise PoolTimeout("the other statements of this project take too long") from None
        try:
            connection = await super().getconn(max(0.0, end - time.monotonic()))
        except BaseException:
            self._slots.release(project)
            raise
        self._users[connection] = project
        return connection

    async def putconn(self, conn: Connection) -> None:
        """The connection is not used any more. A cancellation is raised when it is free again:
        psycopg's method would lose it, and count it for ever."""
        try:
            await self._put_back(conn)
        finally:
            project = self._users.pop(conn, None)
            if project is not None:
                self._slots.release(project)

    async def _put_back(self, conn: Connection) -> None:
        if not self._waiting:
            try:
                # Mostly it has nothing to wait for, and needs no task of its own.
                await super().putconn(conn)
            except asyncio.CancelledError:
                # It was waiting for the pool's lock.
                await run_uncancellable(self._return_connection(conn, from_getconn=False))
                raise
        else:
            # Cancelled, it would also lose the client that it has taken from the queue.
            await run_uncancellable(super().putconn(conn))

    async def check(self) -> None:
        """psycopg's check of the connections that are free. A cancellation is raised after it: in
        the middle, those that are not checked yet would be lost."""
        await run_uncancellable(super().check())

    def get_stats(self) -> dict[str, int]:
        """psycopg's figures; those that wait for their turn wait too."""
        stats = super().get_stats()
        stats["requests_waiting"] += self._slots.waiting
        return stats

    async def _get_ready_connection(
        self,
        timeout: float | None,  # noqa: ASYNC109  (psycopg_pool declares it)
    ) -> Connection | None:
        self._pool.rotate(1)
        return await super()._get_ready_connection(timeout)
