"""What a response costs in memory while it runs, and on disk when it has ended."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from bench.cpu import resident_bytes
from bench.figures import BenchmarkResult, Goal
from bench.many_streams import open_streams
from bench.one_response import CONCURRENCY, body
from bench.paced_upstream import model
from bench.rates import count_ended, repeat, wait_for_ended
from bench.system import Database, SideBySide, side_by_side

KIB = 1024
DELTAS = 100
"""Of each response whose stored bytes are measured."""
_STORED = """
    SELECT sum(pg_relation_size(oid) + coalesce(pg_relation_size(reltoastrelid), 0))
    FROM pg_class WHERE relkind = 'r' AND relname IN ('responses', 'items', 'event_log', 'attempts')
"""


async def run(folder: Path, *, quick: bool) -> AsyncIterator[BenchmarkResult]:
    """Resident memory a stream, and stored bytes a response."""
    async with side_by_side(folder) as systems:
        for result in await _memory(systems, 200 if quick else 1000):
            yield result
        yield await _stored(systems, 200 if quick else 1000)


async def _memory(systems: SideBySide, streams: int) -> list[BenchmarkResult]:
    """Growth from a tenth of the streams to all of them, so that what is loaded once is left
    out."""
    plan = model(600, 0.5)
    pids = {name: systems.ours.cpu_groups[name][0] for name in ("worker", "web")}
    warm_up = streams // 10
    async with open_streams(systems.ours, warm_up, plan, at_once=False) as first:
        await first.until_begun()
        before = {name: resident_bytes(pid) for name, pid in pids.items()}
        async with open_streams(systems.ours, streams, plan, at_once=False) as others:
            await others.until_begun()
            await asyncio.sleep(2)
            after = {name: resident_bytes(pid) for name, pid in pids.items()}
    return [
        BenchmarkResult(
            f"memory of a stream in the {name} process",
            (after[name] - before[name]) / streams / KIB,
            "KiB",
            Goal(60),
            details=f"{streams} streams, each with a reader",
        )
        for name in pids
    ]


async def _stored(systems: SideBySide, count: int) -> BenchmarkResult:
    request = systems.ours.client.encode(
        "POST", "/v1/responses", body(model(DELTAS), background=True)
    )

    async def create() -> None:
        await systems.ours.client.call(request)

    ended = await count_ended(systems.database, systems.ours)
    before = await _stored_bytes(systems.database)
    await repeat(create, count, CONCURRENCY)
    await wait_for_ended(systems.database, systems.ours, ended + count)
    growth = await _stored_bytes(systems.database) - before
    return BenchmarkResult(
        "stored bytes of a response",
        growth / count / KIB,
        "KiB",
        details=f"{DELTAS} deltas of about 15 bytes; tables and TOAST, without indexes",
    )


async def _stored_bytes(database: Database) -> int:
    row = await (await database.execute(_STORED)).fetchone()
    assert row is not None
    return int(str(row[0]))
