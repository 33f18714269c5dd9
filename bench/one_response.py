"""What one response costs while nothing else runs, and what many short ones cost."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb

from bench import raw_chain
from bench.bodies import SHORT, body
from bench.deltas import DeltaReader
from bench.figures import Goal, Row
from bench.http_client import Client
from bench.load import Load
from bench.paced_upstream import model
from bench.profiling import Profiler
from bench.rates import Request, milliseconds, percentile, repeat_for
from bench.short_responses import (
    background,
    short_background,
    short_background_alone,
    short_foreground,
)
from bench.system import SideBySide, System, run_measurements

WARM_UP = 50
"""Requests of each kind that are not measured."""
POLLERS = 16
MAX_CANCELS = 100


def run(folder: Path, load: Load, profiler: Profiler) -> AsyncIterator[Row]:
    """Latency of single requests, rates of short ones, and CPU time of each."""
    measurements = (
        first_delta,
        cancel,
        create_alone,
        short_background,
        short_background_alone,
        short_foreground,
        polls,
    )
    return run_measurements(measurements, folder, load, profiler)


async def first_delta(systems: SideBySide, load: Load) -> list[Row]:
    """Until `response.created` and until the first delta, beyond what the upstream takes."""
    plan = model(3, 0.005, 0.001)
    streams = {
        "ours": (systems.ours.client, "/v1/responses", body(plan, stream=True), b".delta\n"),
        "raw": (systems.raw.client, "/v1/responses", body(plan, stream=True), b".delta\n"),
        "upstream": (systems.upstream, "/v1/chat/completions", body(plan), b'"content"'),
    }
    created: dict[str, list[float]] = {name: [] for name in streams}
    delta: dict[str, list[float]] = {name: [] for name in streams}
    for number in range(-WARM_UP, load.samples):
        for name, (client, path, content, mark) in streams.items():
            request = client.encode("POST", path, content)
            first, second = await _until(client, request, b"response.created\n", mark)
            if number >= 0:
                created[name].append(first * 1000)
                delta[name].append(second * 1000)
    ours, raw, upstream = (statistics.median(delta[name]) for name in streams)
    return [
        Row(
            "response.created of a stream alone (p50)",
            statistics.median(created["ours"]),
            "ms",
            floor=statistics.median(created["raw"]),
            details=f"p99 {percentile(created['ours'], 99):.1f} ms",
        ),
        Row(
            "first delta of a stream alone, beyond upstream's (p50)",
            ours - upstream,
            "ms",
            Goal(3, of_ratio=True),
            raw - upstream,
            details=f"p99 {percentile(delta['ours'], 99) - upstream:.1f} ms",
        ),
    ]


async def _until(client: Client, request: bytes, first: bytes, second: bytes) -> tuple[float, ...]:
    """Seconds until the reply contains each of two marks; 0 if it never does. Returns when the
    reply is complete."""
    started = time.perf_counter()
    found = {first: 0.0, second: 0.0}

    def look(data: bytes) -> None:
        for mark, seconds in found.items():
            if not seconds and mark in data:
                found[mark] = time.perf_counter() - started

    await client.stream(request, look)
    return tuple(found.values())


async def cancel(systems: SideBySide, load: Load) -> list[Row]:
    """From the request to cancel until the upstream sees that its client has left."""
    samples = min(load.samples // 4, MAX_CANCELS)
    ours = [await _cancel(systems, systems.ours) for _ in range(samples)]
    raw = [await _cancel(systems, systems.raw) for _ in range(samples)]
    await systems.until_idle()
    return [
        Row(
            "cancel to closed upstream socket (p50)",
            statistics.median(ours),
            "ms",
            Goal(20),
            statistics.median(raw),
            details=f"max {max(ours):.1f} ms",
        )
    ]


async def _cancel(systems: SideBySide, system: System) -> float:
    """Milliseconds of one cancel of a response that is being streamed."""
    client, reader = system.client, DeltaReader()
    content = body(model(1000, 0.1), stream=True, background=True)
    connection = await client.connect()
    request = client.encode("POST", "/v1/responses", content)
    streaming = asyncio.create_task(connection.send(request, reader.feed))
    while not reader.lags:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    closing = asyncio.create_task(systems.upstream.json("GET", "/closed"))
    await asyncio.sleep(0.02)  # the upstream has got it
    sent_at = time.monotonic()
    await client.json("POST", f"/v1/responses/{reader.id}/cancel")
    closed_at = float((await closing)["at"])
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)
    connection.close()
    return (closed_at - sent_at) * 1000


async def create_alone(systems: SideBySide, load: Load) -> list[Row]:
    """A background create while nothing else runs: all responses before it have ended.

    The second line shows how much of it is HTTP, and what a create takes that begins as soon as the
    one before was answered, while the response of that one runs.
    """

    async def insert() -> None:
        await systems.database.execute(raw_chain.INSERT, (uuid4(), Jsonb(body(SHORT))))

    noop_request = systems.noop.encode("POST", "/noop", body(SHORT, background=True))

    async def post() -> None:
        await systems.noop.call(noop_request)

    both = {"ours": systems.ours, "raw": systems.raw}
    creates = {name: background(system, SHORT) for name, system in both.items()}
    kinds: dict[str, Request] = {**creates, "insert": insert, "noop": post}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(-WARM_UP, load.samples):
        for name, request in kinds.items():
            [taken] = await milliseconds(request, 1)
            if name in both:
                await both[name].until_ended()
            if number >= 0:
                times[name].append(taken)
    crowded: dict[str, list[float]] = {}
    for name, create in creates.items():
        crowded[name] = await milliseconds(create, load.samples)
        await both[name].until_ended()
    p50 = {name: statistics.median(taken) for name, taken in times.items()}
    return [
        Row(
            "background create alone (p50)",
            p50["ours"],
            "ms",
            Goal(2.5, of_ratio=True),
            p50["insert"],
            "INSERT; COMMIT",
            f"p99 {percentile(times['ours'], 99):.1f} ms; a POST that does nothing "
            f"{p50['noop']:.2f} ms, raw chain {p50['raw']:.2f} ms; while the responses before it "
            f"run {statistics.median(crowded['ours']):.2f} ms, raw chain "
            f"{statistics.median(crowded['raw']):.2f} ms",
        )
    ]


async def polls(systems: SideBySide, load: Load) -> list[Row]:
    """GETs of a response that is running."""
    client = systems.ours.client
    content = body(model(6000, 0.05), background=True)
    created: Any = await client.json("POST", "/v1/responses", content)
    path = f"/v1/responses/{created['id']}"
    while not (await client.json("GET", path))["output"]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    rates = []
    for caller, request in (
        (client, client.encode("GET", path)),
        (systems.noop, systems.noop.encode("GET", "/noop")),
    ):

        async def poll(caller: Client = caller, request: bytes = request) -> None:
            await caller.call(request)

        rates.append(await repeat_for(poll, load.seconds / 2, POLLERS))
    await client.json("POST", f"{path}/cancel")
    return [
        Row(
            f"GET of a running response, c={POLLERS}",
            rates[0],
            "/s",
            Goal(0.4, is_minimum=True, of_ratio=True),
            rates[1],
            "a route of the same framework that does nothing",
        )
    ]
