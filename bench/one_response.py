"""What one response costs while nothing else runs, and what many short ones cost."""

import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb

from bench import raw_chain
from bench.deltas import DeltaReader
from bench.figures import BenchmarkResult, Goal
from bench.http_client import Client
from bench.paced_upstream import model
from bench.rates import count_ended, milliseconds, percentile, repeat, repeat_for, wait_for_ended
from bench.system import Database, SideBySide, System, side_by_side

INSTRUCTIONS = "Answer in one short sentence. " * 20
"""Makes a request about as large as a usual one: 900 bytes."""
SHORT = model(5)
CONCURRENCY = 32
WARM_UP = 50
"""Requests of each kind that are not measured."""


def body(name: str, **parameters: Any) -> dict[str, Any]:
    """The body of a create. `name`: the model, which is the plan of the upstream."""
    return {"model": name, "input": "hi", "instructions": INSTRUCTIONS, **parameters}


async def run(folder: Path, *, quick: bool) -> AsyncIterator[BenchmarkResult]:
    """Latency of single requests, rates at concurrency 32, and CPU time a response."""
    samples, responses, seconds = (100, 300, 2.0) if quick else (400, 1500, 5.0)
    async with side_by_side(folder) as systems:
        yield await _first_delta(systems, samples)
        yield await _cancel(systems, 20 if quick else 100)
        yield await _create_alone(systems, samples)
        for result in await _short_background(systems, responses):
            yield result
        for result in await _short_foreground(systems, responses):
            yield result
        yield await _polls(systems, seconds)
        yield await _creates(systems, seconds)


async def _first_delta(systems: SideBySide, samples: int) -> BenchmarkResult:
    plan = model(3, 0.005, 0.001)
    streams = {
        "ours": (systems.ours.client, "/v1/responses", body(plan, stream=True), b".delta\n"),
        "raw": (systems.raw.client, "/v1/responses", body(plan, stream=True), b".delta\n"),
        "upstream": (systems.upstream, "/v1/chat/completions", body(plan), b'"content"'),
    }
    measured: dict[str, list[float]] = {name: [] for name in streams}
    for number in range(-WARM_UP, samples):
        for name, (client, path, content, mark) in streams.items():
            request = client.encode("POST", path, content)
            seconds = await _until(client, request, mark)
            if number >= 0:
                measured[name].append(seconds * 1000)
    ours, raw, upstream = (statistics.median(measured[name]) for name in streams)
    return BenchmarkResult(
        "first delta of a stream, beyond the upstream's own",
        ours - upstream,
        "ms (p50)",
        Goal(3),
        raw - upstream,
        f"p99 {percentile(measured['ours'], 99) - upstream:.1f} ms",
    )


async def _until(client: Client, request: bytes, mark: bytes) -> float:
    """Seconds until the reply contains `mark`. Returns when the reply is complete."""
    started = time.perf_counter()
    found_at = 0.0

    def look(data: bytes) -> None:
        nonlocal found_at
        if not found_at and mark in data:
            found_at = time.perf_counter()

    await client.stream(request, look)
    return found_at - started


async def _cancel(systems: SideBySide, samples: int) -> BenchmarkResult:
    measured = []
    client, upstream = systems.ours.client, systems.upstream
    for _ in range(samples):
        created = await client.json(
            "POST", "/v1/responses", body(model(1000, 0.1), background=True)
        )
        await _until_running(client, created["id"])
        sent_at = time.monotonic()
        await client.json("POST", f"/v1/responses/{created['id']}/cancel")
        while (closed_at := (await upstream.json("GET", "/closed"))["at"]) < sent_at:
            pass
        measured.append((closed_at - sent_at) * 1000)
    return BenchmarkResult(
        "cancel to closed upstream socket",
        statistics.median(measured),
        "ms (p50)",
        Goal(20),
        details=f"max {max(measured):.1f} ms",
    )


async def _until_running(client: Client, response_id: str) -> None:
    while not (await client.json("GET", f"/v1/responses/{response_id}"))["output"]:
        pass


