"""A response at turn 50, compared with turn 2: in a chain and in a conversation."""

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from bench.deployment import Deployment, deployment
from bench.figures import Goal, Row
from bench.load import Load
from bench.profiling import Profiler
from bench.upstream import upstream

SHALLOW, DEEP = 1, 49
"""Turns before the one that is measured."""
TEXT = "word " * 100
MODEL = "m"
WARM_UP = 10
"""Requests that are not measured."""
MAX_CREATE_RATIO = 3.0
MAX_TURN_RATIO = 1.5
Continuation = Mapping[str, str]


async def run(folder: Path, load: Load, profiler: Profiler) -> AsyncIterator[Row]:
    """Builds both histories and measures whole turns; then stops the worker and measures
    creates."""
    samples = max(load.samples // 2, 1)
    async with upstream(TEXT) as address, deployment(folder, address) as server:
        chains = {
            depth: {"previous_response_id": await _chain(server, depth)}
            for depth in (SHALLOW, DEEP)
        }
        conversations = {
            depth: {"conversation": await _conversation(server, depth)} for depth in (SHALLOW, DEEP)
        }
        with profiler.recording("turns", server.pids):
            yield await _compare(
                f"turn {DEEP + 1} of a chain against turn {SHALLOW + 1} (p50)",
                Goal(MAX_TURN_RATIO, of_ratio=True),
                lambda continuation: _turn(server, continuation),
                chains,
                samples,
            )
        server.worker.stop()
        for name, continuations in (("chain", chains), ("conversation", conversations)):
            yield await _compare(
                f"create at turn {DEEP + 1} of a {name} against turn {SHALLOW + 1} (p50)",
                Goal(MAX_CREATE_RATIO, of_ratio=True),
                lambda continuation: _create(server, continuation),
                continuations,
                samples,
            )


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


async def _compare(
    name: str,
    goal: Goal,
    measure: Callable[[Continuation], Awaitable[float]],
    continuations: Mapping[int, Continuation],
    samples: int,
) -> Row:
    """Medians at both depths, which take turns."""
    milliseconds: dict[int, list[float]] = {depth: [] for depth in continuations}
    for number in range(-WARM_UP, samples):
        for depth, continuation in continuations.items():
            seconds = await measure(continuation)
            if number >= 0:
                milliseconds[depth].append(seconds * 1000)
    deep, shallow = (statistics.median(milliseconds[depth]) for depth in (DEEP, SHALLOW))
    return Row(name, deep, "ms", goal, shallow, f"turn {SHALLOW + 1}")


async def _turn(server: Deployment, continuation: Continuation) -> float:
    """Seconds until a foreground response has ended."""
    started = time.perf_counter()
    await server.request("POST", "responses", {"model": MODEL, "input": TEXT, **continuation})
    return time.perf_counter() - started


async def _create(server: Deployment, continuation: Continuation) -> float:
    """Seconds until the reply. The response never runs; it is deleted, to unlock its
    conversation."""
    body: dict[str, Any] = {"model": MODEL, "input": TEXT, "background": True, **continuation}
    started = time.perf_counter()
    response = await server.request("POST", "responses", body)
    seconds = time.perf_counter() - started
    await server.request("DELETE", f"responses/{response['id']}")
    return seconds
