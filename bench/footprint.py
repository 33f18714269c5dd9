"""What a response costs in memory while it runs, and on disk when it has ended; and resuming."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.bodies import body
from bench.cpu import resident_bytes
from bench.figures import Goal, Row
from bench.load import Load
from bench.many_streams import open_streams
from bench.paced_upstream import model
from bench.profiling import Profiler
from bench.rates import repeat
from bench.resume import NumberReader
from bench.short_responses import background
from bench.system import Database, SideBySide, System, run_measurements

KIB = 1024
MAX_MEMORY = 60.0
"""KiB of a stream."""
DELTAS = 100
"""Of each response whose stored bytes are measured."""
STORED_RESPONSES = 200
RESUMED = 10
_STORED = """
    SELECT sum(pg_relation_size(oid) + coalesce(pg_relation_size(nullif(reltoastrelid, 0)), 0))
    FROM pg_class WHERE relkind = 'r' AND relname ~ '^(responses|items|attempts|event_log_.*)$'
"""


def run(folder: Path, load: Load, profiler: Profiler) -> AsyncIterator[Row]:
    """Resident memory a stream, stored bytes a response, and streams that are resumed."""
    return run_measurements((resumed, memory, stored), folder, load, profiler)


async def resumed(systems: SideBySide, load: Load) -> list[Row]:
    """Streams that a client leaves and reads again from the last number on, three times."""
    del load
    seconds: list[float] = []
    complete = await asyncio.gather(*(_resume(systems.ours, seconds) for _ in range(RESUMED)))
    return [
        Row(
            f"streams of {RESUMED} resumed without a gap",
            sum(complete),
            "of 10",
            Goal(RESUMED, is_minimum=True),
            details=(
                f"first event after {statistics.median(seconds) * 1000:.1f} ms (p50), "
                "of one each 50 ms"
            ),
        )
    ]


async def _resume(system: System, seconds: list[float]) -> bool:
    """Whether all numbers arrived, in order and once. Adds the times until the first event."""
    client = system.client
    content = body(model(40, 0.05), background=True, stream=True)
    reader = NumberReader()
    await reader.read(client, client.encode("POST", "/v1/responses", content), 12)
    for wanted in (12, 12, None):
        path = f"/v1/responses/{reader.id}?stream=true&starting_after={reader.numbers[-1]}"
        started = time.monotonic()
        await reader.read(client, client.encode("GET", path), wanted)
        seconds.append(reader.began_at - started)
    return reader.has_ended and reader.numbers == list(range(len(reader.numbers)))


async def memory(systems: SideBySide, load: Load) -> list[Row]:
    """Growth from a tenth of the streams to all of them, so that what is loaded once is left
    out."""
    raw = await _growth(systems, systems.raw, load.held_streams)
    ours = await _growth(systems, systems.ours, load.held_streams)
    return [
        Row(
            f"memory of a stream of {load.held_streams}, {name} process",
            ours[name],
            "KiB",
            Goal(MAX_MEMORY),
            raw[name],
        )
        for name in ours
    ]


async def _growth(systems: SideBySide, system: System, streams: int) -> dict[str, float]:
    """KiB of a stream by process."""
    plan = model(600, 0.5)
    async with open_streams(system, streams // 10, plan, at_once=False) as first:
        await first.until_begun()
        before = {name: resident_bytes(pid) for name, pid in system.pids.items()}
        async with open_streams(system, streams, plan, at_once=False) as others:
            await others.until_begun()
            await asyncio.sleep(2)
            after = {name: resident_bytes(pid) for name, pid in system.pids.items()}
    await systems.until_idle()
    return {name: (after[name] - before[name]) / streams / KIB for name in before}


async def stored(systems: SideBySide, load: Load) -> list[Row]:
    """Bytes in the tables after responses have ended."""
    before = await _stored_bytes(systems.database)
    create = background(systems.ours, model(DELTAS))
    await repeat(create, STORED_RESPONSES, load.concurrency)
    await systems.ours.until_ended()
    growth = await _stored_bytes(systems.database) - before
    return [
        Row(
            f"stored bytes of a response of {DELTAS} deltas",
            growth / STORED_RESPONSES / KIB,
            "KiB",
            details="deltas of about 15 bytes; tables and TOAST, without indexes",
        )
    ]


async def _stored_bytes(database: Database) -> int:
    row = await (await database.execute(_STORED)).fetchone()
    assert row is not None
    return int(str(row[0]))
