"""What reached upstreams and tools: I2 (recovery), I5 (one owner), I6 (nothing twice), I9 (503 never runs), I10 (no start after a cancel)."""

import json
from collections.abc import Iterator
from itertools import groupby, pairwise

from tests.chaos.audit.case import Case, Violation
from tests.chaos.audit.record import FATAL_FAULTS, JSON, Fault, ToolCall, UpstreamCall

_NEVER = float("inf")
_TOOL_MESSAGE = '"role": "tool"'
"""In the JSON of an upstream request."""
_SAME_MOMENT = 0.1
"""A socket of a killed process closes with it: the two moments are one, as far as a busy machine can tell."""
_SERVER_DOWN = frozenset({"away", "crashed", "hung", "unclear"})


def check_work(case: Case) -> Iterator[Violation]:
    """All rules about what was asked of upstreams and tools."""
    yield from _check_refused_create(case)
    yield from _check_repeats(case)
    yield from _check_one_owner(case)
    yield from _check_after_cancel(case)
    yield from _check_text(case)
    yield from _check_history(case)
    yield from _check_tool_calls(case)
    yield from _check_turns_kept(case)
    yield from _check_call_items(case)
    yield from _check_recovery(case)


def _check_refused_create(case: Case) -> Iterator[Violation]:
    """I9: a 503'd create never runs; unless its web process has died too, which is a stated limit."""
    create = case.trace.create
    if create.status != 503 or create.answered is None or not case.calls:
        return
    died = any(
        fault.touches(create.sent, _NEVER) for fault in case.faults(FATAL_FAULTS, create.web)
    )
    unless_foreground = not case.trace.background and any(
        call.started < create.answered for call in case.calls
    )
    if not died and not unless_foreground:
        yield case.violation(
            "I9",
            f"a create that was answered 503 ran {len(case.calls)} times",
            [call.started for call in case.calls],
        )


def _check_repeats(case: Case) -> Iterator[Violation]:
    """I6, I9: each upstream request beyond the turns is one that a death, a hand-over or an upstream's own failure explains."""
    whole, deaths = 0, 0
    for earlier, later in pairwise(case.calls):
        harm = case.fatal_fault(earlier.worker, earlier.started, later.started)
        whole += earlier.is_complete_turn and harm is None
        deaths += harm is not None
        failed_before_a_word = (
            earlier.finished is not None and not earlier.is_complete_turn and not earlier.sent_text
        )
        if (
            harm is None
            and not failed_before_a_word
            and not (earlier.is_complete_turn and whole < case.trace.turns)
        ):
            between = f"{earlier.worker} from {earlier.started:.2f} to {earlier.ended}, then {later.worker} at {later.started:.2f}"
            yield case.violation(
                "I6",
                "the upstream was asked again, though the worker lived and the turn was not lost",
                between,
            )
    finished = sum(call.is_complete_turn and call.finished is not None for call in case.calls)
    if finished > case.trace.turns + deaths:
        yield case.violation(
            "I6",
            f"{finished} turns were finished upstream: more than {case.trace.turns} and {deaths} deaths",
        )


def _check_one_owner(case: Case) -> Iterator[Violation]:
    """I5: never two live owners: while one is asking, another one asks only if the first is dead, frozen or cut off."""
    for earlier, later in pairwise(case.calls):
        overlaps = earlier.ended is None or earlier.ended > later.started
        if overlaps and case.fatal_fault(earlier.worker, earlier.started, later.started) is None:
            yield case.violation(
                "I5",
                "two workers asked the upstream at the same time",
                (earlier.worker, later.worker, later.started),
            )


