"""What many streams cost at once: while they begin, and while they run."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.bodies import SHORT, body
from bench.deltas import DeltaReader
from bench.figures import Goal, Row
from bench.load import Load
from bench.paced_upstream import model
from bench.profiling import Profiler
from bench.rates import percentile, repeat, repeat_for
from bench.short_responses import background
from bench.system import SideBySide, System, run_measurements

MAX_SECONDS_TO_BEGIN = {300: 1.0, 800: 2.5}
"""Until so many streams that are posted at once have begun."""
NEARLY_LINEAR = 1.2
"""Twice the streams may take so many times twice the time to begin."""
MAX_LAG = 250.0
"""Milliseconds, p99."""
JOB_OVERHEAD = 1.5
"""Seconds by which many jobs together may end later than one alone."""
WARM_UP = 30
"""Streams that begin before those that are measured."""
STEADY = 100
"""Streams that run while many responses are created."""
RELAY_INTERVAL = 0.05
"""Seconds between two deltas of a stream that is relayed."""
POSTED_TOGETHER = 20


def run(folder: Path, load: Load, profiler: Profiler) -> AsyncIterator[Row]:
    """Bursts of streams, their lag, the relay at several rates, and many jobs at once."""
    measurements = (bursts, lags, lag_beside_creates, relays, jobs)
    return run_measurements(measurements, folder, load, profiler)


async def bursts(systems: SideBySide, load: Load) -> list[Row]:
    """Until all of the streams that are posted at once have begun."""
    seconds: dict[int, float] = {}
    rows = []
    for system in (systems.raw, systems.ours):
        await _seconds_to_begin(systems, system, WARM_UP)
    for streams in load.streams:
        raw = await _seconds_to_begin(systems, systems.raw, streams)
        ours = seconds[streams] = await _seconds_to_begin(systems, systems.ours, streams)
        limit = MAX_SECONDS_TO_BEGIN.get(streams)
        goal = None if limit is None else Goal(limit)
        rows.append(Row(f"{streams} streams posted at once: all begun", ours, "s", goal, raw))
    few, many = min(seconds), max(seconds)
    if few < many:
        times = seconds[many] / seconds[few]
        goal = Goal(round(many / few * NEARLY_LINEAR, 2))
        rows.append(Row(f"the same: {many} streams against {few}", times, "times", goal))
    return rows


async def _seconds_to_begin(systems: SideBySide, system: System, streams: int) -> float:
    async with open_streams(system, streams, model(3, 30.0)) as opened:
        await opened.until_begun()
        seconds = max(reader.arrived_at[0] for reader in opened.readers) - opened.at
    await systems.until_idle()
    return seconds


async def lags(systems: SideBySide, load: Load) -> list[Row]:
    """How late deltas are while streams begin and run."""
    plan = model(round(load.seconds * 10), 0.1)
    rows = []
    for streams in load.lag_streams:
        p99 = []
        for system in (systems.raw, systems.ours):
            async with open_streams(system, streams, plan) as opened:
                mark = opened.mark()
                await opened.until_ended()
                p99.append(percentile(opened.lags_since(mark), 99) * 1000)
        name = f"lag while {streams} streams begin and run (p99)"
        rows.append(Row(name, p99[1], "ms", Goal(MAX_LAG), p99[0]))
    return rows


async def lag_beside_creates(systems: SideBySide, load: Load) -> list[Row]:
    """How late deltas of running streams are while many short responses are created and run."""
    plan = model(round((load.seconds + 20) * 10), 0.1)
    p99, rates = [], []
    for system in (systems.raw, systems.ours):
        async with open_streams(system, STEADY, plan, at_once=False) as opened:
            await opened.until_begun()
            mark = opened.mark()
            create = background(system, SHORT)
            rates.append(await repeat_for(create, load.seconds / 2, load.concurrency))
            p99.append(percentile(opened.lags_since(mark), 99) * 1000)
        await systems.until_idle()
    return [
        Row(
            f"lag of {STEADY} streams beside creates, c={load.concurrency} (p99)",
            p99[1],
            "ms",
            Goal(MAX_LAG),
            p99[0],
            details=f"{rates[1]:.0f} creates/s, raw chain {rates[0]:.0f}/s",
        )
    ]


async def relays(systems: SideBySide, load: Load) -> list[Row]:
    """CPU time of a delta that is relayed at a steady rate."""
    return [await _relay(systems, rate, load.seconds) for rate in load.rates]


async def _relay(systems: SideBySide, rate: int, seconds: float) -> Row:
    plan = model(round((seconds + 20) / RELAY_INTERVAL), RELAY_INTERVAL)
    costs, details = [], []
    for system in (systems.raw, systems.ours):
        streams = round(rate * RELAY_INTERVAL)
        async with open_streams(system, streams, plan, at_once=False) as opened:
            await opened.until_begun()
            await asyncio.sleep(1)
            mark = opened.mark()
            meter, load_before = system.meter(), systems.load_seconds()
            started = time.monotonic()
            await asyncio.sleep(seconds)
            used, late = meter.used(), opened.lags_since(mark)
            lasted, deltas = time.monotonic() - started, len(late)
            load_share = (systems.load_seconds() - load_before) / lasted
        await systems.until_idle()
        costs.append(sum(used.values()) / deltas * 1e6)
        split = ", ".join(f"{name} {value / deltas * 1e6:.0f}" for name, value in used.items())
        lag = percentile(late, 99) * 1000
        details.append(f"{split} at {deltas / lasted:.0f}/s, lag p99 {lag:.0f} ms")
    return Row(
        f"CPU of a relayed delta at {rate}/s",
        costs[1],
        "us",
        Goal(2, of_ratio=True),
        costs[0],
        details=(
            f"{details[1]}; raw chain {details[0]}; load and upstream {load_share:.0%} of a core"
        ),
    )


async def jobs(systems: SideBySide, load: Load) -> list[Row]:
    """Until many background responses, all waiting for the upstream, have ended."""
    plan = model(load.job_seconds, 1.0)
    seconds = []
    for system in (systems.raw, systems.ours):
        started = time.monotonic()
        await repeat(background(system, plan), load.jobs, load.concurrency)
        await asyncio.sleep(load.job_seconds - (time.monotonic() - started))
        await system.until_ended()
        seconds.append(time.monotonic() - started)
    return [
        Row(
            f"{load.jobs} background jobs of {load.job_seconds} s: all ended",
            seconds[1],
            "s",
            Goal(load.job_seconds + JOB_OVERHEAD),
            seconds[0],
        )
    ]


@dataclass(frozen=True, slots=True)
class OpenStreams:
    """Streams that were posted, and their readers."""

    at: float
    """monotonic time at which the first one was posted"""
    readers: list[DeltaReader]
    tasks: list[asyncio.Task[None]]

    def mark(self) -> list[int]:
        """How many deltas each reader has received."""
        return [len(reader.lags) for reader in self.readers]

    def lags_since(self, mark: list[int]) -> list[float]:
        """Seconds that each delta after the mark was on its way."""
        return [
            lag
            for reader, start in zip(self.readers, mark, strict=True)
            for lag in reader.lags[start:]
        ]

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
            if not at_once and len(streams.tasks) % POSTED_TOGETHER == 0:
                await asyncio.sleep(0.1)
        yield streams
    finally:
        for task in streams.tasks:
            task.cancel()
        await asyncio.gather(*streams.tasks, return_exceptions=True)
        for connection in connections:
            connection.close()
