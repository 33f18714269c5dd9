"""The auditor itself: a clean record gives no violation, and every kind of violation, planted into that record, is found."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.audit.auditor import audit
from tests.chaos.audit.record import (
    ClientRequest,
    Fault,
    FaultKind,
    Reading,
    ResponseTrace,
    RunRecord,
    ToolCall,
    UpstreamCall,
    WorkerLifetime,
)

JSON = dict[str, Any]
Mutation = Callable[[RunRecord], object]


def told(response_id: str, words: list[str], *, ending: str = "completed") -> list[bytes]:
    """The frames of an ordinary story: opening, one message, the end."""
    item = f"msg_{response_id[-2:]}"
    text = "".join(words)
    place = {"item_id": item, "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {
        "id": item,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    empty = {**message, "status": "in_progress", "content": []}
    bodies: list[tuple[str, JSON]] = [
        ("response.created", {"response": body(response_id, "queued")}),
        ("response.queued", {"response": body(response_id, "queued")}),
        ("response.in_progress", {"response": body(response_id, "in_progress")}),
        ("response.output_item.added", {"output_index": 0, "item": empty}),
        ("response.content_part.added", {**place, "part": {**part, "text": ""}}),
        *(("response.output_text.delta", {**place, "delta": word}) for word in words),
        ("response.output_text.done", {**place, "text": text}),
        ("response.content_part.done", {**place, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": message}),
        (f"response.{ending}", {"response": body(response_id, "completed", [message])}),
    ]
    return [
        frame({"type": kind, "sequence_number": number, **rest})
        for number, (kind, rest) in enumerate(bodies)
    ]


def body(response_id: str, status: str, output: list[JSON] | None = None) -> JSON:
    """A Response, as far as the auditor looks."""
    text = "".join(part["text"] for item in output or [] for part in item["content"])
    return {"id": response_id, "status": status, "output": output or [], "output_text": text}


def frame(event: JSON) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def edited(raw: bytes, change: Callable[[JSON], object]) -> bytes:
    """The frame with its event changed."""
    event = json.loads(raw.split(b"data: ", 1)[1])
    change(event)
    return frame(event)


def reading(web: str, frames: list[bytes], after: int = -1, opened: float = 1.0) -> Reading:
    """Somebody was sent these frames, a tenth of a second apart, and `[DONE]`."""
    chunks = [(opened + 0.1 * (number + 1), data) for number, data in enumerate(frames)]
    if any(
        f"event: response.{kind}\n".encode() in b"".join(frames)
        for kind in ("completed", "failed", "incomplete")
    ):
        chunks.append((chunks[-1][0], b"data: [DONE]\n\n"))
    return Reading(web, after, opened, chunks, closed=chunks[-1][0], end="clean")


def story(marker: str, response_id: str, words: list[str]) -> tuple[ResponseTrace, UpstreamCall]:
    """A response that nothing happened to: one reader who stayed, one who resumed, looks before and after the end."""
    frames = told(response_id, words)
    final = json.loads(frames[-1].split(b"data: ", 1)[1])["response"]
    running = copy.deepcopy(final)
    running["status"], running["output"][0]["status"] = "in_progress", "in_progress"
    running["output"][0]["content"][0]["text"] = running["output_text"] = words[0]
    created = ClientRequest("create", "web-1", 0.9, 1.0, 200, body(response_id, "queued"))
    asked = [
        ClientRequest("get", "web-1", 1.62, 1.65, 200, running),
        ClientRequest("get", "web-2", 4.0, 4.1, 200, final),
        ClientRequest("get", "web-1", 5.0, 5.1, 200, copy.deepcopy(final)),
        ClientRequest(
            "input_items",
            "web-1",
            5.2,
            5.3,
            200,
            {"data": [{"content": [{"type": "input_text", "text": f"This is {marker}."}]}]},
        ),
        ClientRequest("stranger", "web-1", 5.4, 5.5, 404, {"error": {}}),
    ]
    readings = [
        reading("web-1", frames),
        reading("web-2", frames[:6]),
        reading("web-1", frames[6:], after=5, opened=2.0),
    ]
    readings[1].end = "left"
    one = ResponseTrace(
        marker,
        f"This is {marker}.",
        background=True,
        create=created,
        id=response_id,
        readings=readings,
        requests=asked,
    )
    said = [(1.3 + 0.1 * number, word) for number, word in enumerate(words)]
    call = UpstreamCall(
        marker, 1.2, f"worker-{marker[1]}", "[]", said, finished=2.5, is_complete_turn=True
    )
    return one, call


@pytest.fixture
def record() -> RunRecord:
    """Two responses and a continuation, with a call to a tool."""
    first, call = story("m1", "resp_01", ["red ", "blue ", "green"])
    second, other = story("m2", "resp_02", ["one ", "two"])
    child, third = story("m3", "resp_03", ["three"])
    child.previous, third.request_messages = (
        first,
        json.dumps([{"role": "assistant", "content": "red blue green"}]),
    )
    tool = ToolCall("m1", "write x", 1.3, 1.4)
    lives = [WorkerLifetime(f"worker-{number}", 0) for number in range(1, 4)]
    return RunRecord([first, second, child], [call, other, third], [tool], [], lives, ended=100)


def test_a_clean_record_has_no_violation(record: RunRecord) -> None:
    report = audit(record)
    assert not report.violations, report
    assert report.responses == 3
    assert report.measures.wait == pytest.approx([0.2] * 3)
    assert max(report.measures.gap) < 1


def change_frame(
    record: RunRecord, at: int, change: Callable[[JSON], object], reader: int = 0
) -> None:
    chunks = record.traces[0].readings[reader].chunks
    chunks[at] = (chunks[at][0], edited(chunks[at][1], change))


def set_final(record: RunRecord, **changes: Any) -> None:
    """What everybody was told at the end of the first response was otherwise."""
    for look in record.traces[0].requests_of("get")[1:]:
        look.body.update(changes)
    for_all_readers(record, 11, lambda event: event["response"].update(changes))


def other_byte(record: RunRecord) -> None:
    chunks = record.traces[0].readings[2].chunks
    chunks[0] = (chunks[0][0], chunks[0][1].replace(b'"blue "', b'"blue"'))


def drop(record: RunRecord, at: int, reader: int = 0) -> None:
    del record.traces[0].readings[reader].chunks[at]


def repeat(record: RunRecord, at: int) -> None:
    chunks = record.traces[0].readings[0].chunks
    chunks.insert(at, chunks[at])


def without_end(record: RunRecord) -> None:
    del record.traces[0].readings[2].chunks[-2:]


def torn_frame(record: RunRecord) -> None:
    chunks = record.traces[0].readings[1].chunks
    chunks.append((1.7, b"event: response.output_text.delta\ndata: {"))
    record.traces[0].readings[1].end = "clean"
    record.traces[0].readings[1].web = "web-2"
    record.faults.append(Fault("stopped", "web-2", 1.6))


def wrong_piece(record: RunRecord) -> None:
    record.traces[0].readings[1].chunks.append((1.7, b"event: response.nonsense"))
    record.traces[0].readings[1].end = "cut"
    record.faults.append(Fault("killed", "web-2", 1.6))


def second_call(record: RunRecord, **changes: Any) -> UpstreamCall:
    """The first response's upstream was asked once more."""
    first = record.upstream[0]
    later = UpstreamCall(
        "m1", 2.6, "worker-2", "[]", list(first.sent_text), finished=3.0, is_complete_turn=True
    )
    for name, value in changes.items():
        setattr(later, name, value)
    record.upstream.append(later)
    return later