def _check_after_cancel(case: Case) -> Iterator[Violation]:
    for asked in [*case.trace.requests_of("cancel"), *case.trace.requests_of("delete")]:
        if asked.status != 200 or asked.answered is None:
            continue
        disturbed = any(
            fault.touches(asked.sent - 20, asked.answered, 1) for fault in case.record.faults
        )
        allowed = case.bounds.cancel_during_fault if disturbed else case.bounds.cancel
        late = [call for call in case.calls if call.started > (asked.answered or 0) + allowed]
        if late:
            after = f"{late[0].started - asked.answered:.2f} s after the {asked.what} was answered"
            yield case.violation("I10", f"the upstream was asked {after}", late[0].worker)
        tools = [
            call
            for call in case.record.tools
            if call.marker == case.trace.marker and call.started > asked.answered + allowed
        ]
        if tools:
            yield case.violation(
                "I10",
                f"a tool was called {tools[0].started - asked.answered:.2f} s after the {asked.what} was answered",
                tools[0],
            )
        queued = asked.what == "cancel" and not any(
            call.started < asked.answered for call in case.calls
        )
        if queued and case.calls and asked.body.get("status") == "cancelled":
            yield case.violation(
                "I10", "it was cancelled before it ran, and ran all the same", case.calls[0].started
            )


def _check_text(case: Case) -> Iterator[Violation]:
    """No word is lost, changed, said twice or taken from elsewhere on the way from the upstream to the final output."""
    if case.final is None or not any(call.sent_text for call in case.calls):
        return
    told = [
        "".join(part.get("text", "") for part in item["content"])
        for item in case.final["output"]
        if item["type"] == "message"
    ]
    said = ["".join(word for _, word in call.sent_text) for call in case.calls]
    for text in told:
        if not any(one.startswith(text) for one in said):
            yield case.violation(
                "I6", "the final text is not what one upstream answer said", (text, said)
            )
    whole = [
        "".join(word for _, word in call.sent_text)
        for call in case.calls
        if call.is_complete_turn and call.closed is None
    ]
    if case.final["status"] == "completed" and told and told[-1] and told[-1] not in whole:
        yield case.violation(
            "I6",
            "it is completed with a text that no finished upstream answer has",
            (told[-1], said),
        )


def _check_history(case: Case) -> Iterator[Violation]:
    """A continuation is asked with what the response before it has kept."""
    if case.trace.previous is None:
        return
    before = [
        look.body
        for look in case.trace.previous.requests_of("get")
        if look.status == 200 and look.body["status"] == "completed"
    ]
    for call in case.calls:
        if before and json.dumps(before[-1]["output_text"])[1:-1] not in call.request_messages:
            yield case.violation(
                "I7",
                "the upstream was not told what the response before had said",
                call.request_messages,
            )


def _check_tool_calls(case: Case) -> Iterator[Violation]:
    """I6: no finished call and no unsafe call is made again."""
    mine = sorted(
        (call for call in case.record.tools if call.marker == case.trace.marker),
        key=lambda call: (call.key, call.started),
    )
    for key, group in groupby(mine, key=lambda call: call.key):
        yield from _check_tool_call(case, key, list(group))


def _check_tool_call(case: Case, key: str, calls: list[ToolCall]) -> Iterator[Violation]:
    for earlier, later in pairwise(calls):
        if not earlier.safe:
            yield case.violation("I6", f"the unsafe call {key} was made again", (earlier, later))
        elif case.fatal_fault(None, earlier.started, later.started) is None:
            yield case.violation(
                "I6",
                f"the call {key} was made again, though no worker died between",
                (earlier, later),
            )


def _check_turns_kept(case: Case) -> Iterator[Violation]:
    """I6: no finished turn is asked for again: what the upstream is told of tools only grows."""
    told = [call.request_messages.count(_TOOL_MESSAGE) for call in case.calls]
    for (earlier, before), (later, after) in pairwise(zip(case.calls, told, strict=True)):
        if after < before:
            between = f"{earlier.worker} at {earlier.started:.2f} with {before}, then {later.worker} at {later.started:.2f} with {after}"
            yield case.violation(
                "I6",
                "a turn that was finished, with its tools' answers, was asked for again",
                between,
            )


