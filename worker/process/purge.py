"""The purge: deletes what has outlived its retention and what clients have deleted.

A task of every worker with a connection of its own, so that it delays no sweep. One worker purges:
its session holds the lock of the purge until it ends. Every step is one short transaction, so a
backlog of any size delays no other statement for long. A step that is interrupted leaves nothing
that the next round does not see.
"""

import asyncio
import time
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from models.config.settings import Settings
from models.db.arrays import Uuids
from models.db.database import Connection, Parameters, connect, execute, fetch
from models.db.queries import retention, usage
from models.db.queries.activity import DELETE_OLD_ACTIVITY
from models.db.statement import Query, RowT, Statement
from models.due_work import repeat
from models.features import feature_parts
from models.files.storage import FileStorage
from worker.process.log_partitions import LogPartitions, PartitionCare, read_partitions

_LOCK: Final = 0x6262_2E70_7572_6765
"""The advisory lock of the purge: "bb.purge" in ASCII."""
MAX_ROWS: Final = 5_000
"""Rows that one step looks at, hides or deletes."""


class PurgeSteps:
    """Runs the steps of the purge."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def repeat(
        self,
        query: Query[RowT],
        values: Parameters,
        *,
        rows: int = MAX_ROWS,
        first: Statement | Query[Any] | None = None,
    ) -> None:
        """Repeats a step while it finds as many rows as it may."""
        while len(await self.once(query, {**values, "rows": rows}, first=first)) == rows:
            pass

    async def once(
        self,
        query: Query[RowT],
        values: Parameters,
        *,
        first: Statement | Query[Any] | None = None,
    ) -> list[RowT]:
        """One step. Then pauses for as long as it took, so that the purge uses half of one session
        at most. `first`: what its transaction begins with, with the same values."""
        connection, started_at = self.connection, time.monotonic()
        if first is not None:
            async with connection.transaction():
                await execute(connection, first, values)
                rows = await fetch(connection, query, values)
        else:
            rows = await fetch(connection, query, values)
        await asyncio.sleep(time.monotonic() - started_at)
        return rows


_MAX_IDLE_STEPS = 4
"""Steps of one round that look at expired responses and find only kept ones."""
_ROWS: Final = {"rows": MAX_ROWS}
_START: Final = {"expires_at": datetime.min.replace(tzinfo=UTC), "id": UUID(int=0)}


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
        self._partition_care = PartitionCare()

    async def run(self) -> None:
        """Purges at the interval. Never returns.

        Any error ends only the round: a worker must not stop because it cannot purge.
        """
        interval = self._settings.worker.purge_interval.total_seconds()

        async def purge() -> None:
            async with await connect(self._settings, self._name) as connection:
                while await fetch(connection, retention.LOCK_PURGE, {"key": _LOCK}):
                    await self.purge(connection)
                    await asyncio.sleep(interval)

        await repeat("purge", purge, interval)

    async def purge(self, connection: Connection) -> None:
        """One round: until nothing is left."""
        steps = PurgeSteps(connection)
        await steps.repeat(retention.REPAIR_RESPONSES, {})
        await self._hide_expired(steps)
        partitions = await read_partitions(steps, self._settings)
        while await _delete_hidden(steps, partitions):
            pass
        await steps.once(retention.DELETE_OLD_WORKERS, _ROWS)
        await steps.once(retention.DELETE_RECOVERED_JOURNALS, _ROWS)
        await steps.once(DELETE_OLD_ACTIVITY, _ROWS)
        await steps.repeat(retention.DELETE_EXPIRED_KEYS, {})
        for part in feature_parts("purge"):
            await part.purge(steps, self._settings, self._storage)
        await self._delete_expired_audit(steps)
        await self._roll_up_usage(steps)
        await self._partition_care.round(steps, partitions)

    async def _roll_up_usage(self, steps: PurgeSteps) -> None:
        """Sums up the usage of days and hours that have ended, then deletes old entries."""
        for step in (usage.ROLL_UP_DAY, usage.ROLL_UP_HOUR):
            while await steps.once(step, _ROWS):
                pass
        await steps.repeat(usage.DELETE_OLD_ENTRIES, {"keep": self._settings.worker.usage_entries})

    async def _delete_expired_audit(self, steps: PurgeSteps) -> None:
        """Deletes entries of the audit log by age, if that is wanted."""
        keep = self._settings.audit.retention
        if keep is not None:
            await steps.repeat(
                retention.DELETE_EXPIRED_AUDIT,
                {"retention": keep},
                first=retention.ALLOW_AUDIT_PURGE,
            )

    async def _hide_expired(self, steps: PurgeSteps) -> None:
        """Hides what has expired and is not kept."""
        idle_steps = 0
        while idle_steps < _MAX_IDLE_STEPS:
            values = self._position | _ROWS
            rows = await steps.once(
                retention.HIDE_EXPIRED, values, first=retention.READ_ONE_SNAPSHOT
            )
            if not rows:
                return
            idle_steps = 0 if rows[0].hidden else idle_steps + 1
            if rows[0].hidden == MAX_ROWS:
                continue
            if rows[0].examined == MAX_ROWS:
                self._position = {"expires_at": rows[0].expires_at, "id": rows[0].id}
                continue
            self._position = dict(_START)
            if not rows[0].hidden:
                return


async def _delete_hidden(steps: PurgeSteps, partitions: LogPartitions) -> bool:
    """Deletes some of the hidden responses; returns whether there may be more.

    First their logs, part by part: a log can be very long. Not those whose partition ends soon.
    """
    ids = await steps.once(retention.DELETABLE, {"items": MAX_ROWS})
    if not ids:
        return False
    values: dict[str, object] = {"ids": Uuids(ids)}
    log_values = values | partitions.left() | _ROWS
    while await steps.once(retention.DELETE_LOG, log_values) == [MAX_ROWS]:
        pass
    return bool(await steps.once(retention.DELETE_HIDDEN, values, first=retention.LEAVE_LOGS))
