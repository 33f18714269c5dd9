"""What many streams cost at once: while they begin, and while they run."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.deltas import DeltaReader
from bench.figures import BenchmarkResult, Goal
from bench.one_response import CONCURRENCY, body
from bench.paced_upstream import model
from bench.rates import count_ended, percentile, repeat, wait_for_ended
from bench.system import SideBySide, System, side_by_side

FEW, MANY = 300, 800
"""Streams posted at once."""
JOBS, JOB_SECONDS = 1000, 20
RELAY_INTERVAL = 0.05
"""Seconds between two deltas of a stream that is relayed."""


async def run(folder: Path, *, quick: bool) -> AsyncIterator[BenchmarkResult]:
    """Bursts of streams, the relay at two rates, and a thousand jobs."""
    seconds = 3.0 if quick else 10.0
    async with side_by_side(folder) as systems:
        for streams, limit in ((FEW, 1.0), (MANY, 2.5)):
            yield await _all_begun(systems, streams, limit)
        for streams in (200, 500):
            yield await _lag_while_beginning(systems, streams, seconds)
        for rate in (4500, 8000):
            yield await _relay(systems, rate, seconds)
        yield await _jobs(systems)


async def _all_begun(systems: SideBySide, streams: int, limit: float) -> BenchmarkResult:
    plan = model(3, 30.0)
    seconds = []
    for system in (systems.raw, systems.ours):
        async with open_streams(system, streams, plan) as opened:
            await opened.until_begun()
            seconds.append(max(reader.arrived_at[0] for reader in opened.readers) - opened.at)
        await _until_idle(systems, system)
    return BenchmarkResult(
        f"{streams} foreground streams posted at once: all have begun",
        seconds[1],
        "s",
        Goal(limit),
        details=f"raw chain {seconds[0]:.2f} s",
    )


async def _lag_while_beginning(
    systems: SideBySide, streams: int, seconds: float
) -> BenchmarkResult:
    plan = model(round(seconds * 10), 0.1)
    lags = []
    for system in (systems.raw, systems.ours):
        async with open_streams(system, streams, plan) as opened:
            await opened.until_ended()
            all_lags = [lag for reader in opened.readers for lag in reader.lags]
            lags.append(percentile(all_lags, 99) * 1000)
    return BenchmarkResult(
        f"lag of deltas while {streams} streams begin and run",
        lags[1],
        "ms (p99)",
        Goal(250),
        details=f"raw chain {lags[0]:.0f} ms",
    )


async def _relay(systems: SideBySide, rate: int, seconds: float) -> BenchmarkResult:
    streams = round(rate * RELAY_INTERVAL)
    plan = model(round((seconds + 20) / RELAY_INTERVAL), RELAY_INTERVAL)
    costs, details = [], []
    for system in (systems.raw, systems.ours):
        async with open_streams(system, streams, plan, at_once=False) as opened:
            await opened.until_begun()
            await asyncio.sleep(1)
            meter, before = system.meter(), opened.count_deltas()
            await asyncio.sleep(seconds)
            used, deltas = meter.used(), opened.count_deltas() - before
        await _until_idle(systems, system)
        costs.append(sum(used.values()) / deltas * 1e6)
        split = ", ".join(f"{name} {value / deltas * 1e6:.0f}" for name, value in used.items())
        details.append(f"{deltas / seconds:.0f}/s: {split}")
    return BenchmarkResult(
        f"CPU of a relayed delta at {rate}/s",
        costs[1],
        "us",
        Goal(2),
        costs[0],
        f"{details[1]}; raw chain {details[0]}",
    )


async def _jobs(systems: SideBySide) -> BenchmarkResult:
    plan = model(JOB_SECONDS, 1.0)
    seconds = []
    for system in (systems.raw, systems.ours):
        ended = await count_ended(systems.database, system)
        request = system.client.encode("POST", "/v1/responses", body(plan, background=True))

        async def create(system: System = system, request: bytes = request) -> None:
            await system.client.call(request)

        started = time.monotonic()
        await repeat(create, JOBS, CONCURRENCY)
        await wait_for_ended(systems.database, system, ended + JOBS)
        seconds.append(time.monotonic() - started)
    return BenchmarkResult(
        f"{JOBS} background jobs of {JOB_SECONDS} s: all have ended",
        seconds[1],
        "s",
        Goal(JOB_SECONDS + 1.5),
        details=f"raw chain {seconds[0]:.1f} s",
    )


@dataclass(frozen=True, slots=True)
class OpenStreams:
    """Streams that were posted, and their readers."""

    at: float
    """monotonic time at which the first one was posted"""
    readers: list[DeltaReader]
    tasks: list[asyncio.Task[None]]

    def count_deltas(self) -> int:
        """How many deltas all readers have received."""
        return sum(len(reader.lags) for reader in self.readers)

    async def until_begun(self) -> None:
        """Waits until each stream has its first delta."""
        async with asyncio.timeout(120):
            while not all(reader.lags for reader in self.readers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def until_ended(self) -> None:
        """Waits until all streams have ended."""
        await asyncio.gather(*self.tasks)


@asynccontextmanager
async def open_streams(
    system: System, count: int, plan: str, *, at_once: bool = True
) -> AsyncIterator[OpenStreams]:
    """Posts foreground streams: all at once, or 20 at a time. Closes them at the end."""
    client = system.client
    request = client.encode("POST", "/v1/responses", body(plan, stream=True))
    connections = await asyncio.gather(*(client.connect() for _ in range(count)))
    readers = [DeltaReader() for _ in connections]
    streams = OpenStreams(time.monotonic(), readers, [])
    try:
        for reader, connection in zip(readers, connections, strict=True):
            streams.tasks.append(asyncio.create_task(connection.send(request, reader.feed)))
            if not at_once and len(streams.tasks) % 20 == 0:
                await asyncio.sleep(0.1)
        yield streams
    finally:
        for task in streams.tasks:
            task.cancel()
        await asyncio.gather(*streams.tasks, return_exceptions=True)
        for connection in connections:
            connection.close()


async def _until_idle(systems: SideBySide, system: System) -> None:
    """Waits until closed streams have been cancelled, so that they cost nothing later."""
    if system is systems.ours:
        async with asyncio.timeout(60):
            while await _running(systems):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def _running(systems: SideBySide) -> int:
    query = "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"
    row = await (await systems.database.execute(query)).fetchone()
    assert row is not None
    return int(str(row[0]))