def _check_call_items(case: Case) -> Iterator[Violation]:
    """I6: what the output says of tools is what happened: a call that is completed was made, each stands there once, and none without need
    is failed."""
    output = [item for item in (case.final or {}).get("output", []) if item["type"] == "mcp_call"]
    made = {call.key for call in case.record.tools if call.marker == case.trace.marker}
    keys = [_call_key(item) for item in output]
    if len(set(keys)) < len(keys):
        yield case.violation("I6", "a call stands in the output twice", keys)
    for item, key in zip(output, keys, strict=True):
        if item["status"] == "completed" and key not in made:
            yield case.violation("I6", f"the call {key} is completed, and nobody made it", item)
        if (
            item["status"] == "failed"
            and case.fatal_fault(None, case.trace.create.sent, case.seen_ended_at or _NEVER) is None
        ):
            yield case.violation("I6", f"the call {key} failed, though no worker died", item)


def _call_key(item: JSON) -> str:
    """As `ToolCall.key`."""
    key: str = json.loads(item["arguments"])["key"]
    return f"{item['name']} {key.partition('/')[2]}"


# --- recovery ---


def interrupted_calls(case: Case) -> Iterator[tuple[UpstreamCall, Fault]]:
    """Each open upstream request whose worker died or was stopped under it."""
    for call in case.calls:
        for fault in case.faults(FATAL_FAULTS - {"parted"}, call.worker):
            if _was_interrupted(call, fault):
                yield call, fault
                break


def _was_interrupted(call: UpstreamCall, fault: Fault) -> bool:
    if call.worker is None:  # then it was the one whose socket closed with it
        return (
            fault.what == "killed"
            and call.closed is not None
            and abs(call.closed - fault.begin) < _SAME_MOMENT
        )
    ended = _NEVER if call.ended is None else call.ended
    return call.started <= fault.begin <= ended + _SAME_MOMENT and not (
        call.is_complete_turn and ended < fault.begin
    )


def resumed_at(case: Case, fault: Fault) -> float | None:
    """When the response of a request that died was first seen to run again or to be over; None: never."""
    seen = [later.started for later in case.calls if later.started > fault.begin]
    seen += (
        [case.seen_ended_at]
        if case.seen_ended_at is not None and case.seen_ended_at > fault.begin
        else []
    )
    return min(seen, default=None)


def _check_recovery(case: Case) -> Iterator[Violation]:
    if case.deleted_at is not None:
        return
    for call, fault in interrupted_calls(case):
        due = recovery_deadline(case, fault.begin)
        seen = resumed_at(case, fault)
        lived_on = (
            fault.what == "frozen"
            and fault.end is not None
            and fault.end < due
            and (call.finished or 0) > fault.end
        )
        late = due < _NEVER and (seen is None or seen > due) and case.unfinished_after(due)
        if late and not lived_on:
            took = "never" if seen is None else f"{seen - fault.begin:.1f} s later"
            yield case.violation(
                "I2",
                f"its worker {call.worker} was {fault.what}, and it ran again or was over {took}",
                fault,
            )


def recovery_deadline(case: Case, begin: float) -> float:
    """By when a response whose worker died at `begin` must run again. The clock starts again after an outage of Postgres; without one
    worker that was there all the time there is no promise (lack of capacity)."""
    due = begin + case.bounds.recovery
    for fault in sorted(case.faults(_SERVER_DOWN, "postgres"), key=lambda fault: fault.begin):
        if fault.touches(begin, due):
            due = (_NEVER if fault.end is None else fault.end) + case.bounds.recovery
    if case.record.workers and not any(
        worker.begin <= begin
        and (worker.end is None or worker.end >= due)
        and case.fatal_fault(worker.name, begin, due) is None
        for worker in case.record.workers
    ):
        return _NEVER
    return due
