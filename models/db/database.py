"""Connections to Postgres: how each session is set up, the pool, and how statements are run.

Statements are typed objects (models/db/statement.py), and psycopg runs them directly: SQLAlchemy's
async engine costs 0.3-1 ms more for each statement. Sessions are READ COMMITTED and in autocommit.
They have limits of their own: a statement of 15 s, an idle transaction of 3 s, and a silent network
for less time than a lease lasts. The limits of the session are set by statements: PgBouncer refuses
or drops `options` of a connection. It must pool sessions, not transactions (docs/deploy.md).

There are these ways to run a statement:
- `fetch` (rows) and `execute` (no rows): once, on the pool or on a connection. Raise what
  DATABASE_UNAVAILABLE names; the outcome is then unknown.
- `fetch_idempotent`: once more after a lost connection. For reads, and for writes that change
  nothing the second time. `find_by_id` reads one row that way.
- `fetch_when_available`, and `retry_while_unavailable` around anything else: repeats until Postgres
  answers. `retry_unless_refused`, and `fetch_unless_refused` with it, gives up if Postgres
  answers, and refuses only this statement. A cancelled read is not repeated.
- `fetch_sync` and `execute_sync` (models/db/sync.py): for threads without an event loop (heartbeat,
  command line).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg import AsyncRawCursor
from psycopg.types.json import Json, Jsonb, set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from models.db.connection import Connection, SharedPool, warn
from models.db.statement import Query, RowT, Statement, column
from models.db.sync import (
    DatabaseSettings,
    Parameters,
    SyncConnection,
    connect_sync,
    connection_arguments,
    execute_sync,
    fetch_sync,
    session_setup,
)
from models.errors import StatementRefused

Pool = AsyncConnectionPool[Connection]
ConnectionCheck = Callable[[Connection], Awaitable[None]]
ResultT = TypeVar("ResultT")
JsonLoader = Callable[[Any], object]

DATABASE_UNAVAILABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
)
"""What a statement raises when Postgres is unreachable or restarts, or when the connection was
lost: its outcome is then unknown.

