"""What a deferred response waits for, and when its client should ask again."""

from typing import Any

import pytest

from models.db.queries.progress import ReleasedAttempt
from models.db.queries.read import OpenFigures
from models.ids import new_uuid
from models.lifecycle import ATTEMPTS_PER_TIMELINE
from models.wire.progress import Wait, WaitsForSlot, WaitsForUpstream, Work
from web.responses.progress import OpenResponse, deferral, poll_seconds

NOW = 1_800_000_000.0


def _attempt(number: int, outcome: str | None, ended_at: float) -> ReleasedAttempt:
    error = f"failure {number}" if outcome == "deferred" else None
    return ReleasedAttempt(number, outcome, ended_at, error)


def _deferral(*attempts: ReleasedAttempt) -> tuple[int | None, int | None]:
    """Tries, and for how many seconds it waits."""
    wait = deferral(attempts, NOW, 12.0, 500.0)
    assert wait.next_try_at == NOW + 12
    assert wait.last_error == (attempts[0].last_error if attempts else None)
    return wait.tries, None if wait.since is None else round(NOW - wait.since)


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([_attempt(1, "deferred", NOW - 3)], (1, 3)),
        # Those before it were deferred too, and are not stored any more.
        ([_attempt(7, "deferred", NOW - 3)], (7, 500)),
        ([_attempt(3, "deferred", NOW - 3), _attempt(2, "died", NOW - 40)], (1, 3)),
        ([_attempt(6, "deferred", NOW - 3), _attempt(2, "handed_over", NOW - 40)], (4, 40)),
        # One that had finished turns is kept.
        ([_attempt(6, "deferred", NOW - 3), _attempt(1, "deferred", NOW - 90)], (6, 90)),
        (
            [
                _attempt(4, "deferred", NOW - 3),
                _attempt(3, "repeated", NOW - 9),
                _attempt(2, "repeated", NOW - 20),
                _attempt(1, "died", NOW - 60),
            ],
            (3, 20),
        ),
        (
            [
                _attempt(ATTEMPTS_PER_TIMELINE + 1, "deferred", NOW - 3),
                _attempt(5, "deferred", NOW - 400),
            ],
            (1, 3),
        ),
        ([_attempt(2, None, 0)], (None, None)),
        ([], (None, None)),
    ],
)
def test_the_tries_in_a_row_that_failed(
    attempts: list[ReleasedAttempt], expected: tuple[int | None, int | None]
) -> None:
    assert _deferral(*attempts) == expected


def _open(*, is_writing: bool = False, **changes: Any) -> OpenResponse:
    figures = {"age": 0.0, "pause": None, "run_seconds": None, "place_at": None}
    return OpenResponse(
        id=new_uuid(),
        project=new_uuid(),
        background=True,
        is_owned=True,
        now=NOW,
        figures=OpenFigures(**figures | changes, turns=0, lane=1),
        work=Work(0, 0, 0, 0, 0, 0, is_writing),
        shown_items=0,
        may_hold_calls=False,
    )


@pytest.mark.parametrize(
    ("changes", "waits_for", "seconds"),
    [
        *(({"age": age}, None, to) for age, to in ((0, 1), (5, 1), (42, 4.2), (9_000, 10))),
        # It has waited for long, and has just begun.
        ({"age": 9_000, "run_seconds": 3.0}, None, 1),
        ({"age": 9_000, "run_seconds": 60.0}, None, 6),
        ({"run_seconds": 60.0, "is_writing": True}, None, 2),
        *(
            ({"age": age, "pause": pause}, WaitsForUpstream(0), to)
            for age, pause, to in ((1, 7.5, 7.5), (80, 2.0, 8), (1, 3600.0, 60))
        ),
        ({"age": 30}, WaitsForSlot(4), 3),
        ({"age": 1}, WaitsForSlot(None, position_above=1000), 10),
        *(
            ({"age": 30}, WaitsForSlot(4, expected_start_at=int(NOW) + until), to)
            for until, to in ((-2, 1), (1, 1), (30, 15), (4_000, 60))
        ),
    ],
)
def test_when_it_is_worth_asking_again(
    changes: dict[str, Any], waits_for: Wait | None, seconds: float
) -> None:
    assert poll_seconds(_open(**changes), waits_for) == pytest.approx(seconds)
