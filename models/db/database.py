"""Connections to Postgres: how every session is set up, and the pool.

Statements are SQLAlchemy Core (models/db/queries/statements.py), compiled once, and run on psycopg directly: SQLAlchemy's async engine costs
0.3-1 ms more a statement. Sessions are READ COMMITTED, in autocommit, and give up by themselves: a statement after 15 s, an idle
transaction after 3 s, a silent network before a lease ends.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, LiteralString

import orjson
import psycopg
import structlog
from psycopg import AsyncConnection, AsyncCursor, Connection
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Json, Jsonb, set_json_dumps, set_json_loads
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import TextClause
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from models.config.settings import Settings

logger = structlog.get_logger()

set_json_loads(orjson.loads)
set_json_dumps(orjson.dumps)

Row = dict[str, Any]
Pool = AsyncConnectionPool[AsyncConnection[DictRow]]
Parameters = Mapping[str, object]

DATABASE_UNAVAILABLE = (psycopg.OperationalError, psycopg.InterfaceError)
"""What a statement raises when Postgres is away, restarting, or the connection is gone: its outcome is then unknown.

A refused lock or a timed-out statement is an OperationalError too; there nothing was written, and repeating is right as well.
"""

_dialect = PGDialect_psycopg()  # type: ignore[no-untyped-call]


def compile_statement(statement: TextClause) -> LiteralString:
    """A Core statement as psycopg runs it: SQL with `%(name)s` placeholders. Done once, at import."""
    return str(statement.compile(dialect=_dialect))


def connection_arguments(settings: Settings, name: str) -> dict[str, Any]:
    """psycopg's connection arguments: who we are (`application_name`), and what ends a session that hangs."""
    return {
        "conninfo": settings.dsn,
        "application_name": name,
        "autocommit": True,
        "connect_timeout": 3,
        "keepalives_idle": 3,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": 8000,
        "options": "-c statement_timeout=15s -c idle_in_transaction_session_timeout=3s -c default_transaction_isolation=read\\ committed",
        "row_factory": dict_row,
    }


def open_pool(settings: Settings, name: str, size: int) -> Pool:
    """A pool of up to `size` connections, not yet open: `await pool.open()` in the loop that will use it."""
    arguments = connection_arguments(settings, name)
    conninfo = arguments.pop("conninfo")
    return AsyncConnectionPool(
        conninfo,
        connection_class=AsyncConnection[DictRow],
        kwargs=arguments,
        min_size=min(2, size),
        max_size=size,
        open=False,
        timeout=5,
        # Longer, and its attempts lie ever further apart: after 20 s without Postgres the next one would be 11 s away.
        reconnect_timeout=2,
        name=name,
    )


async def connect(settings: Settings, name: str) -> AsyncConnection[DictRow]:
    """One connection outside any pool; raises `psycopg.OperationalError` when Postgres is away."""
    return await AsyncConnection[DictRow].connect(**connection_arguments(settings, name))


def connect_sync(settings: Settings, name: str, connect_timeout: int = 3) -> Connection[DictRow]:
    """The same for a thread of its own (heartbeat) and for the command line; `connect_timeout` in seconds."""
    return Connection[DictRow].connect(
        **connection_arguments(settings, name) | {"connect_timeout": connect_timeout}
    )


def wait_until_available(settings: Settings, timeout: float = 30) -> None:
    """Returns once Postgres takes connections; for the start of a process. `within`: seconds, then raises the last of what `AWAY` names."""
    end = time.monotonic() + timeout
    while True:
        try:
            connect_sync(settings, "start").close()
        except DATABASE_UNAVAILABLE:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
        else:
            return


async def fetch(
    pool: Pool, sql: LiteralString, parameters: Parameters, pool_timeout: float | None = None
) -> list[Row]:
    """All rows of one autocommitted statement; bytes come over in binary, not as hex. `within`: seconds to wait for a free connection,
    if not the pool's own."""
    async with pool.connection(timeout=pool_timeout) as connection:
        return await fetch_on(connection, sql, parameters)


async def read(pool: Pool, sql: LiteralString, parameters: Parameters) -> list[Row]:
    """The same for reads, which may be asked twice: after a restart of Postgres the pool's idle connections are all dead, and the first
    statement on each would fail although Postgres is back. Raises what `AWAY` names when it really is away."""
    try:
        return await fetch(pool, sql, parameters)
    except DATABASE_UNAVAILABLE:
        await pool.check()
        return await fetch(pool, sql, parameters, pool_timeout=1.0)


async def write_idempotent(pool: Pool, sql: LiteralString, parameters: Parameters) -> list[Row]:
    """The same for writes that change nothing when they come twice (cancel, delete): done and unheard is as good as done."""
    return await read(pool, sql, parameters)


async def fetch_when_available(pool: Pool, sql: LiteralString, parameters: Parameters) -> list[Row]:
    """The same for reads that can wait: while Postgres is away, asks again every half second (I9)."""
    while True:
        try:
            return await fetch(pool, sql, parameters)
        except DATABASE_UNAVAILABLE as error:
            logger.warning("read_waits", error=str(error).strip())
            await asyncio.sleep(0.5)


async def fetch_on(
    connection: AsyncConnection[DictRow], sql: LiteralString, parameters: Parameters
) -> list[Row]:
    """The same on a connection in hand: inside its transaction, if it has one open."""
    async with AsyncCursor[DictRow](connection, row_factory=dict_row) as cursor:
        await cursor.execute(sql, parameters, binary=True)
        return await cursor.fetchall() if cursor.description else []


__all__ = [
    "DATABASE_UNAVAILABLE",
    "Json",
    "Jsonb",
    "Parameters",
    "Pool",
    "Row",
    "compile_statement",
    "connect",
    "connect_sync",
    "connection_arguments",
    "fetch",
    "fetch_on",
    "fetch_when_available",
    "open_pool",
    "read",
    "wait_until_available",
    "write_idempotent",
]
