"""The create at turn 100 against that at turn 2, in a chain and in a conversation (design §12)."""

import statistics
import time
from pathlib import Path
from typing import Any

from bench.figures import BenchmarkResult
from tests.support.api import Api
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Databases, SuiteSettings, stack

SHALLOW, DEEP = 1, 99
"""Turns that lie behind the one that is measured."""
WORDS = "word " * 100
MAX_RATIO = 3.0


async def run(
    folder: Path,
    servers: Databases,
    surroundings: SuiteSettings,
    fake: FakeUpstream,
    *,
    quick: bool,
) -> list[BenchmarkResult]:
    """Builds both histories, stops the worker, and takes turns at creating on each; medians of the milliseconds."""
    samples = 50 if quick else 400
    async with stack(folder / "stack", servers, surroundings, fake) as one:
        api = one.api()
        model = fake.script(reply(WORDS))
        chains = {
            depth: {"previous_response_id": await _chain(api, model, depth)}
            for depth in (SHALLOW, DEEP)
        }
        rooms = {
            depth: {"conversation": await _conversation(api, model, depth)}
            for depth in (SHALLOW, DEEP)
        }
        await one.stop(one.workers[0])
        return [
            await _measure("create at turn 100 of a chain", api, model, chains, samples),
            await _measure("create at turn 100 of a conversation", api, model, rooms, samples),
        ]


async def _chain(api: Api, model: str, depth: int) -> str:
    previous = None
    for _ in range(depth):
        previous = (await api.create(model, input=WORDS, previous_response_id=previous))["id"]
    assert previous is not None
    return str(previous)


async def _conversation(api: Api, model: str, depth: int) -> str:
    named = (await api.call("POST", "/conversations", {})).body["id"]
    for _ in range(depth):
        await api.create(model, input=WORDS, conversation=named)
    return str(named)


async def _measure(
    name: str, api: Api, model: str, continuations: dict[int, dict[str, str]], samples: int
) -> BenchmarkResult:
    taken: dict[int, list[float]] = {depth: [] for depth in continuations}
    for at in range(-20, samples):
        for depth, place in continuations.items():
            seconds = await _create(
                api, {"model": model, "input": WORDS, "background": True, **place}
            )
            if at >= 0:  # the first ones warm up what is measured
                taken[depth].append(seconds * 1000)
    deep, shallow = (statistics.median(taken[depth]) for depth in (DEEP, SHALLOW))
    return BenchmarkResult(name, deep, shallow, "ms at turn 2 (p50)", MAX_RATIO)


async def _create(api: Api, body: dict[str, Any]) -> float:
    """Seconds until the answer. The response never runs, and is deleted, so that the conversation is free again."""
    begun = time.perf_counter()
    answer = await api.call("POST", "/responses", body)
    taken = time.perf_counter() - begun
    assert answer.status == 200, answer.raw
    assert (await api.call("DELETE", f"/responses/{answer.body['id']}")).status == 200
    return taken
