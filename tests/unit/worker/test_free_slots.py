"""How many slots foreground and background responses leave to each other."""

from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from models.ids import new_uuid
from models.redis.channels import BACKGROUND, INTERACTIVE, QUARANTINE
from worker.intake.capacity import Capacity
from worker.process.limits import MemoryBudget
from worker.run.runner import Run

SLOTS = 20
"""Two of them are reserved."""


def _capacity(slots: int = SLOTS, *, is_shared: bool = True) -> Capacity:
    return Capacity(slots, MemoryBudget(None), lambda: True, is_shared=is_shared)


def _claim(capacity: Capacity, number: int, *, background: bool) -> list[UUID]:
    ids = [new_uuid() for _ in range(number)]
    capacity.claim(ids, background=background)
    return ids


@pytest.mark.parametrize(
    ("foreground", "background", "free_for_foreground", "free_for_background"),
    [
        (0, 0, 20, 18),
        (15, 0, 5, 3),
        (18, 0, 2, 2),  # the reserve, of which background has had nothing
        (20, 0, 0, 0),
        (0, 18, 2, 0),
        (17, 1, 2, 1),
        (16, 2, 2, 0),
    ],
)
def test_each_kind_has_a_tenth_of_the_slots_for_itself(
    foreground: int, background: int, free_for_foreground: int, free_for_background: int
) -> None:
    capacity = _capacity()
    _claim(capacity, foreground, background=False)
    _claim(capacity, background, background=True)
    assert capacity.free_for(INTERACTIVE) == free_for_foreground
    assert capacity.free_for(BACKGROUND) == free_for_background


@pytest.mark.parametrize(("background", "left"), [(0, 0), (1, 1), (2, 2)])
def test_foreground_leaves_background_its_slots_only_while_some_waits(
    background: int, left: int
) -> None:
    capacity = _capacity()
    _claim(capacity, background, background=True)
    _claim(capacity, 18 - background, background=False)
    assert capacity.free_for(INTERACTIVE) == 2
    capacity.background_waits = True
    assert capacity.free_for(INTERACTIVE) == left
    assert capacity.kept_for_background == 2 - left


def test_a_background_response_that_ends_leaves_its_slot_to_the_next_one() -> None:
    capacity = _capacity()
    capacity.background_waits = True
    ids = _claim(capacity, 2, background=True)
    _claim(capacity, 18, background=False)
    capacity.end_claims(ids)
    assert capacity.free_for(INTERACTIVE) == 0
    assert capacity.free_for(BACKGROUND) == 2


@pytest.mark.parametrize(("slots", "left"), [(1, 1), (2, 1), (9, 8), (10, 9), (1112, 1001)])
def test_a_worker_without_a_reserve_keeps_one_slot_for_each_kind(slots: int, left: int) -> None:
    capacity = _capacity(slots)
    capacity.background_waits = True
    assert capacity.free_for(INTERACTIVE) == left


def test_a_worker_that_is_short_of_memory_keeps_a_tenth_of_what_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capacity = _capacity(1112)
    _claim(capacity, 30, background=False)
    capacity.background_waits = True
    monkeypatch.setattr(MemoryBudget, "claims_that_fit", lambda _, most: min(most, 10))
    assert capacity.free_for(BACKGROUND) == 4
    assert capacity.free_for(INTERACTIVE) == 6


def test_a_quarantine_worker_keeps_nothing() -> None:
    capacity = _capacity(is_shared=False)
    capacity.background_waits = True
    assert capacity.free_for(QUARANTINE) == SLOTS
    assert capacity.free_for_background == SLOTS


@pytest.mark.parametrize(
    ("foreground", "background", "newcomers_of_foreground", "newcomers_of_background"),
    [
        (0, 0, 0, 0),  # there are slots for anybody
        (0, 17, 0, 0),
        (0, 18, 0, 2),
        (0, 19, 0, 1),
        (0, 20, 0, 0),
        (2, 20, 0, 0),
        (20, 0, 2, 2),
        (20, 1, 1, 1),
        (20, 2, 0, 0),
    ],
)
def test_slots_above_the_others_are_for_projects_that_have_none(
    foreground: int, background: int, newcomers_of_foreground: int, newcomers_of_background: int
) -> None:
    capacity = _capacity()
    _claim(capacity, background, background=True)
    _claim(capacity, foreground, background=False)
    assert capacity.free_for_newcomers(INTERACTIVE) == newcomers_of_foreground
    assert capacity.free_for_newcomers(BACKGROUND) == newcomers_of_background


def test_newcomers_of_background_take_no_slot_that_is_reserved_for_foreground() -> None:
    capacity = _capacity()
    _claim(capacity, 20, background=True)
    assert capacity.free_for(INTERACTIVE) == 2


def test_a_slot_that_becomes_free_fills_the_reserve_before_anybody_has_it() -> None:
    capacity = _capacity()
    _claim(capacity, 2, background=True)
    ids = _claim(capacity, 20, background=False)
    capacity.end_claims(ids[:2])
    assert capacity.free_for(INTERACTIVE) == 0
    assert capacity.free_for_newcomers(INTERACTIVE) == 2


def test_a_worker_without_memory_or_a_quarantine_worker_has_no_reserve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quarantine = _capacity(is_shared=False)
    _claim(quarantine, SLOTS, background=False)
    assert quarantine.free_for_newcomers(QUARANTINE) == 0
    capacity = _capacity()
    _claim(capacity, SLOTS, background=False)
    monkeypatch.setattr(MemoryBudget, "claims_that_fit", lambda *_: 0)
    assert capacity.free_for_newcomers(BACKGROUND) == 0


def _run(response_id: UUID) -> Run:
    claim = SimpleNamespace(id=response_id, row=SimpleNamespace(background=True))
    return cast("Run", SimpleNamespace(claim=claim))


def test_the_end_of_one_claim_is_not_the_end_of_another_claim_of_the_same_response() -> None:
    capacity = _capacity()
    ids = _claim(capacity, 1, background=True)  # by a sweep
    capacity.claim(ids, background=True)  # by a choice of the line
    capacity.end_claims(ids)
    assert ids[0] in capacity
    assert capacity.free == SLOTS - 1
    capacity.end_claims(ids)
    assert ids[0] not in capacity
    assert capacity.free == SLOTS


def test_the_end_of_a_run_is_not_the_end_of_a_later_run_of_the_same_response() -> None:
    capacity = _capacity()
    [response_id] = _claim(capacity, 1, background=True)
    lost, current = (_run(response_id) for _ in range(2))
    for run in (lost, current):
        capacity.begin(run)
    capacity.end_claims([response_id])
    capacity.end(lost)
    assert capacity.runs == {response_id: current}
    capacity.end(current)
    assert not capacity.runs
