"""`./dev bench store`: what statements cost with many stored responses, beside few."""

import argparse
import asyncio
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import uvloop
from pydantic import SecretStr

from bench import baseline
from bench.figures import HEADING, Row, to_text
from cli.database.migrate import migrate
from cli.embedded.postgres import Postgres
from cli.embedded.process import free_port
from models import keys
from models.config.settings import Settings
from models.db.arrays import Bigints, Ints, Uuids
from models.db.database import Connection, connect, fetch
from models.db.queries import create, listing, log_partitions, read, sweep
from models.db.queries.create import NewRow, insert_values
from models.db.statement import NumberedQuery, Query
from models.ids import new_uuid
from worker.process.purge import Purger

_PURGED = 1000
"""Responses that expire."""
_PLANS = 30
"""Executions of each statement whose pages are counted."""
_FRAMES = b"f" * 200
_STEP = 250_000
"""Responses that one statement makes."""
_PREPARE = Path(__file__).with_suffix(".sql").read_text()
_MAKE = (
    """
    INSERT INTO responses (id, project_id, status, background, store, model, parameters, created_at,
                           started_at, completed_at, expires_at, deadline, worker, attempt,
                           enqueued_at, previous_response_id)
    SELECT b.id, p.id, CASE WHEN open THEN 'in_progress' ELSE 'completed' END, true, true, 'm',
           '{"metadata": {}, "instructions": "Be short."}', at, at,
           CASE WHEN NOT open THEN at END, at + interval '30 days 1 hour', now() + interval '1 day',
           CASE WHEN open THEN w.id END, 1, at,
           CASE WHEN b.n % 10 = 1 THEN (SELECT c.id FROM bench_ids c WHERE c.n = b.n - 1) END
    FROM bench_ids b CROSS JOIN projects p JOIN bench_workers w ON w.nr = b.n % 20
    CROSS JOIN LATERAL (SELECT now() - interval '30 days' * (STORED - b.n) / STORED AS at,
                               b.n > STORED - 1000 AS open) x
    WHERE b.n > FIRST AND b.n <= LAST
    """,
    """
    INSERT INTO items (response_id, direction, position, item_id, type, payload, size)
    SELECT id, d.name, 0, 'msg_' || replace(id::text, '-', '') || d.name, 'message',
           '{"type": "message", "role": "user", "content": "A short text, as of a chat."}', 80
    FROM bench_ids CROSS JOIN (VALUES ('input'), ('output')) d (name)
    WHERE n > FIRST AND n <= LAST
    """,
    """
    INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)
    SELECT id, part.first, part.first + 4, part.attempt, decode(repeat('66', 200), 'hex')
    FROM bench_ids CROSS JOIN (VALUES (0, 0), (5, 1)) AS part (first, attempt)
    WHERE n > FIRST AND n <= LAST
    """,
    """
    INSERT INTO attempts (response_id, attempt, worker, kind, host, pid)
    SELECT b.id, 1, w.id, 'worker', 'host', 1
    FROM bench_ids b JOIN bench_workers w ON w.nr = b.n % 20 WHERE n > FIRST AND n <= LAST
    """,
)

