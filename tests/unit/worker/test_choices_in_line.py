"""When a worker looks at the line, and what it leaves to whom meanwhile."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from models.ids import new_uuid
from models.ownership.line import ChosenClaim, ClaimRequest
from models.ownership.takeover import Claim
from models.redis.channels import BACKGROUND, INTERACTIVE
from tests.support.api import until
from worker.intake.capacity import Capacity
from worker.intake.line import Line
from worker.process.limits import MemoryBudget

SLOTS = 10
"""One is reserved for foreground responses, and one is kept for background ones."""


def _claim(*, background: bool) -> ChosenClaim:
    row: Any = SimpleNamespace(id=new_uuid(), project_id=UUID(int=1), background=background)
    return ChosenClaim(Claim(row, log_end=0), weight=1)


@dataclass
class Worker:
    """A line whose choices wait until they are answered, and what it begins."""

    choices: list[tuple[ClaimRequest, asyncio.Future[list[ChosenClaim]]]] = field(
        default_factory=list
    )
    begun: list[Claim] = field(default_factory=list)
    spawned: list[UUID] = field(default_factory=list)
    log: list[tuple[str, Any]] = field(default_factory=list)
    """confirmed ids, and announcements"""

    def __post_init__(self) -> None:
        self.capacity = Capacity(SLOTS, MemoryBudget(None), lambda: True, is_shared=True)
        queue: Any = SimpleNamespace(announce=lambda queue: self.log.append(("announced", queue)))
        self.line = Line(self, self.capacity, cast("Any", self), queue)

    def run_chosen(self, claims: Sequence[Claim]) -> None:
        self.begun += claims
        self.line.on_capacity_changed()

    def spawn(self, orphans: Sequence[UUID]) -> None:
        self.spawned += orphans
        self.capacity.claim(orphans, background=True)

    async def take_next(self, choice: ClaimRequest) -> list[ChosenClaim]:
        answer = asyncio.get_running_loop().create_future()
        self.choices.append((choice, answer))
        return cast("list[ChosenClaim]", await answer)

    async def confirm(self, ids: Sequence[UUID]) -> None:
        if ids:
            self.log.append(("confirmed", list(ids)))

    async def chooses(self) -> ClaimRequest:
        """Waits for the next choice."""
        await until(lambda: any(not answer.done() for _, answer in self.choices))
        return self.choices[-1][0]

    async def answer(self, *chosen: ChosenClaim, error: Exception | None = None) -> None:
        """Answers the newest choice."""
        _, answer = self.choices[-1]
        if error is None:
            answer.set_result(list(chosen))
        else:
            answer.set_exception(error)
        await self.line.wait_until_known()

    def end_foreground(self) -> None:
        """A foreground response ends."""
        self.capacity.end_claims([self.foreground.pop()])
        self.line.on_capacity_changed()

    def fill(self) -> None:
        """Foreground responses take all slots."""
        self.foreground = [new_uuid() for _ in range(SLOTS)]
        self.capacity.claim(self.foreground, background=False)
        self.line.note_full()


@pytest.fixture
async def full() -> Worker:
    """A worker full of foreground responses."""
    worker = Worker()
    worker.fill()
    return worker


async def _read_wake_up(worker: Worker, queue: str, *ids: UUID) -> None:
    worker.line.choose_soon(queue, ids)
    await until(lambda: not worker.line._queues[queue].is_due)
    await worker.line.wait_until_known()


async def test_a_worker_that_learns_of_background_work_while_it_is_full_gives_it_the_next_slot(
    full: Worker,
) -> None:
    waiting = new_uuid()
    await _read_wake_up(full, BACKGROUND, waiting)
    # Other workers may run it, once they read that somebody waits.
    assert full.log == [("confirmed", [waiting]), ("announced", BACKGROUND)]
    full.end_foreground()
    assert full.capacity.free_for(INTERACTIVE) == 0
    choice = await full.chooses()
    assert (choice.kinds, choice.max_rows) == ([True], 1)
    assert full.capacity.free_for(INTERACTIVE) == full.capacity.free_for(BACKGROUND) == 0
    chosen = _claim(background=True)
    await full.answer(chosen)
    assert full.begun == [chosen.claim]
    # Background has its slot now, and foreground gets the next one.
    full.end_foreground()
    assert full.capacity.free_for(INTERACTIVE) == 1
    assert full.capacity.free_for(BACKGROUND) == 0


@pytest.mark.parametrize("error", [None, TimeoutError(), ValueError()])
async def test_a_slot_that_was_kept_for_nobody_goes_to_foreground(
    full: Worker, error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker has run what waited, or its row is locked, or Postgres does not answer."""
    monkeypatch.setattr("worker.intake.line.RETRY_DELAY", 0)
    await _read_wake_up(full, BACKGROUND, new_uuid())
    full.end_foreground()
    await full.chooses()
    await full.answer(error=error)
    assert full.capacity.free_for(INTERACTIVE) == 1
    full.end_foreground()
    assert full.capacity.free_for(INTERACTIVE) == 2
    assert full.line._look is None
    assert len(full.choices) == 1


async def test_a_full_worker_that_knows_of_no_background_work_keeps_no_slot_and_looks_for_none(
    full: Worker,
) -> None:
    full.end_foreground()
    assert full.capacity.free_for(INTERACTIVE) == 1
    assert full.line._look is None


async def test_a_sweep_makes_a_full_worker_look_for_background_work_whose_wake_up_is_lost(
    full: Worker,
) -> None:
    full.line.expect_background()
    full.end_foreground()
    assert full.capacity.free_for(INTERACTIVE) == 0
    assert (await full.chooses()).kinds == [True]
    await full.answer()
    assert full.capacity.free_for(INTERACTIVE) == 1


async def test_responses_of_crashed_workers_wait_for_foreground_no_longer_than_others(
    full: Worker,
) -> None:
    interrupted = [new_uuid() for _ in range(2)]
    full.line.interrupted(interrupted)
    full.line.expect_background()
    full.end_foreground()
    await until(lambda: full.spawned == interrupted[:1])
    await full.line.wait_until_known()
    # The line has the next turn, then they have one again.
    full.capacity.end_claims(full.spawned)
    full.line.on_capacity_changed()
    await full.chooses()
    await full.answer()
    await until(lambda: full.spawned == interrupted)


async def test_choices_of_both_kinds_at_a_time_take_no_slot_twice() -> None:
    worker = Worker()
    worker.line.choose_soon(INTERACTIVE, ())
    worker.line.choose_soon(BACKGROUND, ())
    await until(lambda: not worker.line._queues[BACKGROUND].is_due)
    await worker.chooses()
    assert sum(choice.max_rows for choice, _ in worker.choices) == SLOTS
    assert len(worker.capacity.claiming) == SLOTS
    await worker.answer()
    # The line of background responses had no slot then, so it is looked at again.
    assert (await worker.chooses()).kinds == [True]
    await worker.answer()
