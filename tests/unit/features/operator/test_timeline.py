"""The timeline of `explain` has no hole that it does not explain."""

from datetime import UTC, datetime

import pytest

from features.operator.diagnosis import failures_text
from features.operator.history import _dropped
from models.db.queries.operations import AttemptRow
from models.ids import new_uuid
from models.lifecycle import ATTEMPTS_PER_TIMELINE

NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.mark.parametrize(
    ("previous", "number", "text"),
    [
        (0, 1, None),
        (1, 2, None),
        (0, 2, "attempt 1 was deferred too"),
        (2, 7, "attempts 3-6 were deferred too"),
        (3, ATTEMPTS_PER_TIMELINE + 1, None),
        (ATTEMPTS_PER_TIMELINE + 1, ATTEMPTS_PER_TIMELINE + 3, "attempt 100002 was deferred too"),
    ],
)
def test_attempts_that_are_not_stored_any_more_are_mentioned(
    previous: int, number: int, text: str | None
) -> None:
    attempt = AttemptRow(number, new_uuid(), "worker", "host", 1, NOW, [], "deferred", NOW, None)
    events = list(_dropped(attempt, previous))
    assert [event.text.partition(";")[0] for event in events] == ([text] if text else [])


@pytest.mark.parametrize(
    ("more", "end"),
    [
        ({}, "broke"),
        ({"tries": 1, "at": 1.0}, "broke"),
        (
            {"tries": 3, "answered_between": 2, "at": 1.0},
            "broke (3 times in a row; it answered other requests of the model before 2)",
        ),
    ],
)
def test_the_tries_of_a_server_error_are_shown(more: dict[str, float], end: str) -> None:
    call = {"upstream": "u", "reason": "upstream_500", "message": "It broke.", **more}
    assert failures_text([call]) == f"upstream u failed (upstream_500): It {end}"
