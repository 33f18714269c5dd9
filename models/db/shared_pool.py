"""The pool of connections of a process, which its projects share."""

import asyncio
import time
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from psycopg_pool import AsyncConnectionPool, PoolTimeout

from models.db.connection import Connection
from models.load.fair_queue import FairQueue
from models.uncancellable import run_uncancellable

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