async def _create_alone(systems: SideBySide, samples: int) -> BenchmarkResult:
    client = systems.ours.client
    request = client.encode("POST", "/v1/responses", body(SHORT, background=True))

    async def create() -> None:
        await client.call(request)

    async def insert() -> None:
        values = (uuid4(), Jsonb(body(SHORT)))
        await systems.database.execute(raw_chain.INSERT, values)

    for request_kind in (create, insert):
        await milliseconds(request_kind, WARM_UP)
    ours = await milliseconds(create, samples)
    floor = await milliseconds(insert, samples)
    return BenchmarkResult(
        "background create alone, against INSERT; COMMIT",
        statistics.median(ours),
        "ms (p50)",
        Goal(2.5),
        statistics.median(floor),
        f"p99 {percentile(ours, 99):.1f} ms",
    )


async def _creates(systems: SideBySide, seconds: float) -> BenchmarkResult:
    """Without our worker, so that the web process has the cores. Last, as it leaves a queue."""
    systems.worker.stop()
    rates = [
        await repeat_for(_background(system, model(1, 0.0, 600.0)), seconds, CONCURRENCY)
        for system in (systems.raw, systems.ours)
    ]
    return BenchmarkResult(
        "background creates at concurrency 32", rates[1], "/s", Goal(0.6, True), rates[0]
    )


def _background(system: System, plan: str) -> Any:
    request = system.client.encode("POST", "/v1/responses", body(plan, background=True))

    async def create() -> None:
        await system.client.call(request)

    return create


async def _short_background(systems: SideBySide, count: int) -> list[BenchmarkResult]:
    rates, costs, details = [], [], []
    for system in (systems.raw, systems.ours):
        await _run_background(systems.database, system, WARM_UP)
        meter = system.meter()
        started = time.monotonic()
        await _run_background(systems.database, system, count)
        rates.append(count / (time.monotonic() - started))
        used = meter.used()
        costs.append(sum(used.values()) / count * 1000)
        details.append(_split(used, count))
    return [
        BenchmarkResult(
            "short background responses completed, at concurrency 32",
            rates[1],
            "/s",
            Goal(0.3, True),
            rates[0],
        ),
        BenchmarkResult(
            "CPU of a short background response",
            costs[1],
            "ms",
            Goal(3),
            details=f"{details[1]}; raw chain {costs[0]:.2f} ms: {details[0]}",
        ),
    ]


async def _run_background(database: Database, system: System, count: int) -> None:
    ended = await count_ended(database, system)
    await repeat(_background(system, SHORT), count, CONCURRENCY)
    await wait_for_ended(database, system, ended + count)


def _split(used: dict[str, float], count: int) -> str:
    """CPU milliseconds by kind of process."""
    return ", ".join(f"{name} {seconds / count * 1000:.2f}" for name, seconds in used.items())


async def _short_foreground(systems: SideBySide, count: int) -> list[BenchmarkResult]:
    rates, costs, details = [], [], []
    for system in (systems.raw, systems.ours):
        request = system.client.encode("POST", "/v1/responses", body(SHORT, stream=True))

        async def stream(client: Client = system.client, request: bytes = request) -> None:
            reader = DeltaReader()
            await client.stream(request, reader.feed)
            assert len(reader.lags) == 5

        await repeat(stream, WARM_UP, CONCURRENCY)
        meter = system.meter()
        rates.append(await repeat(stream, count, CONCURRENCY))
        used = meter.used()
        costs.append(sum(used.values()) / count * 1000)
        details.append(_split(used, count))
    return [
        BenchmarkResult(
            "short foreground streams, at concurrency 32", rates[1], "/s", against=rates[0]
        ),
        BenchmarkResult(
            "CPU of a short foreground stream",
            costs[1],
            "ms",
            Goal(4),
            details=f"{details[1]}; raw chain {costs[0]:.2f} ms: {details[0]}",
        ),
    ]


async def _polls(systems: SideBySide, seconds: float) -> BenchmarkResult:
    client = systems.ours.client
    created = await client.json("POST", "/v1/responses", body(model(6000, 0.05), background=True))
    await _until_running(client, created["id"])
    path = f"/v1/responses/{created['id']}"
    rates = []
    for caller, request in (
        (client, client.encode("GET", path)),
        (systems.noop, systems.noop.encode("GET", "/noop")),
    ):

        async def poll(caller: Client = caller, request: bytes = request) -> None:
            await caller.call(request)

        rates.append(await repeat_for(poll, seconds, 16))
    await client.json("POST", f"{path}/cancel")
    return BenchmarkResult(
        "GET of a running response at concurrency 16, against a route that does nothing",
        rates[0],
        "/s",
        Goal(0.4, True),
        rates[1],
    )
