"""The purge: deletes what has outlived its retention and what clients have deleted.

A task of every worker with a connection of its own, so that it delays no sweep. One worker purges
at a time. Every step is one short transaction, so a backlog of any size delays no other statement
for long. A step that is interrupted leaves nothing that the next round does not see.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final
from uuid import UUID

from models.config.settings import Settings
from models.db.arrays import Uuids
from models.db.database import (
    Connection,
    Parameters,
    connect,
    execute,
    fetch,
)
from models.db.queries import clock, retention, usage, vector_purge, webhooks
from models.db.queries.activity import DELETE_OLD_ACTIVITY
from models.db.queries.batches import DELETE_OLD_BATCHES
from models.db.statement import Query, RowT
from models.due_work import repeat
from models.files.storage import FileStorage
from models.webhooks.schedule import EXPIRY, LONGEST_ENDPOINT_PAUSE
from worker.purge_files import purge_files
from worker.retrieval.vector_index import drop_unused

_LOCK: Final = 0x6262_2E70_7572_6765
"""The advisory lock of the purge: "bb.purge" in ASCII."""
_MAX_ROWS = 5_000
"""Rows that one step looks at, hides or deletes."""
_MAX_VECTOR_ROWS: Final = 500
_STORE_SHOWN: Final = timedelta(days=30)
"""So long a vector store is shown after it has expired."""
_MAX_IDLE_STEPS = 4
"""Steps of one round that look at expired responses and find only kept ones."""
_ROWS: Final = {"rows": _MAX_ROWS}
_START: Final = {"expires_at": datetime.min.replace(tzinfo=UTC), "id": UUID(int=0)}

_VECTOR_STEPS = (
    vector_purge.HIDE_EXPIRED_STORES,
    vector_purge.HIDE_ENTRIES,
    vector_purge.DELETE_CHUNKS,
    vector_purge.FORGET_CHUNKS,
    vector_purge.DELETE_ENTRIES,
    vector_purge.DELETE_STORES,
)


class Purger:
    """The purge of one worker."""

    def __init__(self, settings: Settings, name: str, storage: FileStorage | None) -> None:
        """`name`: the `application_name` of its session. `storage` None: there are no files."""
        self._settings = settings
        self._name = name
        self._storage = storage
        self._position: dict[str, object] = dict(_START)
        """Behind which expired response the next step looks. Expired responses that others
        continue may be many; each round looks at some of them."""

    async def run(self) -> None:
        """Purges at the interval. Never returns.

        Any error ends only the round: a worker must not stop because it cannot purge.
        """
        interval = self._settings.worker.purge_interval.total_seconds()
        await repeat("purge", self._purge, interval)

    async def _purge(self) -> None:
        async with await connect(self._settings, self._name) as connection:
            await self.purge(connection)

    async def purge(self, connection: Connection) -> None:
        """One round: until nothing is left, or another worker purges."""
        await _repair_times(connection)
        await self._hide_expired(connection)
        while await _delete_hidden(connection):
            pass
        await _step(connection, retention.DELETE_OLD_WORKERS, {})
        await _step(connection, retention.DELETE_RECOVERED_JOURNALS, {})
        await _step(connection, DELETE_OLD_ACTIVITY, {})
        await _steps(connection, retention.DELETE_EXPIRED_KEYS, {})
        await self._delete_webhooks(connection)
        if self._storage is not None:
            await purge_files(
                partial(_step, connection), self._storage, self._settings.files.upload_time
            )
        await _purge_vectors(connection)
        await drop_unused(connection)
        keep = self._settings.batches.retention
        await _steps(connection, DELETE_OLD_BATCHES, {"retention": keep})
        await self._delete_expired_audit(connection)
        await self._roll_up_usage(connection)

    async def _delete_webhooks(self, connection: Connection) -> None:
        """Deletes old deliveries of webhooks, and deleted endpoints with theirs."""
        keep = self._settings.webhooks.retention
        values = {"retention": keep, "waiting": max(keep, EXPIRY)}
        await _steps(connection, webhooks.DELETE_OLD_DELIVERIES, values)
        await _steps(connection, webhooks.DELETE_DELIVERIES_OF_DELETED, {})
        await _step(connection, webhooks.DELETE_DELETED_ENDPOINTS, {})

    async def _roll_up_usage(self, connection: Connection) -> None:
        """Sums up the usage of days that have ended, then deletes old entries."""
        while await _step(connection, usage.ROLL_UP_DAY, {}):
            pass
        keep = self._settings.worker.usage_entries
        await _steps(connection, usage.DELETE_OLD_ENTRIES, {"keep": keep})

    async def _delete_expired_audit(self, connection: Connection) -> None:
        """Deletes entries of the audit log by age, if that is wanted."""
        keep = self._settings.audit.retention
        if keep is not None:
            values = {"retention": keep}
            await _steps(connection, retention.DELETE_EXPIRED_AUDIT, values, audit=True)

    async def _hide_expired(self, connection: Connection) -> None:
        """Hides what has expired and is not kept."""
        idle_steps = 0
        while idle_steps < _MAX_IDLE_STEPS:
            values = self._position | _ROWS
            rows = await _step(connection, retention.HIDE_EXPIRED, values, one_snapshot=True)
            if not rows:
                return
            idle_steps = 0 if rows[0].hidden else idle_steps + 1
            if rows[0].hidden == _MAX_ROWS:
                continue
            if rows[0].examined == _MAX_ROWS:
                self._position = {"expires_at": rows[0].expires_at, "id": rows[0].id}
                continue
            self._position = dict(_START)
            if not rows[0].hidden:
                return


async def _repair_times(connection: Connection) -> None:
    """Moves times to the present for which something would wait that the clock was set back."""
    for query in clock.REPAIRS:
        await _steps(connection, query, {"longest_pause": LONGEST_ENDPOINT_PAUSE})


async def _purge_vectors(connection: Connection) -> None:
    """Deletes vector stores that clients have deleted or that have expired, files that were removed
    from one, and what was stored of files that failed or were cancelled."""
    values: dict[str, object] = {"rows": _MAX_VECTOR_ROWS, "keep": _STORE_SHOWN}
    for query in _VECTOR_STEPS:
        while await _step(connection, query, values):
            pass


async def _delete_hidden(connection: Connection) -> bool:
    """Deletes some of the hidden responses; returns whether there may be more.

    First their logs, part by part: a log can be very long.
    """
    ids = await _step(connection, retention.DELETABLE, {"items": _MAX_ROWS})
    if not ids:
        return False
    values: dict[str, object] = {"ids": Uuids(ids)}
    while await _step(connection, retention.DELETE_LOG, values | _ROWS) == [_MAX_ROWS]:
        pass
    return bool(await _step(connection, retention.DELETE_HIDDEN, values))


async def _steps(
    connection: Connection, query: Query[RowT], values: Parameters, *, audit: bool = False
) -> None:
    """Repeats a step while it finds as many rows as it may."""
    while len(await _step(connection, query, {**values, **_ROWS}, audit=audit)) == _MAX_ROWS:
        pass


async def _step(
    connection: Connection,
    query: Query[RowT],
    values: Parameters,
    *,
    one_snapshot: bool = False,
    audit: bool = False,
) -> list[RowT]:
    """One statement in a transaction that holds the lock; no rows if another worker holds it.

    Then pauses for as long as it took, so that the purge uses half of one session at most.
    """
    started_at = time.monotonic()
    async with connection.transaction():
        if one_snapshot:
            await execute(connection, retention.READ_ONE_SNAPSHOT, {})
        if audit:
            await execute(connection, retention.ALLOW_AUDIT_PURGE, values)
        rows = (
            await fetch(connection, query, values)
            if await fetch(connection, retention.LOCK_PURGE, {"key": _LOCK})
            else []
        )
    await asyncio.sleep(time.monotonic() - started_at)
    return rows
