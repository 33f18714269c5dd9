"""Rules about calls of upstreams and tools.

I2 (recovery), I5 (one owner), I6 (nothing twice), I9 (503 never runs), I10 (no start after a
cancel).
"""

import json
from collections.abc import Iterator
from itertools import groupby, pairwise

from tests.chaos.audit.case import Case, Violation
from tests.chaos.audit.record import FATAL_FAULTS, JSON, Fault, ToolCall, UpstreamCall

_NEVER = float("inf")
_TOOL_OUTPUTS = ('"role": "tool"', '"type": "function_call_output"')
"""Parts of the JSON of an upstream request that has a tool's output: chat and native."""
_SAME_MOMENT = 0.1
"""Seconds: a killed process's socket closes with it, on a busy machine a moment later."""
_SETTLED = 10.0
"""Seconds after a fault until it has no effect on the next one."""
SERVER_DOWN = frozenset(
    {"restarted", "crashed", "hung", "replies_lost", "read_only", "disk_full", "commits_hang"}
)
"""Faults of PostgreSQL after which the time of a recovery starts again."""


def check_work(case: Case) -> Iterator[Violation]:
    """All rules about calls of upstreams and tools."""
    yield from _check_refused_create(case)
    yield from _check_repeats(case)
    yield from _check_one_owner(case)
    yield from _check_after_cancel(case)
    yield from _check_after_leaving(case)
    yield from _check_text(case)
    yield from _check_tool_calls(case)
    yield from _check_turns_kept(case)
    yield from _check_call_items(case)
    yield from _check_recovery(case)
    yield from _check_abandoned(case)


def _check_refused_create(case: Case) -> Iterator[Violation]:
    """I9: a create answered with 503 never runs, unless its web process died (a stated limit)."""
    create = case.trace.create
    if create.status != 503 or create.answered is None or not case.calls:
        return
    web_died = any(
        fault.touches(create.sent, _NEVER) for fault in case.faults(FATAL_FAULTS, create.web)
    )
    unless_foreground = not case.trace.background and any(
        call.started < create.answered for call in case.calls
    )
    if not web_died and not unless_foreground:
        yield case.violation(
            "I9",
            f"a create that was answered 503 ran {len(case.calls)} times",
            [call.started for call in case.calls],
        )


def _check_repeats(case: Case) -> Iterator[Violation]:
    """I6, I9: a crash, a release or a failure of the upstream explains each repeated request."""
    complete_turns, deaths = 0, 0
    for earlier, later in pairwise(case.calls):
        fault = case.fatal_fault(earlier.worker, earlier.started, later.started)
        complete_turns += earlier.is_complete_turn and fault is None
        deaths += fault is not None
        # The text of a summary is no output of the response; before it there is no complete turn.
        has_output = bool(earlier.sent_text) and not (
            case.trace.kind == "compacting" and complete_turns == 0
        )
        may_fail = case.trace.background or not has_output
        if (
            fault is None
            and not (may_fail and _is_broken_off(case, earlier))
            and not (earlier.is_complete_turn and complete_turns < case.trace.turns)
        ):
            evidence = (
                f"{earlier.worker} from {earlier.started:.2f} to {earlier.ended},"
                f" then {later.worker} at {later.started:.2f}"
            )
            yield case.violation(
                "I6",
                "the upstream was called again, though the worker lived and the turn was not lost",
                evidence,
            )
    finished = sum(call.is_complete_turn and call.finished is not None for call in case.calls)
    if finished > case.trace.turns + deaths:
        yield case.violation(
            "I6",
            f"{finished} turns were complete upstream, for {case.trace.turns} and {deaths} deaths",
        )


def _is_broken_off(case: Case, call: UpstreamCall) -> bool:
    """Whether the upstream did not finish its answer: it ended it, crashed, or was silent."""
    if call.closed is None:
        return call.finished is not None and not call.is_complete_turn
    last_text = call.sent_text[-1][0] if call.sent_text else call.closed
    crashes = case.faults(frozenset({"crashed"}), "upstream")
    return call.closed - last_text >= case.bounds.silence or any(
        fault.touches(call.closed, call.closed, _SAME_MOMENT) for fault in crashes
    )


def _check_one_owner(case: Case) -> Iterator[Violation]:
    """I5: a second worker calls the upstream only if the first is dead, frozen or disconnected."""
    for earlier, later in pairwise(case.calls):
        overlaps = earlier.ended is None or earlier.ended > later.started
        if overlaps and case.fatal_fault(earlier.worker, earlier.started, later.started) is None:
            yield case.violation(
                "I5",
                "two workers called the upstream at the same time",
                (earlier.worker, later.worker, later.started),
            )