Some of these errors say that nothing was written, and it is right to repeat the statement: a
refused lock, a timed-out statement, a full disk, and a server that is read-only because it was
demoted (psycopg counts the last one, and a transaction that idled too long, as internal errors).
"""

NOT_EXECUTED = (
    PoolTimeout,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.DiskFull,
    psycopg.errors.OutOfMemory,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
)
"""Those of DATABASE_UNAVAILABLE after which it is certain that an autocommitted statement changed
nothing: it was never sent, or Postgres itself refused it."""

_CONNECTIONS_AT_START = 4
"""Two of the pool, the heartbeat, the tie: what every process opens at its start."""
RETRY_DELAY = 0.5
"""Seconds between two tries while Postgres is unavailable."""

_LARGE = 4 * 1024 * 1024
"""Bytes of a statement from which on it runs in a thread (models/db/connection.py). Its connection
is closed afterwards, and the pool opens another one: libpq keeps a buffer of up to twice the size
of the largest message."""

_REFUSALS = (psycopg.errors.QueryCanceled, psycopg.errors.OutOfMemory)
"""Those of DATABASE_UNAVAILABLE that may concern this one statement: it takes longer than its time
limit, or more memory than there is."""
_LIMIT_EXCEEDED = "54"
"""The class of errors that say that a statement is beyond a fixed limit of Postgres, such as the
size of a row or of an index entry. It is so each time."""
_REFUSAL_DELAYS = (0.5, 1.0, 2.0, 4.0, 4.0)
"""Seconds before the second, third, … try of a statement that Postgres refuses."""


BACKEND_PID = column("SELECT pg_backend_pid() AS pid", int)
"""The process id of this session of Postgres."""


class TransactionPooling(Exception):
    """A connection pooler gives the sessions of this process to others between transactions."""

    def __str__(self) -> str:
        return "the connection pooler pools transactions; set it to pool sessions"


def open_pool(
    settings: DatabaseSettings, name: str, size: int, check: ConnectionCheck | None = None
) -> Pool:
    """A pool of up to `size` connections. The caller opens it (`await pool.open()`) in its loop.
    `check`: called with each new connection, which is not used if it raises."""

    async def configure(connection: Connection) -> None:
        await connection.execute(session_setup(settings))
        if check is not None:
            await check(connection)

    arguments = connection_arguments(settings, name)
    conninfo = arguments.pop("conninfo")
    return SharedPool(
        conninfo,
        connection_class=Connection,
        kwargs=arguments,
        configure=configure,
        min_size=min(2, size),
        max_size=size,
        open=False,
        timeout=5,
        # The pauses between the attempts of a longer one grow: after 20 s without Postgres the
        # next attempt would be 11 s away.
        reconnect_timeout=2,
        name=name,
    )


async def connect(
    settings: DatabaseSettings, name: str, check: ConnectionCheck | None = None
) -> Connection:
    """A connection outside any pool; `check` as for `open_pool`. Raises `psycopg.OperationalError`
    if Postgres is unavailable."""
    connection = await Connection.connect(**connection_arguments(settings, name))
    try:
        await connection.execute(session_setup(settings))
        if check is not None:
            await check(connection)
    except BaseException:
        await connection.close()
        raise
    return connection


def wait_until_available(settings: DatabaseSettings, timeout: float = 30) -> None:
    """Blocks until Postgres accepts connections: for the start of a process. After `timeout`
    seconds it raises what DATABASE_UNAVAILABLE names, also if there are fewer free connections than
    every process needs. Raises `TransactionPooling` if the process would not have its sessions for
    itself."""
    end = time.monotonic() + timeout
    while True:
        try:
            with ExitStack() as open_connections:
                connections = [
                    open_connections.enter_context(connect_sync(settings, "start"))
                    for _ in range(_CONNECTIONS_AT_START)
                ]
                _check_pooling(*connections[:2])
        except DATABASE_UNAVAILABLE:
            if time.monotonic() > end:
                raise
            time.sleep(RETRY_DELAY)
        else:
            return


def _check_pooling(first: SyncConnection, second: SyncConnection) -> None:
    """Raises `TransactionPooling` if two connections were given the same session of Postgres, or
    one connection two of them.

    A pooler that pools transactions prefers the session that was used last, or uses all in turn, so
    that a few transactions show it. Without a pooler nothing is tried.
    """
    session = _backend_pid(first)
    if session == first.info.backend_pid:
        return
    for _ in range(5):
        with second.transaction():
            if _backend_pid(second) == session or _backend_pid(first) != session:
                raise TransactionPooling


def _backend_pid(connection: SyncConnection) -> int:
    """The process id of the session of Postgres. `connection.info.backend_pid` is another number if
    a pooler answered the connection."""
    return fetch_sync(connection, BACKEND_PID, {})[0]


async def fetch(
    on: Pool | Connection,
    query: Query[RowT],
    parameters: Parameters,
    pool_timeout: float | None = None,
    *,
    size: int = 0,
    json_as: JsonLoader | None = None,
) -> list[RowT]:
    """All rows of one statement, on a connection of the pool (autocommitted) or on this connection
    (in its transaction, if one is open). `pool_timeout`: seconds to wait for a free connection.
    `size`: bytes of the parameters or of the rows, if there may be many. `json_as`: what is made of
    a JSON value instead of decoding it, such as an `orjson.Fragment`, which an answer takes as it
    is."""
    if isinstance(on, AsyncConnectionPool):
        async with on.connection(timeout=pool_timeout) as connection:
            if size > _LARGE:
                connection.runs_in_thread = True
            try:
                rows = await fetch(connection, query, parameters, json_as=json_as)
                size = max(size, query.size(rows))
                return rows
            finally:
                if size > _LARGE:
                    await connection.close()
    if query.numbered is not None:
        values = [parameters[name] for name in query.numbered.parameters]
        raw_cursor = AsyncRawCursor(on)
        if json_as is not None:
            set_json_loads(json_as, raw_cursor)
        await raw_cursor.execute(query.numbered.sql, values, binary=True)
        return query.rows(await raw_cursor.fetchall())
    # In binary, bytea columns are not sent as hex digits.
    prepare = False if query.is_planned_anew else None
    cursor = on.cursor()
    if json_as is not None:
        set_json_loads(json_as, cursor)
    await cursor.execute(query.sql, parameters, prepare=prepare, binary=True)
    return query.rows(await cursor.fetchall())


@asynccontextmanager
async def large_connection(
    pool: Pool, size: int, pool_timeout: float | None = None
) -> AsyncIterator[Connection]:
    """A connection of the pool for a transaction whose parameters have `size` bytes together."""
    async with pool.connection(timeout=pool_timeout) as connection:
        connection.runs_in_thread = size > _LARGE
        try:
            yield connection
        finally:
            if size > _LARGE:
                await connection.close()


async def execute(
    on: Pool | Connection, statement: Statement | Query[Any], parameters: Parameters
) -> None:
    """Runs a statement on the pool or a connection, as `fetch` does. Its rows are not read."""
    if isinstance(on, AsyncConnectionPool):
        async with on.connection() as connection:
            await connection.execute(statement.sql, parameters, binary=True)
    else:
        await on.execute(statement.sql, parameters, binary=True)


async def fetch_idempotent(
    pool: Pool | Connection,
    query: Query[RowT],
    parameters: Parameters,
    *,
    size: int = 0,
    json_as: JsonLoader | None = None,
) -> list[RowT]:
    """`fetch`, repeated once after a lost connection. For reads, and for writes that change nothing
    the second time (cancel, delete). After a restart of Postgres all idle connections of the pool
    are dead, and the first statement on each would fail although Postgres is back. A statement that
    has reached its time limit is not repeated, nor one that got no connection: it would take as
    long. Nor is one on a connection outside a pool: a command of an operator."""
    if isinstance(pool, Connection):
        return await fetch(pool, query, parameters, json_as=json_as)
    cancellation = _Cancellation()
    try:
        return await fetch(pool, query, parameters, size=size, json_as=json_as)
    except (psycopg.errors.QueryCanceled, PoolTimeout):
        raise
    except DATABASE_UNAVAILABLE:
        cancellation.raise_if_requested()
        await pool.check()
        return await fetch(pool, query, parameters, pool_timeout=1.0, size=size, json_as=json_as)


async def find_by_id(
    pool: Pool | Connection, query: Query[RowT], row_id: UUID | None, **parameters: object
) -> RowT | None:
    """The row with this `:id`, read with `fetch_idempotent`; None if there is none. Reads nothing
    if `row_id` is None: a client's text that cannot be an id."""
    if row_id is None:
        return None
    rows = await fetch_idempotent(pool, query, {"id": row_id, **parameters})
    return rows[0] if rows else None


