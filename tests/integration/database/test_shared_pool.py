"""Projects that share the connections of a process (docs/architecture.md)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import UUID, uuid4

import pytest
from psycopg_pool import PoolTimeout

from models.db.connection import ACTING_PROJECT
from models.db.database import BACKEND_PID, Pool, fetch, open_pool
from tests.support.api import until
from tests.support.stack import Databases
from tests.support.worker_rows import settings_for

_SIZE = 4
_OF_ONE_PROJECT = 3


class _Statements:
    """Statements that each hold a connection until the test ends them."""

    def __init__(self, pool: Pool) -> None:
        self.begun: list[UUID | None] = []
        self._pool = pool
        self._may_end = asyncio.Semaphore(0)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, project: UUID | None, count: int) -> None:
        self._tasks += [asyncio.create_task(self._run(project)) for _ in range(count)]

    async def end(self, count: int) -> None:
        """Ends so many, those that began first before the others."""
        for _ in range(count):
            self._may_end.release()

    async def end_all(self) -> None:
        await self.end(len(self._tasks))
        await asyncio.gather(*self._tasks)

    def cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def wait(self) -> None:
        await asyncio.wait(self._tasks)

    async def _run(self, project: UUID | None) -> None:
        ACTING_PROJECT.set(project)
        async with self._pool.connection():
            self.begun.append(project)
            await self._may_end.acquire()


@pytest.fixture
async def pool(database_server: Databases) -> AsyncIterator[Pool]:
    pool = open_pool(settings_for(await database_server.create_copy()), "shared", _SIZE)
    await pool.open(wait=True)
    yield pool
    await pool.close()


async def test_a_project_with_many_statements_leaves_connections_to_others(pool: Pool) -> None:
    busy, other = uuid4(), uuid4()
    statements = _Statements(pool)
    statements.start(busy, 10)
    await until(lambda: len(statements.begun) == _OF_ONE_PROJECT)
    assert pool.get_stats()["requests_waiting"] == 10 - _OF_ONE_PROJECT
    # The process itself waits for nothing while a connection is free.
    assert await fetch(pool, BACKEND_PID, {})
    statements.start(other, 2)
    await until(lambda: other in statements.begun)
    await statements.end(2)
    await until(lambda: len(statements.begun) == _OF_ONE_PROJECT + 3)
    assert statements.begun.count(other) == 2, "projects take turns"
    await statements.end_all()
    assert (statements.begun.count(busy), statements.begun.count(other)) == (10, 2)


async def test_a_statement_that_waits_too_long_is_refused_and_holds_nothing(pool: Pool) -> None:
    busy = uuid4()
    async with AsyncExitStack() as connections:
        ACTING_PROJECT.set(busy)
        for _ in range(_OF_ONE_PROJECT):
            await connections.enter_async_context(pool.connection())
        with pytest.raises(PoolTimeout):
            await fetch(pool, BACKEND_PID, {}, pool_timeout=0.01)
        waiting = asyncio.create_task(fetch(pool, BACKEND_PID, {}))
        await until(lambda: pool.get_stats()["requests_waiting"] == 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert pool.get_stats()["requests_waiting"] == 0
    async with AsyncExitStack() as connections:
        for _ in range(_OF_ONE_PROJECT):
            await connections.enter_async_context(pool.connection())


@pytest.mark.parametrize("waiting", [0, 1])
async def test_a_cancelled_statement_loses_no_connection(pool: Pool, waiting: int) -> None:
    """A client that disconnects cancels its statement at any point."""
    statements = _Statements(pool)
    statements.start(None, _SIZE + waiting)
    await until(lambda: len(statements.begun) == _SIZE)
    # The lock is held while a connection is given to a statement that waits for one.
    async with pool._lock:
        await statements.end(_SIZE)
        await until(lambda: len(pool._lock._waiters or ()) == _SIZE, every=0)
        statements.cancel_all()
    await statements.wait()
    assert pool.get_stats()["pool_available"] == _SIZE


async def test_a_cancelled_check_loses_no_connection(pool: Pool) -> None:
    before = pool.get_stats()["pool_available"]
    check = asyncio.create_task(pool.check())
    await until(lambda: pool.get_stats()["pool_available"] < before, every=0)
    check.cancel()
    with pytest.raises(asyncio.CancelledError):
        await check
    assert pool.get_stats()["pool_available"] == before
    assert pool.get_stats().get("connections_lost", 0) == 0
