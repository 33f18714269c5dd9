"""The auditor's rules about conversations, WebSockets, compactions and clients that leave."""

import copy
import json
from collections.abc import Callable

import pytest

from tests.chaos.audit.auditor import audit
from tests.chaos.audit.record import (
    ClientRequest,
    ConversationTrace,
    Fault,
    Reading,
    ResponseTrace,
    RunRecord,
    UpstreamCall,
)
from tests.support.chaos.sample_records import Mutation, fault, in_turn, recorded_response

FIRST = "Begin."
SUMMARY = "We spoke."


def later(trace: ResponseTrace, call: UpstreamCall, seconds: float) -> None:
    """Moves a response to a later time."""
    for request in [trace.create, *trace.requests]:
        request.sent += seconds
        request.answered = (request.answered or 0) + seconds
    for reading in trace.readings:
        reading.opened += seconds
        reading.closed = (reading.closed or 0) + seconds
        reading.chunks = [(time + seconds, data) for time, data in reading.chunks]
    call.started += seconds
    call.finished = (call.finished or 0) + seconds
    call.sent_text = [(time + seconds, text) for time, text in call.sent_text]


def user(text: str) -> dict[str, object]:
    """A message of a user as a conversation lists it."""
    content = [{"type": "input_text", "text": text}]
    return {"id": f"msg_{len(text)}", "type": "message", "role": "user", "content": content}


@pytest.fixture
def record() -> RunRecord:
    """Traces 0 and 1 are in a conversation; 2 and 3 came over a WebSocket, 3 is not stored.

    4 compacts its history; 5 is a POST of a compaction, and 6 continues it.
    """
    traces, calls = [], []
    for number in range(7):
        trace, call = recorded_response(f"m{number}", f"resp_0{number}", [f"word {number}"])
        traces.append(trace)
        calls.append(call)
    record = RunRecord(traces, calls, ended=100)
    _in_conversation(record)
    for number in (2, 3):
        _over_socket(traces[number])
    traces[3].stored, traces[3].requests = False, [ClientRequest("get", "web-1", 4, 4.1, 404, {})]
    _compacting(record)
    _compacted(record)
    return record


def _in_conversation(record: RunRecord) -> None:
    first, second = record.traces[:2]
    later(second, record.upstream[1], 10)
    outputs = [trace.requests_of("get")[1].body["output"] for trace in (first, second)]
    items = [user(FIRST), user(first.input_text), *outputs[0], user(second.input_text), *outputs[1]]
    conversation = ConversationTrace("conv_1", [FIRST], copy.deepcopy(items))
    conversation.other_project = ClientRequest("other_project", "web-1", 30, 30.1, 404)
    record.conversations.append(conversation)
    first.conversation = second.conversation = conversation
    record.upstream[0].request_texts = [FIRST, first.input_text]
    record.upstream[1].request_texts = [FIRST, first.input_text, "word 0", second.input_text]
    refused = ResponseTrace(
        "m9",
        "This is m9.",
        background=True,
        create=ClientRequest(
            "create", "web-1", 1.3, 1.35, 400, {"error": {"code": "conversation_locked"}}
        ),
        conversation=conversation,
    )
    record.traces.append(refused)


def _over_socket(trace: ResponseTrace) -> None:
    trace.background, trace.create.body = False, {}
    trace.requests = [
        request for request in trace.requests if request.body.get("status") != "in_progress"
    ]
    frames = [
        (time, data.split(b"data: ", 1)[1].strip())
        for time, data in trace.readings[0].chunks
        if b"[DONE]" not in data
    ]
    trace.readings = [
        Reading("web-1", -1, 1.0, frames, closed=frames[-1][0], end="clean", is_socket=True)
    ]


def _compacting(record: RunRecord) -> None:
    trace, turn = record.traces[4], record.upstream[4]
    trace.kind, trace.turns, trace.readings = "compacting", 2, []
    compaction = {"id": "cmp_4", "type": "compaction", "status": "completed"}
    trace.requests = [get for get in trace.requests if get.body.get("status") != "in_progress"]
    for get in trace.requests_of("get"):
        get.body["output"].insert(0, compaction)
    turn.request_messages = json.dumps([{"role": "user", "content": SUMMARY}])
    record.upstream.append(summary_call("m4", 1.1))


