"""How a response that was steered ends: together with the response that continues it, or with what
its client has to send first (ADR 0075)."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from uuid import UUID

import psycopg

from models.db.database import Connection, Json, Jsonb, Pool, fetch, fetch_unless_refused
from models.db.queries.end import EndedRow
from models.db.queries.steers import KEEP_STEERS, QUEUED_STEERS, SUCCEED, QueuedSteer
from models.db.statement import Query
from models.ownership.steps import Steering, Successor


async def read_queued(
    pool: Pool, response: UUID, others_succeed: Callable[[], bool]
) -> list[QueuedSteer]:
    """What was sent to the response while it ran. Raises StatementRefused."""
    return await fetch_unless_refused(pool, QUEUED_STEERS, {"id": response}, others_succeed)


async def end_steered(
    pool: Pool,
    end: Query[EndedRow],
    values: Mapping[str, object],
    steering: Steering,
    queue_wait: timedelta,
) -> list[EndedRow]:
    """One try to store an ending with what becomes of its steers: all of it, or nothing, which
    returns no row.

    `end`, `values`: the statement of the ending. `queue_wait`: how long the successor may wait for
    a worker.
    """
    rows: list[EndedRow] = []
    async with pool.connection() as connection, connection.transaction() as transaction:
        if await _settle(connection, values, steering, queue_wait):
            rows = await fetch(connection, end, values)
        if not rows:
            raise psycopg.Rollback(transaction)
    return rows


async def _settle(
    connection: Connection,
    values: Mapping[str, object],
    steering: Steering,
    queue_wait: timedelta,
) -> bool:
    """Whether the steers are those that are known. Then they are committed, or kept; any others
    are returned by the ending itself (migrations/functions.sql)."""
    if steering.successor is not None:
        more = _values_of(steering.successor) | {"queue_wait": queue_wait}
        return bool(await fetch(connection, SUCCEED, {**values, **more}))
    if steering.required_input is not None:
        required = Jsonb(steering.required_input)
        return bool(await fetch(connection, KEEP_STEERS, {**values, "required_input": required}))
    return True


def _values_of(successor: Successor) -> dict[str, object]:
    secrets = successor.secrets
    return {
        "successor": successor.id,
        "parameters": None if successor.parameters is None else Json(successor.parameters),
        "created_at": successor.created_at,
        "items": Jsonb(successor.items),
        "last": len(successor.frames) - 1,
        "frames": b"".join(successor.frames),
        "key_id": None if secrets is None else secrets.key_id,
        "sealed": None if secrets is None else secrets.sealed,
    }
