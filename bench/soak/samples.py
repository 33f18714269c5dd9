"""What a soak measures every few seconds: memory of processes, sizes of tables."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import psycopg
from psycopg.rows import class_row

from bench.cpu import descendants, private_bytes

MIB = 2**20
_TABLES = """
    SELECT relname AS name, pg_total_relation_size(relid) AS bytes, n_live_tup AS live,
        n_dead_tup AS dead, autovacuum_count AS autovacuums
    FROM pg_stat_user_tables ORDER BY relname
"""


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table with its indexes and its TOAST table, and its rows as PostgreSQL estimates them."""

    name: str
    bytes: int
    live: int
    dead: int
    autovacuums: int


Series = list[tuple[float, float]]
"""(seconds since the start, MiB) in order of time"""


class Sampler:
    """Collects samples of a deployment."""

    def __init__(
        self, database: psycopg.AsyncConnection[TableSize], pids: Mapping[str, int]
    ) -> None:
        """`pids`: by name; what runs below a process counts as part of it."""
        self._database = database
        self._pids = pids
        self._started_at = time.monotonic()
        self.memory: dict[str, Series] = {name: [] for name in pids}
        self.tables: dict[str, Series] = {}
        self.last: dict[str, TableSize] = {}
        """The tables as of the last sample."""
        self.most_dead: dict[str, int] = {}
        """The most dead rows of each table in any sample."""

    @classmethod
    async def connect(cls, dsn: str, pids: Mapping[str, int]) -> Self:
        """Opens a connection; `close` closes it."""
        database = await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, row_factory=class_row(TableSize)
        )
        return cls(database, pids)

    async def close(self) -> None:
        await self._database.close()

    async def run(self, interval: float) -> None:
        """Takes a sample every `interval` seconds until it is cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(interval)

    async def sample(self) -> None:
        """Takes one sample."""
        at = time.monotonic() - self._started_at
        for name, pid in self._pids.items():
            used = sum(private_bytes(process) for process in descendants(pid))
            self.memory[name].append((at, used / MIB))
        for table in await (await self._database.execute(_TABLES)).fetchall():
            self.tables.setdefault(table.name, []).append((at, table.bytes / MIB))
            self.last[table.name] = table
            self.most_dead[table.name] = max(table.dead, self.most_dead.get(table.name, 0))
