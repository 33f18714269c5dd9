"""Which responses a worker begins, hands over and stops as its memory gets short."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from models.ids import new_uuid
from models.process import default_budget
from worker.process import limits as memory_budget
from worker.process import memory_pressure
from worker.process.limits import MemoryBudget
from worker.process.memory_pressure import MemoryPressure
from worker.run.context import json_bytes
from worker.run.end_state import StopReason

MB = 1 << 20
_LOOKS = 8
IDLE, LIMIT = 100 * MB, 200 * MB


@dataclass
class Process:
    """The memory of the process, as the test sets it."""

    resident: int = IDLE


@dataclass
class Running:
    """What MemoryPressure needs of a run."""

    memory: int
    is_background: bool = True
    has_unrepeatable_call: bool = False
    is_prepared: bool = True
    is_draining: bool = False
    stopped: list[StopReason] = field(default_factory=list)
    claim: Any = field(default_factory=lambda: SimpleNamespace(id=new_uuid(), attempt=1))

    @property
    def is_stopped(self) -> bool:
        return bool(self.stopped)

    def drain(self) -> None:
        self.is_draining = True

    def stop(self, reason: StopReason) -> None:
        self.stopped.append(reason)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    process = Process()
    monkeypatch.setattr(memory_budget, "resident_bytes", lambda: process.resident)
    monkeypatch.setattr(memory_pressure, "release_free_memory", lambda: None)
    monkeypatch.setattr(memory_pressure, "_INTERVAL", 0.001)
    monkeypatch.setattr(memory_pressure, "_SETTLING", 0)
    return process


@pytest.fixture
def budget(process: Process) -> MemoryBudget:
    return MemoryBudget(LIMIT)


async def _watch(
    budget: MemoryBudget, *running: Running, on_look: Callable[[int], None] = lambda _: None
) -> list[None]:
    """Lets MemoryPressure look some times; returns one entry for each change of capacity.
    `on_look` is called before each look with its number."""
    changes: list[None] = []
    runs: dict[UUID, Any] = {run.claim.id: run for run in running}
    pool: Any = SimpleNamespace(drain=lambda: asyncio.sleep(0))
    pressure = MemoryPressure(budget, pool, runs, lambda: changes.append(None))
    looks, seen = itertools.count(), asyncio.Event()
    measure = budget.measure

    def count() -> None:
        number = next(looks)
        on_look(number)
        if number == _LOOKS:
            seen.set()
        measure()

    budget.measure = count  # type: ignore[method-assign]
    watching = asyncio.create_task(pressure.run())
    await seen.wait()
    watching.cancel()
    return changes


def test_claims_end_at_the_admission_mark(process: Process, budget: MemoryBudget) -> None:
    assert budget.claims_that_fit(10) == 10
    process.resident = IDLE + 74 * MB
    budget.measure()
    assert budget.claims_that_fit(10) == 4
    budget.count_claims(3)
    assert budget.claims_that_fit(10) == 1
    process.resident = IDLE + 80 * MB
    budget.measure()
    assert budget.claims_that_fit(10) == 0
    assert not budget.is_open
    assert MemoryBudget(None).claims_that_fit(10) == 10


async def test_one_long_history_is_read_at_a_time_when_little_is_left(
    process: Process, budget: MemoryBudget
) -> None:
    process.resident = IDLE + 20 * MB
    async with budget.load() as first:
        waiting = asyncio.create_task(_loads(budget))
        await asyncio.sleep(0)
        assert first
        assert not waiting.done()
        assert budget.claims_that_fit(10) == 0, "a response was claimed before one that waits"
    assert await waiting


async def test_a_history_that_was_read_counts_until_the_memory_shows_it(
    budget: MemoryBudget,
) -> None:
    budget.count_history(40 * MB)
    assert not budget.is_open
    budget.measure()
    assert not budget.is_open
    budget.measure()
    assert budget.is_open


async def test_a_response_that_gets_no_memory_is_given_up(
    process: Process, budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_budget, "_LONGEST_WAIT", 0.01)
    process.resident = IDLE + 80 * MB
    assert not await _loads(budget)


async def _loads(budget: MemoryBudget) -> bool:
    async with budget.load() as is_reserved:
        return is_reserved


async def test_under_pressure_the_largest_background_responses_leave_at_a_checkpoint(
    process: Process, budget: MemoryBudget
) -> None:
    process.resident = IDLE + 92 * MB
    small, large, foreground = Running(5 * MB), Running(30 * MB), Running(90 * MB, False)
    await _watch(budget, small, large, foreground)
    assert [run.is_draining for run in (small, large, foreground)] == [False, True, False]
    assert not any(run.stopped for run in (small, large, foreground))


async def test_a_worker_never_hands_over_its_last_response_at_a_checkpoint(
    process: Process, budget: MemoryBudget
) -> None:
    process.resident = IDLE + 92 * MB
    small, large = Running(MB), Running(2 * MB)
    await _watch(budget, small, large)
    assert [run.is_draining for run in (small, large)] == [False, True]


async def test_at_the_limit_the_largest_are_stopped_and_foreground_ones_last(
    process: Process, budget: MemoryBudget
) -> None:
    process.resident = LIMIT
    small, large = Running(5 * MB), Running(30 * MB)
    call, foreground = Running(50 * MB, has_unrepeatable_call=True), Running(90 * MB, False)
    await _watch(budget, small, large, call, foreground)
    assert large.stopped == [StopReason.MEMORY]
    assert [run.stopped for run in (small, call, foreground)] == [[], [], []]


@pytest.mark.parametrize(
    ("alone", "reason"),
    [
        pytest.param(Running(30 * MB), StopReason.TOO_LARGE, id="large"),
        pytest.param(Running(0, is_prepared=False), StopReason.TOO_LARGE, id="being read"),
        pytest.param(Running(MB), StopReason.MEMORY, id="not to blame"),
    ],
)
async def test_a_response_that_runs_alone_fails_if_it_does_not_fit(
    process: Process, budget: MemoryBudget, alone: Running, reason: StopReason
) -> None:
    process.resident = LIMIT
    await _watch(budget, alone)
    assert alone.stopped == [reason]


async def test_claims_begin_again_when_memory_is_free(
    process: Process, budget: MemoryBudget
) -> None:
    def use(look: int) -> None:
        process.resident = IDLE + 80 * MB if look < 4 else IDLE
        assert budget.claims_that_fit(1) == (0 if 0 < look <= 4 else 1)

    assert len(await _watch(budget, on_look=use)) == 1


async def test_who_was_refused_for_a_moment_is_woken(budget: MemoryBudget) -> None:
    budget.count_claims(1000)
    assert budget.claims_that_fit(1) == 0
    assert len(await _watch(budget)) == 1


def test_the_budget_follows_from_the_limit_of_the_container(tmp_path: Path) -> None:
    machine = default_budget(tmp_path)
    assert machine is not None
    (tmp_path / "memory.max").write_text("max\n")
    assert default_budget(tmp_path) == machine
    (tmp_path / "memory.max").write_text(f"{1000 * MB}\n")
    assert default_budget(tmp_path) == 800 * MB


def test_a_large_value_is_estimated_from_a_part_of_it() -> None:
    part = json_bytes([{"text": "x" * 100}] * 1000)
    assert 0.5 < json_bytes([{"text": "x" * 100}] * 100_000) / (100 * part) < 2
