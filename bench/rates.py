"""Running many requests at a given concurrency."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from bench.system import Database, System

Request = Callable[[], Awaitable[object]]


async def repeat(request: Request, times: int, concurrency: int) -> float:
    """Awaits `request()` so many times, `concurrency` at a time; returns requests per second."""
    left = iter(range(times))

    async def run() -> None:
        for _ in left:
            await request()

    started = time.monotonic()
    await asyncio.gather(*(run() for _ in range(concurrency)))
    return times / (time.monotonic() - started)


async def repeat_for(request: Request, seconds: float, concurrency: int) -> float:
    """As `repeat`, for so many seconds."""
    end = time.monotonic() + seconds
    done = 0

    async def run() -> None:
        nonlocal done
        while time.monotonic() < end:
            await request()
            done += 1

    started = time.monotonic()
    await asyncio.gather(*(run() for _ in range(concurrency)))
    return done / (time.monotonic() - started)


async def milliseconds(request: Request, times: int) -> list[float]:
    """How long each of so many requests took, one after another."""
    measured = []
    for _ in range(times):
        started = time.perf_counter()
        await request()
        measured.append((time.perf_counter() - started) * 1000)
    return measured


def percentile(values: list[float], percent: int) -> float:
    """The percentile of at least two values."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def count_ended(database: Database, system: System) -> int:
    """How many responses of the system have ended."""
    row = await (await database.execute(system.count_ended)).fetchone()
    assert row is not None
    return int(str(row[0]))


async def wait_for_ended(database: Database, system: System, count: int) -> None:
    """Waits until so many responses of the system have ended."""
    async with asyncio.timeout(300):
        while await count_ended(database, system) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
