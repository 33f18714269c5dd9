"""Violations put into a clean record of the background field, each of which the auditor reports."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.audit.background import check_background, check_windows
from tests.chaos.audit.case import Case
from tests.chaos.audit.objects import check_objects
from tests.chaos.audit.record import (
    ChainTrace,
    ClientRequest,
    Fault,
    ObjectTrace,
    ResponseTrace,
    RunRecord,
    ScheduleTrace,
    SteeredTrace,
    SteerTrace,
    TimeBounds,
    UpstreamCall,
)

STEER = "In French."


def _answered(at: float, code: int = 200, **body: object) -> ClientRequest:
    return ClientRequest("create", "web-1", at, at + 0.01, code, body)


def _response(name: str) -> ObjectTrace:
    return ObjectTrace("response", name, creates=[_answered(1, id=f"resp_{name}")])


def _call(name: str, begin: float, *texts: str) -> UpstreamCall:
    return UpstreamCall(
        name, begin, finished=begin + 1, is_complete_turn=True, request_texts=list(texts)
    )


def _clean() -> RunRecord:
    """A chain of two, a schedule that ran twice, a response that got one steer and refused one."""
    schedule = ObjectTrace("schedule", "s", creates=[_answered(1, id="sched_s")])
    runs = [
        {"trigger": "slot", "response_id": "resp_1"},
        {"trigger": "request", "response_id": "resp_2"},
    ]
    steered = SteeredTrace(
        _response("t"),
        [SteerTrace(STEER, _answered(3, id="steer_1")), SteerTrace("Late.", _answered(9, 400))],
        [{"id": "steer_1", "state": "committed", "input": None}],
        {"resp_u": ("completed", [STEER])},
    )
    return RunRecord(
        chains=[
            ChainTrace(
                [_response("c0"), _response("c1")], ["completed", "completed"], is_stopped=False
            )
        ],
        schedules=[
            ScheduleTrace(
                schedule, [_answered(2)], runs, dict.fromkeys(("resp_1", "resp_2"), "completed")
            )
        ],
        steered=[steered],
        object_calls=[
            _call("c0", 2),
            _call("c1", 4, "c0.0 c0.1 "),
            _call("s", 5),
            _call("s", 6),
            _call("t", 2, "This is t."),
            _call("t", 7, "This is t.", STEER),
        ],
    )


def _set(path: str, value: Any) -> Callable[[RunRecord], None]:
    """Sets what a path of attributes, keys and positions names: `chains.0.statuses.1`."""

    def change(record: RunRecord) -> None:
        *steps, last = path.split(".")
        place: Any = record
        for step in steps:
            place = getattr(place, step) if hasattr(place, step) else _at(place, step)
        if hasattr(place, last):
            setattr(place, last, value)
        else:
            place[int(last) if isinstance(place, list) else last] = value

    return change


def _at(place: Any, step: str) -> Any:
    return place[int(step) if isinstance(place, list) else step]


VIOLATIONS = {
    "a link that has not ended": ("chains.0.statuses.1", "", "I2"),
    "a link that failed behind a result": ("chains.0.statuses.1", "failed", "I2"),
    "a link that ran without its previous one": ("chains.0.statuses.0", "failed", "I2"),
    "a link that began too early": ("object_calls.1.started", 2.5, "I5"),
    "a link without the output before": ("object_calls.1.request_texts", [], "I5"),
    "a slot without a run": ("schedules.0.runs.0.trigger", "request", "I6"),
    "a run that nobody requested": ("schedules.0.requested", [], "I6"),
    "two runs of one response": ("schedules.0.runs.1.response_id", "resp_1", "I6"),
    "a run that failed": ("schedules.0.statuses.resp_1", "failed", "I2"),
    "runs that cannot be read": ("schedules.0.runs", None, "I2"),
    "a run without a call": ("object_calls.2.is_complete_turn", False, "I6"),
    "a steer that is input twice": (
        "steered.0.successors.resp_u",
        ("completed", [STEER, STEER]),
        "I6",
    ),
    "a committed steer that is no input": ("steered.0.successors", {}, "I1"),
    "a steer that was left": ("steered.0.shown.0.state", "queued", "I1"),
    "a returned steer that is input": ("steered.0.shown.0.state", "failed", "I6"),
    "a refused steer that is input": ("steered.0.steers.0.request.status", 400, "I6"),
    "a successor that has not ended": ("steered.0.successors.resp_u", ("", [STEER]), "I2"),
    "steers that cannot be read": ("steered.0.shown", None, "I1"),
}


def test_a_clean_record_has_no_violation() -> None:
    record = _clean()
    record.objects.append(record.schedules[0].created)
    assert not list(check_background(record))
    # A create of a schedule that was repeated makes one schedule, which runs more than once.
    record.objects[0].retry = "key"
    assert not list(check_objects(record))


@pytest.mark.parametrize(("path", "value", "invariant"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_violation_is_reported(path: str, value: Any, invariant: str) -> None:
    record = copy.deepcopy(_clean())
    _set(path, value)(record)
    assert invariant in {found.invariant for found in check_background(record)}


def test_a_longer_window_does_not_begin_first() -> None:
    record = RunRecord(is_crowded=True)

    def case(window: str, created: float, begun: float) -> Case:
        create = _answered(created, id=f"resp_{window}")
        trace = ResponseTrace(window, "", background=True, create=create, window=window)
        return Case(trace, record, TimeBounds(), [_call(window, begun)])

    late = [case("soonest", 1, 12), case("8h", 2, 10)]
    assert [found.response for found in check_windows(late, record)] == ["soonest"]
    assert not list(check_windows([case("soonest", 1, 9), case("8h", 2, 10)], record))
    assert not list(check_windows([case("soonest", 8, 12), case("8h", 2, 10)], record))
    record.faults.append(Fault("killed", "worker-1", 5))
    assert not list(check_windows(late, record)), "a worker had just died"