def two_owners(record: RunRecord) -> None:
    record.upstream[0].finished = 3.0
    second_call(record, started=2.0)


def dies_unnoticed(record: RunRecord) -> None:
    """Its worker was killed under it, and it took long."""
    die(record.upstream[0], 2.0)
    record.faults.append(Fault("killed", "worker-1", 2.0))
    second_call(record, started=23.0, finished=24.0)
    for one in record.traces[0].readings:
        one.chunks = [
            (at + (24 if number > 6 else 0), data) for number, (at, data) in enumerate(one.chunks)
        ]
    record.traces[0].readings.pop()
    for look in record.traces[0].requests_of("get")[1:]:
        look.sent, look.answered = look.sent + 30, (look.answered or 0) + 30


def cancel_answered(record: RunRecord, at: float, told: str) -> None:
    """A cancel of the first response was answered 200 at that moment."""
    record.traces[0].requests.insert(
        0, ClientRequest("cancel", "web-2", at - 0.1, at, 200, {"status": told})
    )


def cancelled_in_vain(record: RunRecord, at: float, told: str) -> None:
    """The same, and it ended as cancelled."""
    cancel_answered(record, at, told)
    set_final(record, status="cancelled")


def die(call: UpstreamCall, at: float) -> None:
    """The socket of this request was closed before it was through."""
    call.closed, call.finished, call.is_complete_turn = at, None, False


def ran_after_503(record: RunRecord) -> None:
    one = record.traces[1]
    (
        one.create.status,
        one.create.body,
        one.create.retry_after,
        one.id,
        one.requests,
        one.readings,
    ) = (
        503,
        {},
        "1",
        None,
        [],
        [],
    )