async def require_by_id(
    pool: Pool | Connection,
    query: Query[RowT],
    row_id: UUID | None,
    absent: Exception,
    **parameters: object,
) -> RowT:
    """The row with this `:id`. Raises `absent` if there is none."""
    row = await find_by_id(pool, query, row_id, **parameters)
    if row is None:
        raise absent
    return row


async def fetch_when_available(
    pool: Pool, query: Query[RowT], parameters: Parameters, *, size: int = 0
) -> list[RowT]:
    """`fetch` for reads that can wait: repeated while Postgres is unavailable (I9)."""
    return await retry_while_unavailable(
        lambda: fetch(pool, query, parameters, size=size), "database_unavailable_read_waits"
    )


async def fetch_unless_refused(
    pool: Pool,
    query: Query[RowT],
    parameters: Parameters,
    others_succeed: Callable[[], bool],
    *,
    json_as: JsonLoader | None = None,
) -> list[RowT]:
    """`fetch_when_available` for a read of one response; raises as `retry_unless_refused` does.
    `json_as`: as `fetch` takes it.

    A cancellation returns at once: a cancelled statement keeps psycopg busy for up to five seconds.
    The statement that is on its way then ends by itself, and is not repeated.
    """
    return await retry_unless_refused(
        lambda: asyncio.shield(fetch(pool, query, parameters, json_as=json_as)),
        others_succeed,
    )


async def retry_while_unavailable(
    operation: Callable[[], Awaitable[ResultT]], log_event: str | None = None, **log_fields: str
) -> ResultT:
    """Awaits `operation()` until it does not raise what DATABASE_UNAVAILABLE names, and returns its
    result. Each failed try is logged as `log_event`. The operation must be safe to repeat."""
    cancellation = _Cancellation()
    while True:
        try:
            return await operation()
        except DATABASE_UNAVAILABLE as error:
            cancellation.raise_if_requested()
            if log_event is not None:
                warn(log_event, error=str(error).strip(), **log_fields)
            await asyncio.sleep(RETRY_DELAY)


async def retry_unless_refused(
    operation: Callable[[], Awaitable[ResultT]], others_succeed: Callable[[], bool]
) -> ResultT:
    """`retry_while_unavailable` for a statement of one response, which must not be repeated for
    ever if only this statement fails.

    Raises StatementRefused if it is beyond a fixed limit of Postgres, or if Postgres has cancelled
    it or had no memory for it six times in a row although `others_succeed()` each time: other
    statements of this process were answered in the last seconds. While Postgres does not answer,
    nothing is counted.
    """
    delays = iter(_REFUSAL_DELAYS)
    cancellation = _Cancellation()
    while True:
        try:
            return await operation()
        except DATABASE_UNAVAILABLE as error:
            cancellation.raise_if_requested()
            delay: float | None = RETRY_DELAY
            if (error.sqlstate or "").startswith(_LIMIT_EXCEEDED):
                delay = None
            elif isinstance(error, _REFUSALS) and others_succeed():
                delay = next(delays, None)
                warn("statement_refused", error=str(error).strip())
            else:
                delays = iter(_REFUSAL_DELAYS)
            if delay is None:
                raise StatementRefused(str(error).strip()) from error
            await asyncio.sleep(delay)


class _Cancellation:
    """Whether this task is cancelled from now on.

    A statement that is cancelled while its connection is lost may raise the error of the connection
    instead. Repeated, it would go on for ever although nobody waits for it.
    """

    def __init__(self) -> None:
        self._requests_before = self._requests()

    @staticmethod
    def _requests() -> int:
        task = asyncio.current_task()
        return 0 if task is None else task.cancelling()

    def raise_if_requested(self) -> None:
        """Raises CancelledError if the task was cancelled."""
        if self._requests() > self._requests_before:
            raise asyncio.CancelledError


def is_refusal(error: Exception) -> bool:
    """Whether Postgres has answered an autocommitted statement with this error, so that it is
    certain that the statement changed nothing."""
    is_answer = isinstance(error, psycopg.Error) and error.sqlstate is not None
    return is_answer and (
        isinstance(error, NOT_EXECUTED) or not isinstance(error, DATABASE_UNAVAILABLE)
    )


# What the other modules of models/db and psycopg define, for all users of this one.
__all__ = [
    "Connection",
    "Json",
    "Jsonb",
    "Parameters",
    "SyncConnection",
    "connect_sync",
    "connection_arguments",
    "execute_sync",
    "fetch_sync",
]