def _compacted(record: RunRecord) -> None:
    compaction, child = record.traces[5], record.traces[6]
    record.upstream[5] = summary_call("m5", 1.1)
    record.upstream[6].request_messages = json.dumps([{"role": "user", "content": SUMMARY}])
    compaction.kind, compaction.id, compaction.background = "compaction", None, False
    compaction.requests, compaction.readings = [], []
    output = [user("Hello."), {"id": "cmp_5", "type": "compaction", "status": "completed"}]
    compaction.create = ClientRequest("create", "web-1", 1, 1.4, 200, {"output": output})
    child.compacted = compaction


def summary_call(marker: str, started: float) -> UpstreamCall:
    """A call of the upstream that was answered with the summary."""
    return UpstreamCall(
        marker,
        started,
        f"worker-{marker[1]}",
        "[]",
        [(started, SUMMARY)],
        finished=started + 0.05,
        is_complete_turn=True,
    )


def test_a_clean_record_has_no_violation(record: RunRecord) -> None:
    report = audit(record)
    assert not report.violations, report
    assert report.responses == 7


def items_of(record: RunRecord) -> list[dict[str, object]]:
    items = record.conversations[0].items
    assert items is not None
    return items


def change_items(change: Callable[[list[dict[str, object]]], object]) -> Mutation:
    """A change of the items that the conversation has at the end."""
    return lambda record: change(items_of(record))


def repeated(items: list[dict[str, object]]) -> None:
    items += copy.deepcopy(items[3:])


def swapped(items: list[dict[str, object]]) -> None:
    items[1:] = [*items[3:], *items[1:3]]


def ended_as(number: int, status: str) -> Mutation:
    """A response ended with this status, for every reader."""

    def mutate(record: RunRecord) -> None:
        trace = record.traces[number]
        trace.readings = []
        trace.requests = [get for get in trace.requests if get.body.get("status") != "in_progress"]
        for get in trace.requests_of("get"):
            get.body["status"] = status

    return mutate


def at_the_same_time(record: RunRecord) -> None:
    record.upstream[1].started = 1.25
    record.upstream.append(copy.deepcopy(record.upstream[0]))
    record.upstream[-1].started = 1.3
    record.faults.append(Fault("killed", "worker-0", 1.28))


def locked_for_ever(record: RunRecord) -> None:
    record.traces[7].create.sent = record.traces[7].create.answered = 25


def shown_unstored(record: RunRecord) -> None:
    record.traces[3].requests[0].status = 200
    record.traces[3].requests[0].body = {"id": "resp_03", "status": "completed", "output": []}


def left_and_called(record: RunRecord) -> None:
    record.traces[2].readings[0].end = "left"
    record.upstream[2].started = record.traces[2].create.sent + 12


def left_and_cancelled(record: RunRecord) -> None:
    ended_as(2, "cancelled")(record)
    record.traces[2].readings = [Reading("web-1", -1, 1, closed=1.3, end="left", is_socket=True)]


def frame_lost(record: RunRecord) -> None:
    del record.traces[2].readings[0].chunks[4]


def socket_without_ending(record: RunRecord) -> None:
    del record.traces[2].readings[0].chunks[-1]


def summary_twice(record: RunRecord) -> None:
    turn = record.upstream[4]
    turn.closed, turn.finished, turn.is_complete_turn = 1.4, None, False
    record.faults.append(Fault("killed", "worker-4", 1.4))
    record.upstream.append(summary_call("m4", 1.6))
    again = copy.deepcopy(turn)
    again.started, again.finished, again.is_complete_turn, again.closed = 1.8, 2.0, True, None
    record.upstream.append(again)


def abandoned(record: RunRecord, seconds: float) -> None:
    """The web process of a foreground response died, and it ran on for so long."""
    left_and_cancelled(record)
    record.traces[2].readings[0].end = "cut"
    call = record.upstream[2]
    call.finished, call.is_complete_turn, call.closed = None, False, 1.5 + seconds
    record.faults.append(Fault("killed", "web-1", 1.5))


