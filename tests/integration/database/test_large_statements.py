"""Large statements run in threads (docs/architecture.md)."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from models.db import connection
from models.db.database import BACKEND_PID, Jsonb, Pool, fetch, open_pool
from models.db.statement import column
from tests.support.api import until
from tests.support.chaos.proxy import Proxy
from tests.support.memory_limit import MIB
from tests.support.stack import Databases
from tests.support.worker_rows import settings_for

_LENGTH = column("SELECT octet_length(CAST(:value AS bytea)) AS length", int)
_RETURNED = column("SELECT CAST(:value AS jsonb) ->> 'text' AS text", str)
_SLEEP = column("SELECT 1 AS one FROM pg_sleep(60)", int)
_SLEEPING = column(
    "SELECT count(*)::int AS count FROM pg_stat_activity"
    " WHERE datname = current_database() AND query LIKE '%pg_sleep(60)' AND state = 'active'",
    int,
)


@asynccontextmanager
async def _pool_on(dsn: str) -> AsyncIterator[Pool]:
    pool = open_pool(settings_for(dsn), "large", 4)
    await pool.open(wait=True)
    try:
        yield pool
    finally:
        await pool.close()


@pytest.fixture
async def dsn(database_server: Databases) -> str:
    return await database_server.create_copy()


async def test_a_large_statement_runs_outside_of_the_event_loop(dsn: str) -> None:
    threads: list[threading.Thread] = []

    def encode(value: Any) -> bytes:
        threads.append(threading.current_thread())
        return b'{"text":"%b"}' % value

    async with _pool_on(dsn) as pool:
        large = b"x" * (20 * MIB)
        assert await fetch(pool, _LENGTH, {"value": large}, size=len(large)) == [len(large)]
        values = {"value": Jsonb(large, dumps=encode)}
        assert await fetch(pool, _RETURNED, values, size=len(large)) == [large.decode()]
        assert threading.main_thread() not in threads
        threads.clear()
        assert await fetch(pool, _RETURNED, {"value": Jsonb(b"small", dumps=encode)}) == ["small"]
        assert set(threads) == {threading.main_thread()}


async def test_what_postgres_refuses_is_raised(dsn: str) -> None:
    async with _pool_on(dsn) as pool:
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            await fetch(pool, _RETURNED, {"value": b"no JSON".decode()}, size=5 * MIB)
        assert await fetch(pool, BACKEND_PID, {})


async def test_a_cancelled_statement_ends_in_postgres_too(dsn: str) -> None:
    async with _pool_on(dsn) as pool:
        statement = asyncio.create_task(fetch(pool, _SLEEP, {}, size=5 * MIB))
        await until(lambda: _count_sleeping(pool, 1))
        statement.cancel()
        with pytest.raises(asyncio.CancelledError):
            await statement
        assert await fetch(pool, _SLEEPING, {}) == [0]


async def _count_sleeping(pool: Pool, count: int) -> bool:
    return await fetch(pool, _SLEEPING, {}) == [count]


async def test_a_cancelled_statement_that_cannot_be_sent_loses_its_connection(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(dsn)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = Proxy(parts.hostname, parts.port)
    monkeypatch.setattr(connection, "_CANCEL_TIMEOUT", 0.1)
    try:
        async with _pool_on(proxy.url(dsn)) as pool:
            proxy.hang()
            large = b"x" * (60 * MIB)
            statement = asyncio.create_task(fetch(pool, _LENGTH, {"value": large}, size=len(large)))
            await until(lambda: proxy.blocked > 0)
            statement.cancel()
            with pytest.raises(asyncio.CancelledError):
                await statement
            proxy.heal()
            assert await fetch(pool, _LENGTH, {"value": large}, size=len(large)) == [len(large)]
    finally:
        await proxy.close()
