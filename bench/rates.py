"""Running many requests at a given concurrency or pace."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

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


async def repeat_at_intervals(request: Request, times: int, interval: float) -> None:
    """Awaits `request()` so many times, one every `interval` seconds."""
    due = time.monotonic()
    for _ in range(times):
        await request()
        due += interval
        await asyncio.sleep(max(0.0, due - time.monotonic()))


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
