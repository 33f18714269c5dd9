"""Counts the requests without a valid API key, for the audit log: one entry for each address and
minute, and not one for each request, which would let strangers fill the disk."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime

import orjson

from models.db.database import DATABASE_UNAVAILABLE, Pool, execute
from models.db.queries.audit import RECORD_FAILED_AUTHENTICATIONS
from models.ids import new_uuid

_MINUTE = 60.0
"""Seconds."""
_MAX_ADDRESSES = 1_000
"""Addresses that one minute counts apart. The others count as one."""
_OTHERS = "others"


class FailedAuthentications:
    """The counts of one web process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._counts: Counter[str] = Counter()
        self._first_at = datetime.now(UTC)

    def add(self, address: str) -> None:
        """A request from this address had no valid key."""
        if not self._counts:
            self._first_at = datetime.now(UTC)
        if address not in self._counts and len(self._counts) >= _MAX_ADDRESSES:
            address = _OTHERS
        self._counts[address] += 1

    async def run(self) -> None:
        """Stores the counts at the end of each minute. Never returns.

        While Postgres is unavailable they are kept, and go on.
        """
        while True:
            await asyncio.sleep(_MINUTE - time.time() % _MINUTE)
            with suppress(*DATABASE_UNAVAILABLE):
                await self.store()

    async def store(self) -> None:
        """Stores the counts of this minute. Raises what `execute` raises; then they are kept."""
        if not self._counts:
            return
        counts, at = self._counts, self._first_at
        self._counts = Counter()
        entries = [
            {"id": new_uuid(), "at": at, "address": address, "count": count}
            for address, count in counts.items()
        ]
        try:
            await execute(
                self._pool,
                RECORD_FAILED_AUTHENTICATIONS,
                {"counts": orjson.dumps(entries).decode()},
            )
        except BaseException:
            self._counts.update(counts)
            self._first_at = at
            raise