def _check_after_cancel(case: Case) -> Iterator[Violation]:
    for request in [*case.trace.requests_of("cancel"), *case.trace.requests_of("delete")]:
        if request.status != 200 or request.answered is None:
            continue
        disturbed = any(
            fault.touches(request.sent - 20, request.answered, 1) for fault in case.record.faults
        )
        allowed = case.bounds.cancel_during_fault if disturbed else case.bounds.cancel
        if case.is_starved(request.sent, request.answered + allowed):
            allowed = _NEVER
        calls_after = [
            call for call in case.calls if call.started > (request.answered or 0) + allowed
        ]
        if calls_after:
            seconds = calls_after[0].started - request.answered
            delay = f"{seconds:.2f} s after the {request.what} was answered"
            yield case.violation("I10", f"the upstream was called {delay}", calls_after[0].worker)
        if not disturbed and any(
            (call.ended or case.record.ended) > request.answered + case.bounds.cancel_during_fault
            for call in case.calls
            if call.started < request.answered
        ):
            yield case.violation("I10", f"it goes on after the {request.what} was answered")
        tools = [
            call
            for call in case.record.tools
            if call.marker == case.trace.marker and call.started > request.answered + allowed
        ]
        if tools:
            yield case.violation(
                "I10",
                f"a tool was called {tools[0].started - request.answered:.2f} s after the"
                f" {request.what} was answered",
                tools[0],
            )
        queued = request.what == "cancel" and not any(
            call.started < request.answered for call in case.calls
        )
        if queued and case.calls and request.body.get("status") == "cancelled":
            yield case.violation(
                "I10", "it was cancelled before it ran, and it ran", case.calls[0].started
            )


def _check_after_leaving(case: Case) -> Iterator[Violation]:
    """I10: the response of a foreground client that has left calls no upstream any more."""
    left = [reading.closed for reading in case.trace.readings if reading.end == "left"]
    if case.trace.background or not left or left[0] is None:
        return
    for call in case.calls:
        is_calm = not any(
            fault.touches(left[0], call.started, 1)
            for fault in case.record.faults
            if fault.target in (case.trace.create.web, "postgres", "machine")
        )
        if call.started > left[0] + case.bounds.leave and is_calm:
            yield case.violation(
                "I10", f"its client left, and {call.started - left[0]:.1f} s later it ran"
            )


def _check_text(case: Case) -> Iterator[Violation]:
    """I6: no text is lost, changed, repeated or added between the upstream and the final output."""
    if case.final is None or not any(call.sent_text for call in case.calls):
        return
    final_texts = [
        "".join(part.get("text", "") for part in item["content"])
        for item in case.final["output"]
        if item["type"] == "message"
    ]
    sent_texts = ["".join(text for _, text in call.sent_text) for call in case.calls]
    for final_text in final_texts:
        if not any(sent_text.startswith(final_text) for sent_text in sent_texts):
            yield case.violation(
                "I6", "the final text is not from one upstream answer", (final_text, sent_texts)
            )
    complete_texts = [
        "".join(text for _, text in call.sent_text)
        for call in case.calls
        if call.is_complete_turn and call.closed is None
    ]
    if (
        case.final["status"] == "completed"
        and final_texts
        and final_texts[-1]
        and final_texts[-1] not in complete_texts
    ):
        yield case.violation(
            "I6",
            "it is completed with a text that no complete upstream answer has",
            (final_texts[-1], sent_texts),
        )


def _check_tool_calls(case: Case) -> Iterator[Violation]:
    """I6: no finished call and no unsafe call is made again."""
    own_calls = sorted(
        (call for call in case.record.tools if call.marker == case.trace.marker),
        key=lambda call: (call.key, call.started),
    )
    for key, group in groupby(own_calls, key=lambda call: call.key):
        yield from _check_tool_call(case, key, list(group))


def _check_tool_call(case: Case, key: str, calls: list[ToolCall]) -> Iterator[Violation]:
    for earlier, later in pairwise(calls):
        if not earlier.safe:
            yield case.violation("I6", f"the unsafe call {key} ran again", (earlier, later))
        elif case.fatal_fault(None, earlier.started, later.started) is None:
            yield case.violation(
                "I6",
                f"the call {key} ran again, though no worker died between",
                (earlier, later),
            )


def _check_turns_kept(case: Case) -> Iterator[Violation]:
    """I6: no finished turn runs again: the tool outputs in later requests only grow in number."""
    output_counts = [sum(map(call.request_messages.count, _TOOL_OUTPUTS)) for call in case.calls]
    for (earlier, before), (later, after) in pairwise(zip(case.calls, output_counts, strict=True)):
        if after < before:
            evidence = (
                f"{earlier.worker} at {earlier.started:.2f} with {before},"
                f" then {later.worker} at {later.started:.2f} with {after}"
            )
            yield case.violation(
                "I6",
                "a finished turn with its tool outputs ran again",
                evidence,
            )


def _check_call_items(case: Case) -> Iterator[Violation]:
    """I6: the call items of the output are what happened.

    A completed call was made, each is there once, and none failed without a crash.
    """
    output = [item for item in (case.final or {}).get("output", []) if item["type"] == "mcp_call"]
    called_keys = {call.key for call in case.record.tools if call.marker == case.trace.marker}
    keys = [_call_key(item) for item in output]
    if len(set(keys)) < len(keys):
        yield case.violation("I6", "a call is in the output twice", keys)
    for item, key in zip(output, keys, strict=True):
        if item["status"] == "completed" and key not in called_keys:
            yield case.violation("I6", f"the call {key} is completed and was not made", item)
        if (
            item["status"] == "failed"
            and case.fatal_fault(None, case.trace.create.sent, case.seen_ended_at or _NEVER) is None
            and not case.is_starved(case.trace.create.sent, case.seen_ended_at or _NEVER)
        ):
            yield case.violation("I6", f"the call {key} failed, though no worker died", item)


