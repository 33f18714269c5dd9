"""Whose turn it is among projects that all have something waiting (worker/intake/line.py)."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from models.ids import new_uuid
from models.ownership.line import ChosenClaim
from worker.intake.line import ProjectShares

A, B = new_uuid(), new_uuid()


def _serve(shares: ProjectShares, project: UUID, weight: int) -> None:
    claim = SimpleNamespace(row=SimpleNamespace(project_id=project))
    shares.serve([ChosenClaim(cast("Any", claim), weight)])


def _next(shares: ProjectShares, weights: dict[UUID, int]) -> UUID:
    """The project that is served next, if only that counts which was served least."""
    known = shares.known()
    project = min(weights, key=lambda each: known[each].ahead if each in known else 0.0)
    _serve(shares, project, weights[project])
    return project


def test_projects_are_served_by_their_weights() -> None:
    shares = ProjectShares()
    order = [_next(shares, {A: 3, B: 1}) for _ in range(40)]
    assert order.count(A) == 30
    assert all(B in order[start : start + 5] for start in range(35))


def test_a_project_gets_nothing_for_the_time_in_which_it_wanted_nothing() -> None:
    shares = ProjectShares()
    for _ in range(1000):
        _next(shares, {A: 1})
    order = [_next(shares, {A: 1, B: 1}) for _ in range(10)]
    assert order.count(B) == 5


def test_running_responses_are_counted_and_nothing_is_kept_of_projects_that_are_gone() -> None:
    shares = ProjectShares()
    for _ in range(2):
        shares.begin(A)
    shares.end(A)
    assert {project: share.running for project, share in shares.known().items()} == {A: 1}
    shares.end(A)
    for number in range(1000):
        _serve(shares, UUID(int=number), 1)
        _serve(shares, B, 1)
    assert len(shares.known()) < 5