VIOLATIONS: dict[str, tuple[str, Mutation]] = {
    "a conversation without the input of a completed response": (
        "I7",
        change_items(lambda items: items.pop(1)),
    ),
    "a conversation without an output": ("I7", change_items(lambda items: items.pop(2))),
    "a conversation without its first item": ("I7", change_items(lambda items: items.pop(0))),
    "a conversation with the items of a response twice": ("I7", change_items(repeated)),
    "a conversation in another order": ("I7", change_items(swapped)),
    "a conversation with an item that was not sent": (
        "I7",
        change_items(lambda items: items.append(user("Hm?"))),
    ),
    "a conversation with another text": (
        "I7",
        change_items(lambda items: items[2].update(content=[{"text": "other"}])),
    ),
    "a conversation with a failed response": ("I7", ended_as(1, "failed")),
    "a conversation with a refused response": (
        "I9",
        change_items(lambda items: items.append(user("This is m9."))),
    ),
    "a conversation that cannot be read": (
        "I1",
        lambda r: setattr(r.conversations[0], "items", None),
    ),
    "a conversation that another project reads": (
        "I11",
        lambda r: setattr(r.conversations[0].other_project, "status", 200),
    ),
    "a conversation whose history is not sent": (
        "I7",
        lambda r: r.upstream[1].request_texts.pop(1),
    ),
    "two responses of a conversation at once": ("I5", at_the_same_time),
    "a conversation that stays locked": ("I2", locked_for_ever),
    "a create in a conversation refused for no reason": (
        "I7",
        lambda r: r.traces[7].create.body["error"].update(code="not_found"),
    ),
    "a frame of a WebSocket is missing": ("I4", frame_lost),
    "a WebSocket without a terminal event": ("I3", socket_without_ending),
    "a response that is not stored, and shown": ("I11", shown_unstored),
    "a foreground response cancelled while its client waits": ("I10", ended_as(2, "cancelled")),
    "a foreground response that runs after its client left": ("I10", left_and_called),
    "a foreground response that runs on after its web process": ("I2", lambda r: abandoned(r, 7)),
    "a summary made twice": ("I6", summary_twice),
    "a turn without the summary": (
        "I7",
        lambda r: setattr(r.upstream[4], "request_messages", "[]"),
    ),
    "a completed response without its compaction": (
        "I7",
        lambda r: [get.body["output"].pop(0) for get in r.traces[4].requests_of("get")],
    ),
    "a compaction without a compaction": (
        "I7",
        lambda r: r.traces[5].create.body["output"].pop(),
    ),
    "a compaction that no model wrote": (
        "I7",
        lambda r: r.upstream.remove(r.upstream[5]),
    ),
    "a compaction that is not sent": (
        "I7",
        lambda r: setattr(r.upstream[6], "request_messages", "[]"),
    ),
    "a compaction that is refused": ("I7", lambda r: setattr(r.traces[6].create, "status", 400)),
}


@pytest.mark.parametrize("name", list(VIOLATIONS))
def test_each_violation_is_reported(record: RunRecord, name: str) -> None:
    invariant, change = VIOLATIONS[name]
    change(record)
    report = audit(record)
    assert invariant in {violation.invariant for violation in report.violations}, report


def unclear_and_there(record: RunRecord) -> None:
    """The connection of a create broke, and it ran: its client does not know the id."""
    trace, conversation = record.traces[1], record.conversations[0]
    lost = ResponseTrace(
        trace.marker,
        trace.input_text,
        background=True,
        create=ClientRequest("create", "web-1", 11),
        conversation=conversation,
    )
    record.traces[1] = lost


ALLOWED: dict[str, Mutation] = {
    "a summary whose first call failed in its middle": lambda r: r.upstream.append(
        UpstreamCall("m4", 1.0, "worker-4", "[]", [(1.01, "We")], finished=1.05)
    ),
    "a create of which only the conversation knows": unclear_and_there,
    "a client of a WebSocket that left": left_and_cancelled,
    "a foreground response that ends with its web process": lambda r: abandoned(r, 4),
    "a locked conversation after a create without an answer": in_turn(
        unclear_and_there, locked_for_ever
    ),
    "a WebSocket that ends with its web process": in_turn(
        socket_without_ending, fault("killed", "web-1", 1.5)
    ),
}


@pytest.mark.parametrize("name", list(ALLOWED))
def test_allowed_behaviour_is_no_violation(record: RunRecord, name: str) -> None:
    ALLOWED[name](record)
    report = audit(record)
    assert not report.violations, report