def _call_key(item: JSON) -> str:
    """The key as in `ToolCall.key`."""
    key: str = json.loads(item["arguments"])["key"]
    return f"{item['name']} {key.partition('/')[2]}"


# --- recovery ---


def interrupted_calls(case: Case) -> Iterator[tuple[UpstreamCall, Fault]]:
    """Each open upstream request whose worker died or was stopped, with that fault."""
    for call in case.calls:
        for fault in case.faults(FATAL_FAULTS - {"disconnected"}, call.worker):
            if _was_interrupted(call, fault):
                yield call, fault
                break


def _was_interrupted(call: UpstreamCall, fault: Fault) -> bool:
    if call.worker is None:  # the killed worker is the one whose socket closed at that time
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
    """When the response was first seen to run again or to have ended after the fault; or None."""
    times = [later.started for later in case.calls if later.started > fault.begin]
    times += (
        [case.seen_ended_at]
        if case.seen_ended_at is not None and case.seen_ended_at > fault.begin
        else []
    )
    return min(times, default=None)


def _check_recovery(case: Case) -> Iterator[Violation]:
    if case.deleted_at is not None:
        return
    for call, fault in interrupted_calls(case):
        if case.seen_ended_at is not None and case.seen_ended_at <= fault.begin:
            continue  # the fault came while the upstream's connection was being closed
        deadline = recovery_deadline(case, fault)
        resumed = resumed_at(case, fault)
        survived = (
            fault.what == "frozen"
            and fault.end is not None
            and fault.end < deadline
            and (call.finished or 0) > fault.end
        )
        ended_late = (
            deadline < _NEVER
            and (resumed is None or resumed > deadline)
            and case.unfinished_after(deadline)
        )
        if ended_late and not survived:
            delay = "never" if resumed is None else f"{resumed - fault.begin:.1f} s later"
            yield case.violation(
                "I2",
                f"its worker {call.worker} was {fault.what}, and it ran again or ended {delay}",
                fault,
            )


def abandoned_calls(case: Case) -> Iterator[tuple[UpstreamCall, Fault]]:
    """Each upstream request of a foreground response that was open when its web process died.

    Only if nothing else was wrong.
    """
    if case.trace.background:
        return
    for fault in case.faults(frozenset({"killed"}), case.trace.create.web):
        deadline = fault.begin + case.bounds.recovery
        if not is_single_kill(case, fault) or case.is_starved(fault.begin, deadline):
            continue
        for call in case.calls:
            if call.started <= fault.begin <= (_NEVER if call.ended is None else call.ended):
                yield call, fault


def _check_abandoned(case: Case) -> Iterator[Violation]:
    """I2: a foreground response ends soon after its web process was killed."""
    for _, fault in abandoned_calls(case):
        deadline = fault.begin + case.bounds.recovery
        last_end = case.calls[-1].ended
        if last_end is None or last_end > deadline:
            delay = "for ever" if last_end is None else f"{last_end - fault.begin:.1f} s later"
            yield case.violation(
                "I2", f"its web process was killed, and it still ran {delay}", fault
            )


def is_single_kill(case: Case, fault: Fault) -> bool:
    """Whether a process died and nothing else was wrong: its death is seen without the lease.

    Faults of web processes do not matter. Those of PostgreSQL, of Redis, which shows whether the
    process has left it too, and of other workers do, also for a while afterwards.
    """
    return fault.what in ("killed", "exited") and not any(
        other is not fault
        and not other.target.startswith(("web", "quarantine", "machine"))
        and other.touches(fault.begin - _SETTLED, fault.begin + case.bounds.recovery)
        for other in case.record.faults
    )


def recovery_deadline(case: Case, fault: Fault) -> float:
    """The time by which a response whose worker had this fault must run again.

    It starts again after an outage of PostgreSQL, or a time without enough CPU. Without a worker
    that was there all the time there is no promise.
    """
    if is_single_kill(case, fault):
        deadline = fault.begin + case.bounds.recovery
    else:
        deadline = fault.begin + case.bounds.recovery_by_lease
    outages = [
        *case.faults(SERVER_DOWN, "postgres"),
        *case.faults(frozenset({"starved"}), "machine"),
    ]
    for outage in sorted(outages, key=lambda outage: outage.begin):
        if outage.touches(fault.begin, deadline):
            end = _NEVER if outage.end is None else outage.end
            deadline = max(deadline, end + case.bounds.recovery_by_lease)
    if case.record.workers and not any(
        worker.begin <= fault.begin
        and (worker.end is None or worker.end >= deadline)
        and case.fatal_fault(worker.name, fault.begin, deadline) is None
        for worker in case.record.workers
    ):
        return _NEVER
    return deadline