def crossed(record: RunRecord) -> None:
    change_frame(record, 2, lambda event: event["response"].update(id="resp_02"))


def same_item(record: RunRecord) -> None:
    for look in record.traces[1].requests_of("get")[1:]:
        look.body["output"][0]["id"] = "msg_01"


def for_all_readers(record: RunRecord, at: int, change: Callable[[JSON], object]) -> None:
    """The one who stayed and the one who resumed after six events were sent the same change."""
    change_frame(record, at, change)
    change_frame(record, at - 6, change, reader=2)


def called(record: RunRecord, status: str, key: str, *, times: int = 1) -> None:
    """The first response's output ends with this call."""
    arguments = json.dumps({"key": f"m1/{key}"})
    items = [
        {
            "type": "mcp_call",
            "id": f"mcp_{n}",
            "status": status,
            "name": "write",
            "arguments": arguments,
        }
        for n in range(times)
    ]
    set_final(record, output=[*record.traces[0].requests_of("get")[1].body["output"], *items])


def each(*steps: Mutation) -> Mutation:
    """One after the other."""

    def mutate(record: RunRecord) -> None:
        for step in steps:
            step(record)

    return mutate


def faulty(what: FaultKind, target: str, begin: float, end: float | None = None) -> Mutation:
    """Something was done to a process or server."""
    return lambda record: record.faults.append(Fault(what, target, begin, end))


