"""When a client should ask again."""

from typing import Any

import pytest

from models.db.queries.read import OpenFigures
from models.ids import new_uuid
from models.wire.progress import Wait, WaitsForSlot, WaitsForUpstream, Work
from web.responses.progress import OpenResponse, poll_seconds

NOW = 1_800_000_000.0


def _open(*, is_writing: bool = False, **changes: Any) -> OpenResponse:
    figures = {"age": 0.0, "pause": None, "run_seconds": None, "place_at": None}
    return OpenResponse(
        id=new_uuid(),
        project=new_uuid(),
        background=True,
        is_owned=True,
        now=NOW,
        figures=OpenFigures(
            **figures | changes, turns=0, lane=1, retrying_since=None, failed_tries=0
        ),
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
