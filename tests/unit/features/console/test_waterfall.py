"""What a response spent its time on: every second of it belongs to a bar."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from features.console.waterfall import SpanKind, ToolTimes, Waterfall, draw
from features.operator.history import History, TimelineEvent
from models.db.queries.listing import ToolCallRow
from models.db.queries.operations import AttemptRow, ResponseState
from models.ids import new_uuid
from models.lifecycle import Status

_BEGIN = datetime(2026, 11, 27, tzinfo=UTC)
_FAILURE = {"upstream": "gpu-2", "reason": "upstream_500", "message": "It broke."}


def _at(seconds: float) -> datetime:
    return _BEGIN + timedelta(seconds=seconds)


def _attempt(
    number: int,
    claimed: float,
    *turns: float,
    ended: float | None = None,
    outcome: str | None = None,
    failures: list[dict[str, Any]] | None = None,
) -> AttemptRow:
    return AttemptRow(
        number,
        new_uuid(),
        "worker",
        "host",
        7,
        _at(claimed),
        [_at(turn) for turn in turns],
        outcome,
        None if ended is None else _at(ended),
        failures,
    )


def _history(status: Status, end: float, *attempts: AttemptRow, **more: Any) -> History:
    known: dict[str, Any] = {field.name: None for field in fields(ResponseState)}
    values = known | {"status": status, "now": _at(end), "attempt": len(attempts)} | more
    state = ResponseState(**values)
    events = [TimelineEvent(_at(0), "created", ""), TimelineEvent(_at(end), "ended", "")]
    return History(state, {}, None, list(attempts), {}, events, None)


def _call(name: str, turn: int, *, finished: bool = True, failed: bool = False) -> ToolCallRow:
    return ToolCallRow(name, turn, 0, "mcp_call", name, "server", 1, finished, failed)


def _brief(waterfall: Waterfall) -> list[tuple[str, str, float, float]]:
    return [
        (bar.span.kind.value, bar.span.label, bar.after, round(bar.span.seconds, 3))
        for bar in waterfall.bars
    ]


_NO_TOOLS = ToolTimes([], {})


def test_turns_and_calls_follow_one_another() -> None:
    history = _history(Status.COMPLETED, 10, _attempt(1, 1, 4))
    calls = [_call("a", 1), _call("b", 1, failed=True), _call("unknown", 1)]
    waterfall = draw(history, ToolTimes(calls, {"a": _at(5), "b": _at(7)}))
    assert _brief(waterfall) == [
        ("line", "In line", 0, 1),
        ("turn", "Turn 1", 1, 3),
        ("tool", "server: a", 4, 1),
        ("failed", "server: b", 4, 3),
        ("turn", "Turn 2", 7, 3),
    ]
    assert [bar.x for bar in waterfall.bars] == [0, 10, 40, 40, 70]
    assert [bar.width for bar in waterfall.bars] == [10, 30, 10, 30, 30]


def test_a_death_and_a_wait_for_an_upstream_are_bars() -> None:
    history = _history(
        Status.COMPLETED,
        20,
        _attempt(1, 1, ended=3, outcome="died"),
        _attempt(2, 5, ended=6, outcome="deferred", failures=[_FAILURE]),
        _attempt(3, 16),
    )
    waterfall = draw(history, _NO_TOOLS)
    assert _brief(waterfall) == [
        ("line", "In line", 0, 1),
        ("failed", "Turn 1, attempt 1", 1, 2),
        ("line", "Waits for a worker", 3, 2),
        ("failed", "Turn 1, attempt 2", 5, 1),
        ("wait", "Waits for an upstream", 6, 10),
        ("turn", "Turn 1, attempt 3", 16, 4),
    ]
    notes = [bar.span.note for bar in waterfall.bars]
    assert notes[1] == "died with its worker"
    assert "gpu-2 failed (upstream_500)" in notes[4]
    assert notes[3] == "", "the wait says it"


def test_tries_that_are_not_stored_any_more_are_part_of_a_wait() -> None:
    last = _attempt(6, 19, ended=20, outcome="deferred", failures=[_FAILURE])
    history = _history(Status.IN_PROGRESS, 24, last, started_at=_at(2))
    waterfall = draw(history, _NO_TOOLS)
    assert _brief(waterfall) == [
        ("line", "In line", 0, 2),
        ("wait", "Waits for an upstream", 2, 17),
        ("failed", "Turn 1", 19, 1),
        ("wait", "Waits for an upstream", 20, 4),
    ]
    assert waterfall.bars[1].span.note == "after 5 tries"
    assert waterfall.bars[3].span.goes_on


def test_a_call_that_died_with_its_worker_runs_in_both_attempts() -> None:
    history = _history(
        Status.COMPLETED, 10, _attempt(1, 0, 2, ended=4, outcome="died"), _attempt(2, 5)
    )
    waterfall = draw(history, ToolTimes([_call("a", 1)], {"a": _at(8)}))
    assert _brief(waterfall)[2:] == [
        ("tool", "server: a", 2, 2),
        ("line", "Waits for a worker", 4, 1),
        ("tool", "server: a", 5, 3),
        ("turn", "Turn 2, attempt 2", 8, 2),
    ]


def test_what_is_open_goes_on() -> None:
    waiting = draw(_history(Status.QUEUED, 3, waits=True), _NO_TOOLS)
    assert _brief(waiting) == [("line", "Waits for its previous response", 0, 3)]
    owned = {"worker": new_uuid(), "kind": "worker", "host": "h", "pid": 1, "dead": False}
    history = _history(Status.IN_PROGRESS, 9, _attempt(1, 1, 4), **owned, expires_at=_at(60))
    running = draw(history, ToolTimes([_call("a", 1, finished=False)], {}))
    assert [(bar.span.label, bar.span.goes_on) for bar in running.bars] == [
        ("In line", False),
        ("Turn 1", False),
        ("server: a", True),
    ]


def test_a_failed_response_has_failed_in_its_last_turn() -> None:
    history = _history(Status.FAILED, 5, _attempt(1, 1, failures=[_FAILURE]))
    last = draw(history, _NO_TOOLS).bars[-1].span
    assert (last.kind, last.note) == (SpanKind.FAILED, "upstream gpu-2 failed (upstream_500)")


def test_bars_are_bounded_in_number_and_stay_within_the_width() -> None:
    turns = [1 + n * 0.01 for n in range(500)]
    waterfall = draw(_history(Status.COMPLETED, 1e6, _attempt(1, 0, *turns)), _NO_TOOLS)
    assert len(waterfall.bars) + waterfall.left_out == 502
    assert len(waterfall.bars) <= 100
    assert all(bar.x >= 0 and bar.x + bar.width <= 100.01 for bar in waterfall.bars)


def test_a_cached_answer_has_no_bars() -> None:
    assert draw(_history(Status.COMPLETED, 0), _NO_TOOLS).bars == []
