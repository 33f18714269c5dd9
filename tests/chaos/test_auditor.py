"""The auditor: a clean record has no violation, and each violation put into it is reported."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.audit.auditor import audit
from tests.chaos.audit.record import (
    JSON,
    ClientRequest,
    Fault,
    FaultKind,
    RunRecord,
    ToolCall,
    UpstreamCall,
    WorkerLifetime,
)
from tests.support.chaos.sample_records import (
    Mutation,
    edited_frame,
    fault,
    frame,
    in_turn,
    recorded_response,
)


@pytest.fixture
def record() -> RunRecord:
    """Two responses and a continuation; the first one called a tool."""
    first, call = recorded_response("m1", "resp_01", ["red ", "blue ", "green"])
    second, other = recorded_response("m2", "resp_02", ["one ", "two"])
    child, third = recorded_response("m3", "resp_03", ["three"])
    child.previous, third.request_messages = (
        first,
        json.dumps([{"role": "assistant", "content": "red blue green"}]),
    )
    tool = ToolCall("m1", "write x", 1.3, 1.4)
    lifetimes = [WorkerLifetime(f"worker-{number}", 0) for number in range(1, 4)]
    return RunRecord([first, second, child], [call, other, third], [tool], [], lifetimes, ended=100)


def test_a_clean_record_has_no_violation(record: RunRecord) -> None:
    report = audit(record)
    assert not report.violations, report
    assert report.responses == 3
    assert report.measures.wait == pytest.approx([0.2] * 3)
    assert max(report.measures.gap) < 1


def change_frame(
    record: RunRecord, index: int, change: Callable[[JSON], object], reader: int = 0
) -> None:
    chunks = record.traces[0].readings[reader].chunks
    chunks[index] = (chunks[index][0], edited_frame(chunks[index][1], change))


def set_final(record: RunRecord, **changes: Any) -> None:
    """Changes the terminal state of the first response for every reader and GET."""
    for request in record.traces[0].requests_of("get")[1:]:
        request.body.update(changes)
    change_for_all_readers(record, 11, lambda event: event["response"].update(changes))


def changed_byte(record: RunRecord) -> None:
    chunks = record.traces[0].readings[2].chunks
    chunks[0] = (chunks[0][0], chunks[0][1].replace(b'"blue "', b'"blue"'))


def drop(record: RunRecord, index: int, reader: int = 0) -> None:
    del record.traces[0].readings[reader].chunks[index]


def repeat(record: RunRecord, index: int) -> None:
    chunks = record.traces[0].readings[0].chunks
    chunks.insert(index, chunks[index])


def without_ending(record: RunRecord) -> None:
    del record.traces[0].readings[2].chunks[-2:]


def cut_frame(record: RunRecord) -> None:
    chunks = record.traces[0].readings[1].chunks
    chunks.append((1.7, b"event: response.output_text.delta\ndata: {"))
    record.traces[0].readings[1].end = "clean"
    record.traces[0].readings[1].web = "web-2"
    record.faults.append(Fault("stopped", "web-2", 1.6))


def stray_bytes(record: RunRecord) -> None:
    record.traces[0].readings[1].chunks.append((1.7, b"event: response.nonsense"))
    record.traces[0].readings[1].end = "cut"
    record.faults.append(Fault("killed", "web-2", 1.6))


def second_call(record: RunRecord, **changes: Any) -> UpstreamCall:
    """A second call of the upstream for the first response."""
    first = record.upstream[0]
    later = UpstreamCall(
        "m1", 2.6, "worker-2", "[]", list(first.sent_text), finished=3.0, is_complete_turn=True
    )
    for name, value in changes.items():
        setattr(later, name, value)
    record.upstream.append(later)
    return later


def overlapping_attempts(record: RunRecord) -> None:
    record.upstream[0].finished = 3.0
    second_call(record, started=2.0)


def recovered(
    record: RunRecord, seconds: float, what: FaultKind = "killed", end: float | None = None
) -> None:
    """The worker had a fault, and the response ran again so many seconds later."""
    close_upstream(record.upstream[0], 2.0)
    record.faults.append(Fault(what, "worker-1", 2.0, end))
    second_call(record, started=2 + seconds, finished=3 + seconds)
    for client_reading in record.traces[0].readings:
        client_reading.chunks = [
            (time + (3 + seconds if number > 6 else 0), data)
            for number, (time, data) in enumerate(client_reading.chunks)
        ]
    record.traces[0].readings.pop()
    for request in record.traces[0].requests_of("get")[1:]:
        request.sent, request.answered = request.sent + 30, (request.answered or 0) + 30


def cancel_answered(record: RunRecord, time: float, status: str) -> None:
    """A cancel of the first response was answered with 200 at this time."""
    record.traces[0].requests.insert(
        0, ClientRequest("cancel", "web-2", time - 0.1, time, 200, {"status": status})
    )


def ended_as_cancelled(record: RunRecord, time: float, status: str) -> None:
    """A cancel was answered, and the response ended as cancelled."""
    cancel_answered(record, time, status)
    set_final(record, status="cancelled")


def close_upstream(call: UpstreamCall, time: float) -> None:
    """The upstream connection was closed before its answer was complete."""
    call.closed, call.finished, call.is_complete_turn = time, None, False


def run_after_503(record: RunRecord) -> None:
    trace = record.traces[1]
    (
        trace.create.status,
        trace.create.body,
        trace.create.retry_after,
        trace.id,
        trace.requests,
        trace.readings,
    ) = (
        503,
        {},
        "1",
        None,
        [],
        [],
    )


def event_of_another_response(record: RunRecord) -> None:
    change_frame(record, 2, lambda event: event["response"].update(id="resp_02"))


def same_item(record: RunRecord) -> None:
    for request in record.traces[1].requests_of("get")[1:]:
        request.body["output"][0]["id"] = "msg_01"


def change_for_all_readers(record: RunRecord, index: int, change: Callable[[JSON], object]) -> None:
    """The same change for the reader that stayed and for the one that resumed after six events."""
    change_frame(record, index, change)
    change_frame(record, index - 6, change, reader=2)


def add_tool_call(record: RunRecord, status: str, key: str, *, times: int = 1) -> None:
    """The output of the first response ends with this tool call."""
    arguments = json.dumps({"key": f"m1/{key}"})
    items = [
        {
            "type": "mcp_call",
            "id": f"mcp_{number}",
            "status": status,
            "name": "write",
            "arguments": arguments,
        }
        for number in range(times)
    ]
    set_final(record, output=[*record.traces[0].requests_of("get")[1].body["output"], *items])


VIOLATIONS: dict[str, tuple[str, Mutation]] = {
    "accepted, then a 404": (
        "I1",
        lambda r: r.traces[0].requests.insert(0, ClientRequest("get", "web-1", 1.1, 1.2, 404, {})),
    ),
    "accepted, a 404 at the end": (
        "I1",
        lambda r: r.traces[0].requests.append(ClientRequest("get", "web-1", 8, 8.1, 404, {})),
    ),
    "deleted, and still readable": (
        "I1",
        lambda r: r.traces[0].requests.insert(
            0, ClientRequest("delete", "web-1", 1.0, 1.1, 200, {"deleted": True})
        ),
    ),
    "never ends": ("I2", lambda r: set_final(r, status="in_progress")),
    "recovered too late": ("I2", lambda r: recovered(r, 21)),
    "two terminal events": (
        "I3",
        lambda r: change_frame(
            r, 10, lambda event: event.update(type="response.failed", response={"id": "resp_01"})
        ),
    ),
    "an event after the end": ("I3", lambda r: r.traces[0].readings[0].chunks.reverse()),
    "[DONE] twice": ("I3", lambda r: repeat(r, 12)),
    "an event after [DONE]": (
        "I4",
        lambda r: (
            r.traces[0].readings[0].chunks.append((9, frame({"type": "x", "sequence_number": 12})))
        ),
    ),
    "a stream that stops": ("I3", without_ending),
    "a status that changes": (
        "I3",
        lambda r: r.traces[0].requests_of("get")[2].body.update(status="failed"),
    ),
    "a body that changes": (
        "I3",
        lambda r: r.traces[0].requests_of("get")[2].body.update(usage={}),
    ),
    "a hole": ("I4", lambda r: drop(r, 5)),
    "a hole at a resume": ("I4", lambda r: drop(r, 0, reader=2)),
    "a repeat": ("I4", lambda r: repeat(r, 6)),
    "a first number that is not 0": ("I4", lambda r: drop(r, 0)),
    "one byte that differs": ("I4", changed_byte),
    "a frame cut short by a clean end": ("I4", cut_frame),
    "bytes outside an event": ("I4", stray_bytes),
    "an invalid frame": (
        "I4",
        lambda r: r.traces[0].readings[0].chunks.insert(3, (1.35, b"hello\n\n")),
    ),
    "two owners": ("I5", overlapping_attempts),
    "a turn done twice": ("I6", second_call),
    "a turn done twice, Redis flushed": (
        "I6",
        in_turn(second_call, fault("flushed", "redis", 2.0, 2.0)),
    ),
    "a turn done twice, Postgres restarted": (
        "I6",
        in_turn(second_call, fault("restarted", "postgres", 2.0, 3.0)),
    ),
    "an unsafe tool called twice": (
        "I6",
        lambda r: r.tools.append(ToolCall("m1", "write x", 1.6, 1.7)),
    ),
    "a safe tool called twice without a death": (
        "I6",
        lambda r: r.tools.extend(
            [
                ToolCall("m1", "read y", 1.6, 1.7, safe=True),
                ToolCall("m1", "read y", 1.8, 1.9, safe=True),
            ]
        ),
    ),
    "a turn with tool outputs, repeated": (
        "I6",
        in_turn(
            lambda r: setattr(r.upstream[0], "request_messages", '[{"role": "tool"}]'),
            lambda r: close_upstream(r.upstream[0], 2.0),
            fault("killed", "worker-1", 2.0),
            lambda r: second_call(r, finished=2.9),
        ),
    ),
    "a completed call that was not made": ("I6", lambda r: add_tool_call(r, "completed", "y")),
    "a call twice in the output": (
        "I6",
        lambda r: add_tool_call(r, "completed", "x", times=2),
    ),
    "a failed call without a crash": ("I6", lambda r: add_tool_call(r, "failed", "x")),
    "text that the upstream did not send": (
        "I6",
        lambda r: r.upstream[0].sent_text.__setitem__(1, (1.4, "grey ")),
    ),
    "text lost at the end": ("I6", lambda r: r.upstream[0].sent_text.append((1.9, " and more"))),
    "GET and the terminal event differ": (
        "I7",
        lambda r: [
            request.body.update(model="x") for request in r.traces[0].requests_of("get")[1:]
        ],
    ),
    "two items open at a time": (
        "I4",
        lambda r: change_for_all_readers(
            r,
            9,
            lambda event: event.update(
                type="response.output_item.added",
                output_index=1,
                item={"id": "msg_other", "type": "message", "content": []},
            ),
        ),
    ),
    "deltas that are not the text": (
        "I7",
        lambda r: change_for_all_readers(r, 6, lambda event: event.update(delta="bleu ")),
    ),
    "an item that ends with another status": (
        "I7",
        lambda r: change_for_all_readers(
            r, 10, lambda event: event["item"].update(status="incomplete")
        ),
    ),
    "in progress after the terminal event": (
        "I7",
        lambda r: r.traces[0].requests_of("get")[1].body.update(status="in_progress"),
    ),
    "a GET older than the stream": (
        "I7",
        lambda r: r.traces[0].requests_of("get")[0].body.update(output=[]),
    ),
    "a GET with text of no upstream": (
        "I7",
        lambda r: (
            r.traces[0].requests_of("get")[0].body["output"][0]["content"][0].update(text="purple")
        ),
    ),
    "cannot be continued at once": (
        "I7",
        in_turn(
            lambda r: setattr(r.traces[2].create, "status", 400),
            lambda r: setattr(r.traces[2], "id", None),
        ),
    ),
    "a continuation without its history": (
        "I7",
        lambda r: setattr(r.upstream[2], "request_messages", "[]"),
    ),
    "foreign input items": (
        "I7",
        lambda r: (
            r.traces[0].requests_of("input_items")[0].body["data"][0]["content"][0].update(text="x")
        ),
    ),
    "a 503 without Retry-After": (
        "I9",
        lambda r: r.traces[0].requests.append(ClientRequest("get", "web-1", 3, 3.1, 503, {})),
    ),
    "a 500": (
        "I9",
        lambda r: r.traces[0].requests.append(ClientRequest("get", "web-1", 3, 3.1, 500, {})),
    ),
    "a 503'd create that runs": ("I9", run_after_503),
    "a cancel that was answered, and another ending": (
        "I10",
        lambda r: cancel_answered(r, 1.5, "in_progress"),
    ),
    "a call of the upstream after a cancel": (
        "I10",
        lambda r: ended_as_cancelled(r, 0.2, "in_progress"),
    ),
    "a tool called after a cancel": (
        "I10",
        in_turn(
            lambda r: ended_as_cancelled(r, 2.6, "cancelled"),
            lambda r: r.tools.append(ToolCall("m1", "write z", 3.0, 3.1)),
        ),
    ),
    "a queued response that starts after its cancel": (
        "I10",
        lambda r: ended_as_cancelled(r, 1.1, "cancelled"),
    ),
    "cancelled without a request": ("I10", lambda r: set_final(r, status="cancelled")),
    "an event of another response": ("I11", event_of_another_response),
    "one id twice": ("I11", lambda r: setattr(r.traces[1], "id", "resp_01")),
    "one item id twice": ("I11", same_item),
    "another project that gets an answer": (
        "I11",
        lambda r: setattr(r.traces[0].requests_of("other_project")[0], "status", 200),
    ),
}


@pytest.mark.parametrize("name", list(VIOLATIONS))
def test_each_violation_is_reported(record: RunRecord, name: str) -> None:
    invariant, change = VIOLATIONS[name]
    change(record)
    report = audit(record)
    assert invariant in {violation.invariant for violation in report.violations}, report


def deleted_while_read(record: RunRecord) -> None:
    trace = record.traces[1]
    trace.readings[1:] = []
    trace.readings[0].chunks = trace.readings[0].chunks[:4]
    trace.readings[0].closed = 4.5
    trace.requests[2:] = [
        ClientRequest("delete", "web-1", 4.2, 4.3, 200, {"deleted": True}),
        ClientRequest("get", "web-1", 4.8, 4.9, 404, {"error": {}}),
        trace.requests[-1],
    ]


def read_again_after_a_crash(record: RunRecord) -> None:
    get = record.traces[0].requests_of("get")[0]
    get.body.update(output=[])
    assert get.answered is not None
    record.faults.append(Fault("crashed", "postgres", get.sent + 0.001, get.answered - 0.001))


ALLOWED: dict[str, Mutation] = {
    "a GET that waits for the end of a crash": read_again_after_a_crash,
    "repeated after a crash": in_turn(
        lambda r: close_upstream(r.upstream[0], 2.0),
        fault("killed", "worker-1", 2.0),
        lambda r: second_call(r, finished=2.9),
    ),
    "a stream that ends with its web process": in_turn(
        lambda r: drop(r, 11), lambda r: drop(r, 11), fault("stopped", "web-1", 2.0)
    ),
    "an upstream that failed before its first token": lambda r: r.upstream.insert(
        0, UpstreamCall("m1", 1.1, "worker-1", finished=1.15)
    ),
    "a GET that is behind right after a crash of Postgres": in_turn(
        lambda r: r.traces[0].requests_of("get")[0].body.update(output=[]),
        fault("crashed", "postgres", 1.0, 1.5),
    ),
    "a cancel that is refused": lambda r: r.traces[0].requests.append(
        ClientRequest("cancel", "web-1", 4, 4.1, 400, {})
    ),
    "a GET answered 503": lambda r: r.traces[0].requests.insert(
        0, ClientRequest("get", "web-1", 1.1, 1.2, 503, {}, "1")
    ),
    "a GET without an answer": lambda r: r.traces[0].requests.insert(
        0, ClientRequest("get", "web-1", 1.1)
    ),
    "a GET that is newer than what the readers of a deleted response had": deleted_while_read,
    "an unsafe call of the same tool with another key": lambda r: r.tools.append(
        ToolCall("m1", "write z", 1.6, 1.7)
    ),
    "a stream that ends early because the first owner died in the stated double fault": in_turn(
        lambda r: drop(r, 11),
        lambda r: drop(r, 11),
        fault("killed", "worker-9", 1.1),
        fault("crashed", "postgres", 1.9, 2.2),
    ),
    "other bytes after the stated double fault": in_turn(
        changed_byte, fault("crashed", "postgres", 1.9, 2.2), fault("killed", "worker-1", 2.0)
    ),
}


@pytest.mark.parametrize("name", list(ALLOWED))
def test_allowed_behaviour_is_no_violation(record: RunRecord, name: str) -> None:
    ALLOWED[name](record)
    report = audit(record)
    assert not report.violations, report


def test_a_death_without_another_fault_has_the_short_limit(record: RunRecord) -> None:
    recovered(record, 7)
    report = audit(record)
    assert [violation.invariant for violation in report.violations] == ["I2"], report
    assert report.measures.recovery == pytest.approx([7])


@pytest.mark.parametrize(
    "another",
    [
        ("frozen", "worker-2", 1.0, 1.5),
        ("crashed", "postgres", 0.5, 1.0),
        ("flushed", "redis", 1.0, 1.0),
    ],
)
def test_a_death_with_another_fault_near_has_the_limit_of_the_lease(
    record: RunRecord, another: tuple[FaultKind, str, float, float]
) -> None:
    record.faults.append(Fault(*another))
    recovered(record, 7)
    report = audit(record)
    assert not report.violations, report
    assert report.measures.recovery_by_lease == pytest.approx([7])


def test_no_limit_in_seconds_counts_without_enough_cpu(record: RunRecord) -> None:
    record.faults.append(Fault("starved", "machine", 0.0, 9.0))
    record.faults.append(Fault("restarted", "postgres", 1.0, 1.5))
    recovered(record, 21)
    report = audit(record)
    assert not report.violations, report
    assert report.measures.recovery_in_trouble == pytest.approx([21])


def test_a_frozen_worker_has_the_limit_of_the_lease(record: RunRecord) -> None:
    recovered(record, 7, "frozen", 15)
    report = audit(record)
    assert not report.violations, report


@pytest.mark.parametrize("target", ["web-1", "quarantine-3"])
def test_faults_elsewhere_do_not_lengthen_the_short_limit(record: RunRecord, target: str) -> None:
    record.faults.append(Fault("killed", target, 2.0))
    recovered(record, 7)
    assert "I2" in {violation.invariant for violation in audit(record).violations}


def test_recovery_and_cancels_are_measured(record: RunRecord) -> None:
    close_upstream(record.upstream[0], 1.5)
    record.faults.append(Fault("killed", "worker-1", 1.5))
    for client_reading in record.traces[0].readings:
        client_reading.chunks = [
            (time + (2 if time > 1.5 else 0), data) for time, data in client_reading.chunks
        ]
    second_call(record, started=2.25)
    close_upstream(record.upstream[1], 1.58)
    record.traces[1].requests.append(
        ClientRequest("cancel", "web-2", 1.5, 1.6, 200, {"status": "cancelled"})
    )
    measures = audit(record).measures
    assert measures.recovery == pytest.approx([0.75])
    assert measures.cancel_in_trouble == pytest.approx([0.08])