Values = Callable[[UUID], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Figure:
    """What an operation costs."""

    milliseconds: list[float]
    pages: float
    """8 KiB each, in memory or read"""

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def p95(self) -> float:
        """Not exceeded by 95 of 100."""
        return sorted(self.milliseconds)[len(self.milliseconds) * 95 // 100]


@dataclass(slots=True)
class StoreBench:
    """The measurements with one database."""

    connection: Connection
    settings: Settings
    ids: list[UUID]
    """random ones of those that are stored"""
    chunk_ends: dict[UUID, UUID]
    """for each of them the one before which a list stops to look (`CHUNK_END`)"""
    project: UUID
    samples: int
    figures: dict[str, Figure] = field(default_factory=dict)

    async def run(self) -> dict[str, Figure]:
        """The figures by the name of the operation."""
        for name, (query, values) in self._statements().items():
            await self._measure(name, query, values)
        await self._purge("purge, a log row by row", timedelta(0))
        await self._purge("purge, logs left to their partition", timedelta(days=3))
        await self._drop()
        return self.figures

    def _statements(self) -> dict[str, tuple[Query[Any], Values]]:
        names = "since project model upstream reason window continuation keys user statuses"
        more = "safety_identifier prompt_cache_key metadata_key metadata_value"
        nothing = dict.fromkeys((*names.split(), *more.split()))
        swept = {
            "waiting": timedelta(seconds=5),
            "interval": timedelta(seconds=5),
            "max_rows": 250,
            "quarantine": False,
            "in_line": True,
            "background": True,
            "interactive": True,
        }
        page = {"page": 1000, "bytes": 256 * 1024}
        return {
            "create": (create.INSERT, lambda _: self._new()),
            "GET": (read.SHOWN_RESPONSES, lambda each: page | self._shown(each)),
            "replay of a stream": (
                read.LOG_PAGE,
                lambda each: page | {"id": each, "after": -1, "attempt": 0},
            ),
            "page of input items": (
                read.INPUT_ITEMS["desc"],
                lambda each: {"id": each, "after": None, "limit": 20, "max_size": 2**20},
            ),
            "list of responses, 50": (
                listing.LIST_RESPONSES,
                lambda each: (
                    nothing
                    | {"before": each, "down_to": UUID(int=0), "missed": False, "max_rows": 50}
                ),
            ),
            "sweep, orphans": (sweep.ORPHANS, lambda _: swept),
            "sweep, to end": (sweep.ORPHANS_TO_END, lambda _: swept),
            "sweep, lost messages": (sweep.REENQUEUE, lambda _: swept),
        }

    def _new(self) -> Mapping[str, object]:
        item = {"id": "msg_1", "type": "message", "role": "user", "content": "Hello."}
        row = NewRow(
            id=new_uuid(),
            project=self.project,
            background=True,
            store=True,
            model="m",
            parameters=b"{}",
            created_at=int(time.time()),
            waiter=None,
            items=orjson.dumps([item]),
            last=1,
            frames=_FRAMES,
        )
        limits = timedelta(days=30), timedelta(days=1)
        return insert_values([row], None, *limits, lead=None)

    def _shown(self, response: UUID) -> dict[str, object]:
        return {
            "ids": Uuids([response]),
            "projects": Uuids([self.project]),
            "attempts": Ints([0]),
            "workers": Uuids([None]),
            "checkpoints": Ints([-1]),
            "numbers": Ints([-1]),
            "batches": Bigints([0]),
            "max_sizes": Bigints([2**40]),
        }

    async def _measure(self, name: str, query: Query[Any], values: Values) -> None:
        numbered = NumberedQuery(query.sql)
        times, pages = [], 0
        for number in range(self.samples):
            given = values(self.ids[number])
            began = time.perf_counter()
            await fetch(self.connection, query, given)
            times.append((time.perf_counter() - began) * 1000)
        for number in range(_PLANS):
            given = values(self.ids[number])
            explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query.sql}"
            cursor = await self.connection.execute(
                explain.encode(), {each: given[each] for each in numbered.parameters}
            )
            row = await cursor.fetchone()
            assert row is not None
            pages += _pages(row[0][0]["Plan"])
        # the first executions plan the statement
        self.figures[name] = Figure(times[20:], pages / _PLANS)

    async def _purge(self, name: str, age: timedelta) -> None:
        """Purges the oldest responses. `age`: by how much their partition is older then; 0: it does
        not end soon."""
        await self.connection.execute(
            "UPDATE responses SET expires_at = now() - interval '1 s' WHERE id IN"
            " (SELECT id FROM responses WHERE completed_at IS NOT NULL ORDER BY id LIMIT %s)",
            [_PURGED],
        )
        settings = self.settings.model_copy(
            update={"retention": timedelta(days=300) if not age else timedelta(days=30)}
        )
        purger = Purger(settings, "bench", None)
        before = await self._blocks()
        began = time.perf_counter()
        await purger.purge(self.connection)
        seconds = time.perf_counter() - began
        pages = await self._blocks() - before
        self.figures[f"{name}, a response"] = Figure([seconds * 1000 / _PURGED], pages / _PURGED)

    async def _blocks(self) -> int:
        await self.connection.execute("SELECT pg_stat_force_next_flush()")
        cursor = await self.connection.execute(
            "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()"
        )
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])

    async def _drop(self) -> None:
        """Drops the oldest partition, of whose responses a hundred are kept, while others read."""
        partition = (await fetch(self.connection, log_partitions.PARTITIONS, {}))[0]
        values = {"name": partition.name, "begins": partition.begins, "ends": partition.ends}
        for setting in ("session_replication_role = replica", "statement_timeout = 0"):
            await self.connection.execute(f"SET {setting}".encode())
        await self.connection.execute(
            "DELETE FROM responses WHERE id >= %(begins)s AND id < %(ends)s AND id NOT IN"
            " (SELECT id FROM responses WHERE id >= %(begins)s ORDER BY id LIMIT 100)",
            values,
        )
        await self.connection.execute("RESET session_replication_role")
        async with await connect(self.settings, "bench-reader") as reader:
            times: list[float] = []
            reading = asyncio.create_task(self._read(reader, times))
            await asyncio.sleep(1)
            # As the purge does. It removes the deleted responses from the index.
            await fetch(self.connection, log_partitions.KEPT, {**values, "rows": 5000})
            began = time.perf_counter()
            done = await fetch(self.connection, log_partitions.DROP, values)
            seconds = time.perf_counter() - began
            await asyncio.sleep(1)
            reading.cancel()
        assert done == [True]
        self.figures["drop of a partition"] = Figure([seconds * 1000], 0)
        self.figures["longest read meanwhile"] = Figure([max(times)], 0)

    async def _read(self, reader: Connection, times: list[float]) -> None:
        number = 0
        while True:
            number = (number + 1) % len(self.ids)
            values = {"page": 1000, "bytes": 2**18, "id": self.ids[number], "after": -1}
            began = time.perf_counter()
            await fetch(reader, read.LOG_PAGE, values | {"attempt": 0})
            times.append((time.perf_counter() - began) * 1000)