MUTATIONS: dict[str, tuple[str, Mutation]] = {
    "accepted, and 404 afterwards": (
        "I1",
        lambda r: r.traces[0].requests.insert(0, ClientRequest("get", "web-1", 1.1, 1.2, 404, {})),
    ),
    "accepted, and gone at the end": (
        "I1",
        lambda r: r.traces[0].requests.append(ClientRequest("get", "web-1", 8, 8.1, 404, {})),
    ),
    "deleted, and still shown": (
        "I1",
        lambda r: r.traces[0].requests.insert(
            0, ClientRequest("delete", "web-1", 1.0, 1.1, 200, {"deleted": True})
        ),
    ),
    "never ends": ("I2", lambda r: set_final(r, status="in_progress")),
    "recovered too late": ("I2", dies_unnoticed),
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
    "a stream that stops": ("I3", without_end),
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
    "one byte that differs": ("I4", other_byte),
    "a frame cut short by a clean end": ("I4", torn_frame),
    "a piece that belongs to no event": ("I4", wrong_piece),
    "a frame that is none": (
        "I4",
        lambda r: r.traces[0].readings[0].chunks.insert(3, (1.35, b"hello\n\n")),
    ),
    "two owners": ("I5", two_owners),
    "a turn done twice": ("I6", second_call),
    "a turn done twice, Redis flushed": (
        "I6",
        each(second_call, faulty("flushed", "redis", 2.0, 2.0)),
    ),
    "a turn done twice, Postgres restarted": (
        "I6",
        each(second_call, faulty("away", "postgres", 2.0, 3.0)),
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
    "a turn whose tools were answered, asked for again": (
        "I6",
        each(
            lambda r: setattr(r.upstream[0], "request_messages", '[{"role": "tool"}]'),
            lambda r: die(r.upstream[0], 2.0),
            faulty("killed", "worker-1", 2.0),
            lambda r: second_call(r, finished=2.9),
        ),
    ),
    "a completed call that nobody made": ("I6", lambda r: called(r, "completed", "y")),
    "a call that stands in the output twice": (
        "I6",
        lambda r: called(r, "completed", "x", times=2),
    ),
    "a failed call though nobody died": ("I6", lambda r: called(r, "failed", "x")),
    "a word that was never said": (
        "I6",
        lambda r: r.upstream[0].sent_text.__setitem__(1, (1.4, "grey ")),
    ),
    "a word lost at the end": ("I6", lambda r: r.upstream[0].sent_text.append((1.9, " and more"))),
    "GET and the terminal event differ": (
        "I7",
        lambda r: [look.body.update(model="x") for look in r.traces[0].requests_of("get")[1:]],
    ),
    "deltas that are not the text": (
        "I7",
        lambda r: for_all_readers(r, 6, lambda event: event.update(delta="bleu ")),
    ),
    "an item done otherwise than it ends": (
        "I7",
        lambda r: for_all_readers(r, 10, lambda event: event["item"].update(status="incomplete")),
    ),
    "in progress after the terminal event": (
        "I7",
        lambda r: r.traces[0].requests_of("get")[1].body.update(status="in_progress"),
    ),
    "a GET older than what was seen": (
        "I7",
        lambda r: r.traces[0].requests_of("get")[0].body.update(output=[]),
    ),
    "a GET with text from nowhere": (
        "I7",
        lambda r: (
            r.traces[0].requests_of("get")[0].body["output"][0]["content"][0].update(text="purple")
        ),
    ),
    "cannot be continued at once": (
        "I7",
        each(
            lambda r: setattr(r.traces[2].create, "status", 400),
            lambda r: setattr(r.traces[2], "id", None),
        ),
    ),
    "a continuation that was not told": (
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
    "a 503'd create that runs": ("I9", ran_after_503),
    "a cancel that was answered, and another ending": (
        "I10",
        lambda r: cancel_answered(r, 1.5, "in_progress"),
    ),
    "an upstream request after a cancel": (
        "I10",
        lambda r: cancelled_in_vain(r, 0.2, "in_progress"),
    ),
    "a tool called after a cancel": (
        "I10",
        each(
            lambda r: cancelled_in_vain(r, 2.6, "cancelled"),
            lambda r: r.tools.append(ToolCall("m1", "write z", 3.0, 3.1)),
        ),
    ),
    "a queued response that starts after its cancel": (
        "I10",
        lambda r: cancelled_in_vain(r, 1.1, "cancelled"),
    ),
    "cancelled by nobody": ("I10", lambda r: set_final(r, status="cancelled")),
    "an event of another response": ("I11", crossed),
    "one id twice": ("I11", lambda r: setattr(r.traces[1], "id", "resp_01")),
    "one item id twice": ("I11", same_item),
    "a stranger who is answered": (
        "I11",
        lambda r: setattr(r.traces[0].requests_of("stranger")[0], "status", 200),
    ),
}


@pytest.mark.parametrize("name", list(MUTATIONS))
def test_a_planted_violation_is_found(record: RunRecord, name: str) -> None:
    invariant, mutate = MUTATIONS[name]
    mutate(record)
    report = audit(record)
    assert invariant in {violation.invariant for violation in report.violations}, report


EXCUSES: dict[str, Mutation] = {
    "asked again after a death": each(
        lambda r: die(r.upstream[0], 2.0),
        faulty("killed", "worker-1", 2.0),
        lambda r: second_call(r, finished=2.9),
    ),
    "a stream that ends with its web process": each(
        lambda r: drop(r, 11), lambda r: drop(r, 11), faulty("stopped", "web-1", 2.0)
    ),
    "an upstream that failed before its first word": lambda r: r.upstream.insert(
        0, UpstreamCall("m1", 1.1, "worker-1", finished=1.15)
    ),
    "a GET that is behind right after a crash of Postgres": each(
        lambda r: r.traces[0].requests_of("get")[0].body.update(output=[]),
        faulty("crashed", "postgres", 1.0, 1.5),
    ),
    "a cancel refused": lambda r: r.traces[0].requests.append(
        ClientRequest("cancel", "web-1", 4, 4.1, 400, {})
    ),
    "a 503 for a look": lambda r: r.traces[0].requests.insert(
        0, ClientRequest("get", "web-1", 1.1, 1.2, 503, {}, "1")
    ),
    "a look that was never answered": lambda r: r.traces[0].requests.insert(
        0, ClientRequest("get", "web-1", 1.1)
    ),
    "an unsafe call to the same tool with another key": lambda r: r.tools.append(
        ToolCall("m1", "write z", 1.6, 1.7)
    ),
    "other bytes after the stated double fault": each(
        other_byte, faulty("crashed", "postgres", 1.9, 2.2), faulty("killed", "worker-1", 2.0)
    ),
}


@pytest.mark.parametrize("name", list(EXCUSES))
def test_what_is_allowed_is_no_violation(record: RunRecord, name: str) -> None:
    EXCUSES[name](record)
    report = audit(record)
    assert not report.violations, report


def test_recovery_and_cancels_are_measured(record: RunRecord) -> None:
    die(record.upstream[0], 1.5)
    record.faults.append(Fault("killed", "worker-1", 1.5))
    for one in record.traces[0].readings:
        one.chunks = [(at + (2 if at > 1.5 else 0), data) for at, data in one.chunks]
    second_call(record, started=2.25)
    die(record.upstream[1], 1.58)
    record.traces[1].requests.append(
        ClientRequest("cancel", "web-2", 1.5, 1.6, 200, {"status": "cancelled"})
    )
    measures = audit(record).measures
    assert measures.recovery == pytest.approx([0.75])
    assert measures.cancel_in_trouble == pytest.approx([0.08])
