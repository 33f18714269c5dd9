"""The statements of a purge, each in a short transaction that holds the lock of the purge."""

import asyncio
import time
from typing import Final

from models.db.database import Connection, Parameters, execute, fetch
from models.db.queries import retention
from models.db.statement import Query, RowT

_LOCK: Final = 0x6262_2E70_7572_6765
"""The advisory lock of the purge: "bb.purge" in ASCII."""
MAX_ROWS: Final = 5_000
"""Rows that one step looks at, hides or deletes."""


class PurgeSteps:
    """Runs the steps of one worker's purge. If another worker purges, a step finds no rows."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def repeat(
        self,
        query: Query[RowT],
        values: Parameters,
        *,
        rows: int = MAX_ROWS,
        audit: bool = False,
    ) -> None:
        """Repeats a step while it finds as many rows as it may."""
        while len(await self.once(query, {**values, "rows": rows}, audit=audit)) == rows:
            pass

    async def once(
        self,
        query: Query[RowT],
        values: Parameters,
        *,
        one_snapshot: bool = False,
        audit: bool = False,
    ) -> list[RowT]:
        """One step. Then pauses for as long as it took, so that the purge uses half of one session
        at most. `audit`: it may delete entries of the audit log."""
        connection, started_at = self.connection, time.monotonic()
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
