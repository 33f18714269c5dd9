"""Creating a response at turn 100, compared with turn 2: in a chain and in a conversation."""

import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.deployment import Deployment, deployment
from bench.figures import BenchmarkResult, Goal
from bench.upstream import upstream

SHALLOW, DEEP = 1, 99
"""Turns before the one that is measured."""
TEXT = "word " * 100
MODEL = "m"
WARM_UP = 20
"""Creates that are not measured."""
MAX_RATIO = 3.0


async def run(folder: Path, *, quick: bool) -> AsyncIterator[BenchmarkResult]:
    """Builds both histories, stops the worker, then creates after each in turn; medians in ms."""
    samples = 50 if quick else 400
    async with upstream(TEXT) as address, deployment(folder, address) as server:
        chains = {
            depth: {"previous_response_id": await _chain(server, depth)}
            for depth in (SHALLOW, DEEP)
        }
        conversations = {
            depth: {"conversation": await _conversation(server, depth)} for depth in (SHALLOW, DEEP)
        }
        server.worker.stop()
        yield await _measure("create at turn 100 of a chain", server, chains, samples)
        yield await _measure("create at turn 100 of a conversation", server, conversations, samples)


async def _chain(server: Deployment, depth: int) -> str:
    """The id of the last of `depth` responses, each after the one before."""
    previous: dict[str, str] = {}
    for _ in range(depth):
        body = {"model": MODEL, "input": TEXT, **previous}
        previous = {"previous_response_id": (await server.request("POST", "responses", body))["id"]}
    return previous["previous_response_id"]


async def _conversation(server: Deployment, depth: int) -> str:
    """The id of a conversation with `depth` turns."""
    conversation = str((await server.request("POST", "conversations", {}))["id"])
    for _ in range(depth):
        body = {"model": MODEL, "input": TEXT, "conversation": conversation}
        await server.request("POST", "responses", body)
    return conversation


async def _measure(
    name: str, server: Deployment, continuations: dict[int, dict[str, str]], samples: int
) -> BenchmarkResult:
    milliseconds: dict[int, list[float]] = {depth: [] for depth in continuations}
    for number in range(-WARM_UP, samples):
        for depth, continuation in continuations.items():
            seconds = await _create(server, continuation)
            if number >= 0:
                milliseconds[depth].append(seconds * 1000)
    deep, shallow = (statistics.median(milliseconds[depth]) for depth in (DEEP, SHALLOW))
    return BenchmarkResult(name, deep, "ms at turn 2 (p50)", Goal(MAX_RATIO), shallow)


async def _create(server: Deployment, continuation: dict[str, str]) -> float:
    """Seconds until the reply. The response never runs; it is deleted, to unlock its
    conversation."""
    body: dict[str, Any] = {"model": MODEL, "input": TEXT, "background": True, **continuation}
    started = time.perf_counter()
    response = await server.request("POST", "responses", body)
    seconds = time.perf_counter() - started
    await server.request("DELETE", f"responses/{response['id']}")
    return seconds