def _pages(plan: dict[str, Any]) -> int:
    """Those of a CTE that writes may not be in those of the plan."""
    writes = [part for part in plan.get("Plans", ()) if part["Node Type"] == "ModifyTable"]
    return sum(
        int(part["Shared Hit Blocks"]) + int(part["Shared Read Blocks"]) for part in (plan, *writes)
    )


async def _fill(connection: Connection, responses: int) -> None:
    """Stores so many responses. The data need not outlive a crash."""

    async def run(sql: str) -> None:
        await connection.execute(sql.replace("STORED", str(responses)).encode())

    await run("ALTER SYSTEM SET fsync = off")
    await run("ALTER SYSTEM SET max_wal_size = '8GB'")
    await run("SELECT pg_reload_conf()")
    await run(_PREPARE)
    for first in range(0, responses, _STEP):
        for sql in _MAKE:
            last = min(responses, first + _STEP)
            await run(sql.replace("FIRST", str(first)).replace("LAST", str(last)))
        print(f"{last} responses", file=sys.stderr, flush=True)
    await run("VACUUM")
    # As autovacuum does it: not the partitioned table itself.
    tables = await connection.execute(
        "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
    )
    row = await tables.fetchone()
    assert row is not None
    await run(f"ANALYZE {row[0]}")
    await run("ALTER SYSTEM RESET fsync")
    await run("SELECT pg_reload_conf()")
    await run("CHECKPOINT")


async def _figures(folder: Path, responses: int, samples: int) -> dict[str, Figure]:
    password = secrets.token_hex(16)
    name = folder / str(responses)
    with Postgres(name / "data", name, port=free_port(), password=password) as server:
        migrate(server.url)
        keys.bootstrap(server.url, keys.new_key())
        settings = Settings(
            database_url=SecretStr(server.url), redis_url=SecretStr("redis://127.0.0.1:1/0")
        )
        async with await connect(settings, "bench-fill") as filling:
            began = time.monotonic()
            await _fill(filling, responses)
            cursor = await filling.execute(
                "SELECT pg_size_pretty(pg_database_size(current_database())),"
                " (SELECT id FROM projects LIMIT 1)"
            )
            row = await cursor.fetchone()
            assert row is not None
            size, project = row
            found = await filling.execute(
                "SELECT b.id, c.id FROM (SELECT * FROM bench_ids WHERE n BETWEEN %s AND %s"
                " ORDER BY random() LIMIT %s) b JOIN bench_ids c ON c.n = b.n - 1000",
                [_PURGED * 3, responses - _PURGED, samples],
            )
            ends: dict[UUID, UUID] = dict(await found.fetchall())
        print(
            f"{responses} responses, {size}, made in {time.monotonic() - began:.0f} s", flush=True
        )
        async with await connect(settings, "bench") as connection:
            return await StoreBench(connection, settings, list(ends), ends, project, samples).run()


async def _run(folder: Path, options: argparse.Namespace) -> None:
    few, many = [
        await _figures(folder, responses, options.samples)
        for responses in (options.against, options.responses)
    ]
    for name, figure in many.items():
        floor = few[name]
        details = f"p95 {figure.p95:.2f} and {floor.p95:.2f} ms"
        if figure.pages:
            details += f"; pages {figure.pages:.0f} and {floor.pages:.0f}"
        row = Row(
            name,
            figure.median,
            "ms",
            floor=floor.median,
            floor_name=f"with {options.against} responses",
            details=details,
        )
        print(to_text(row, None), flush=True)


def main(arguments: list[str]) -> int:
    """Runs the benchmark with these arguments of the command line. Returns 0."""
    parser = argparse.ArgumentParser(
        prog="./dev bench store",
        description="Measure statements with many stored responses, beside the same with few.",
    )
    parser.add_argument(
        "--responses",
        type=int,
        default=1_000_000,
        help="(default: %(default)s). Ten million need 20 GB on the disk, and most of an hour.",
    )
    parser.add_argument("--against", type=int, default=10_000, help="few (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=500)
    options = parser.parse_args(arguments)
    print(f"{baseline.this_machine().to_text()}; load average {os.getloadavg()[0]:.1f}")
    print(HEADING, flush=True)
    with tempfile.TemporaryDirectory(prefix="backburner-store-") as folder:
        uvloop.run(_run(Path(folder), options))
    return 0
