"""What many short responses cost: how many complete in a second, and the CPU time of each."""

import asyncio
import time
from collections.abc import Mapping

from bench.bodies import SHORT, body
from bench.deltas import DeltaReader
from bench.figures import Goal, Row
from bench.load import Load
from bench.rates import Request, repeat, repeat_at_intervals
from bench.system import SideBySide, System

RAW_SHARE = 4
"""The raw chain gets so many times as many short responses, because it is much faster."""
PACE = 0.04
"""Seconds between two responses that run alone."""
IDLE_SECONDS = 2.0


def background(system: System, plan: str) -> Request:
    """Creates a background response."""
    request = system.client.encode("POST", "/v1/responses", body(plan, background=True))

    async def create() -> None:
        await system.client.call(request)

    return create


async def short_background(systems: SideBySide, load: Load) -> list[Row]:
    """Background responses of five deltas: completed a second, and CPU time of each."""
    rates, costs, details = [], [], []
    for system, share in ((systems.raw, RAW_SHARE), (systems.ours, 1)):
        count = load.responses * share
        create = background(system, SHORT)
        await repeat(create, 2 * load.concurrency, load.concurrency)
        await system.until_ended()
        meter, load_before = system.meter(), systems.load_seconds()
        started = time.monotonic()
        await repeat(create, count, load.concurrency)
        await system.until_ended()
        seconds = time.monotonic() - started
        used = meter.used()
        rates.append(count / seconds)
        costs.append(sum(used.values()) / count * 1000)
        details.append(_split(used, count))
        load_share = (systems.load_seconds() - load_before) / seconds
    return [
        Row(
            f"short background responses, c={load.concurrency}",
            rates[1],
            "/s",
            Goal(0.3, is_minimum=True, of_ratio=True),
            rates[0],
            details=f"load and upstream used {load_share:.0%} of a core",
        ),
        Row(
            f"CPU of a short background response, c={load.concurrency}",
            costs[1],
            "ms",
            Goal(3),
            costs[0],
            details=f"{details[1]}; raw chain {details[0]}",
        ),
    ]


async def short_background_alone(systems: SideBySide, load: Load) -> list[Row]:
    """CPU time of a short background response that runs alone, beyond what idle processes use."""
    count = max(load.samples // 2, 1)
    costs, details = [], []
    for system in (systems.raw, systems.ours):
        meter = system.meter()
        await asyncio.sleep(IDLE_SECONDS)
        idle = {name: seconds / IDLE_SECONDS for name, seconds in meter.used().items()}
        meter, started = system.meter(), time.monotonic()
        await repeat_at_intervals(background(system, SHORT), count, PACE)
        await system.until_ended()
        lasted = time.monotonic() - started
        used = {name: seconds - idle[name] * lasted for name, seconds in meter.used().items()}
        costs.append(sum(used.values()) / count * 1000)
        details.append(_split(used, count))
    idle_share = f"idle processes use {sum(idle.values()):.1%} of a core"
    return [
        Row(
            "CPU of a short background response, c=1",
            costs[1],
            "ms",
            floor=costs[0],
            details=f"{details[1]}; raw chain {details[0]}; {idle_share}",
        )
    ]


async def short_foreground(systems: SideBySide, load: Load) -> list[Row]:
    """Foreground streams of five deltas: completed a second, and CPU time of each."""
    rates, costs, details = [], [], []
    for system, share in ((systems.raw, RAW_SHARE), (systems.ours, 1)):
        count = load.responses * share
        stream = _foreground(system)
        await repeat(stream, 2 * load.concurrency, load.concurrency)
        meter = system.meter()
        rates.append(await repeat(stream, count, load.concurrency))
        used = meter.used()
        costs.append(sum(used.values()) / count * 1000)
        details.append(_split(used, count))
    return [
        Row(f"short foreground streams, c={load.concurrency}", rates[1], "/s", floor=rates[0]),
        Row(
            f"CPU of a short foreground stream, c={load.concurrency}",
            costs[1],
            "ms",
            Goal(4),
            costs[0],
            details=f"{details[1]}; raw chain {details[0]}",
        ),
    ]


def _foreground(system: System) -> Request:
    request = system.client.encode("POST", "/v1/responses", body(SHORT, stream=True))

    async def stream() -> None:
        reader = DeltaReader()
        await system.client.stream(request, reader.feed)
        assert len(reader.lags) == 5

    return stream


def _split(used: Mapping[str, float], count: int) -> str:
    """CPU milliseconds by kind of process."""
    return ", ".join(f"{name} {seconds / count * 1000:.2f}" for name, seconds in used.items())
