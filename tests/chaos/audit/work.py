"""What reached upstreams and tools: I2 (recovery), I5 (one owner), I6 (nothing twice), I9 (503 never runs), I10 (no start after a cancel)."""

import json
from collections.abc import Iterator
from itertools import groupby, pairwise

from tests.chaos.audit.case import Case, Violation
from tests.chaos.audit.record import DEADLY, JSON, Fault, ToolCall, UpstreamCall

_NEVER = float("inf")
_ANSWER = '"role": "tool"'
"""In the JSON of an upstream request."""
_AT_ONCE = 0.1
"""A socket of a killed process closes with it: the two moments are one, as far as a busy machine can tell."""
_SERVER_DOWN = frozenset({"away", "crashed", "hung", "unclear"})


def check_work(case: Case) -> Iterator[Violation]:
    """All rules about what was asked of upstreams and tools."""
    yield from _refused(case)
    yield from _repeats(case)
    yield from _owners(case)
    yield from _after_a_cancel(case)
    yield from _words(case)
    yield from _history(case)
    yield from _tools(case)
    yield from _forgotten(case)
    yield from _calls_told(case)
    yield from _recovered(case)


def _refused(case: Case) -> Iterator[Violation]:
    """I9: a 503'd create never runs; unless its web process has died too, which is a stated limit."""
    create = case.story.create
    if create.status != 503 or create.answered is None or not case.calls:
        return
    died = any(fault.touches(create.sent, _NEVER) for fault in case.faults(DEADLY, create.web))
    unless_foreground = not case.story.background and any(
        call.started < create.answered for call in case.calls
    )
    if not died and not unless_foreground:
        yield case.violation(
            "I9",
            f"a create that was answered 503 ran {len(case.calls)} times",
            [call.started for call in case.calls],
        )


def _repeats(case: Case) -> Iterator[Violation]:
    """I6, I9: each upstream request beyond the turns is one that a death, a hand-over or an upstream's own failure explains."""
    whole, deaths = 0, 0
    for earlier, later in pairwise(case.calls):
        harm = case.harm_to(earlier.worker, earlier.started, later.started)
        whole += earlier.whole and harm is None
        deaths += harm is not None
        failed_before_a_word = (
            earlier.finished is not None and not earlier.whole and not earlier.words
        )
        if (
            harm is None
            and not failed_before_a_word
            and not (earlier.whole and whole < case.story.turns)
        ):
            between = f"{earlier.worker} from {earlier.started:.2f} to {earlier.ended}, then {later.worker} at {later.started:.2f}"
            yield case.violation(
                "I6",
                "the upstream was asked again, though the worker lived and the turn was not lost",
                between,
            )
    finished = sum(call.whole and call.finished is not None for call in case.calls)
    if finished > case.story.turns + deaths:
        yield case.violation(
            "I6",
            f"{finished} turns were finished upstream: more than {case.story.turns} and {deaths} deaths",
        )


def _owners(case: Case) -> Iterator[Violation]:
    """I5: never two live owners: while one is asking, another one asks only if the first is dead, frozen or cut off."""
    for earlier, later in pairwise(case.calls):
        overlaps = earlier.ended is None or earlier.ended > later.started
        if overlaps and case.harm_to(earlier.worker, earlier.started, later.started) is None:
            yield case.violation(
                "I5",
                "two workers asked the upstream at the same time",
                (earlier.worker, later.worker, later.started),
            )


def _after_a_cancel(case: Case) -> Iterator[Violation]:
    for asked in [*case.story.of("cancel"), *case.story.of("delete")]:
        if asked.status != 200 or asked.answered is None:
            continue
        disturbed = any(
            fault.touches(asked.sent - 20, asked.answered, 1) for fault in case.record.faults
        )
        allowed = case.promise.cancel_in_trouble if disturbed else case.promise.cancel
        late = [call for call in case.calls if call.started > (asked.answered or 0) + allowed]
        if late:
            after = f"{late[0].started - asked.answered:.2f} s after the {asked.what} was answered"
            yield case.violation("I10", f"the upstream was asked {after}", late[0].worker)
        tools = [
            call
            for call in case.record.tools
            if call.marker == case.story.marker and call.started > asked.answered + allowed
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


def _words(case: Case) -> Iterator[Violation]:
    """No word is lost, changed, said twice or taken from elsewhere on the way from the upstream to the final output."""
    if case.final is None or not any(call.words for call in case.calls):
        return
    told = [
        "".join(part.get("text", "") for part in item["content"])
        for item in case.final["output"]
        if item["type"] == "message"
    ]
    said = ["".join(word for _, word in call.words) for call in case.calls]
    for text in told:
        if not any(one.startswith(text) for one in said):
            yield case.violation(
                "I6", "the final text is not what one upstream answer said", (text, said)
            )
    whole = [
        "".join(word for _, word in call.words)
        for call in case.calls
        if call.whole and call.closed is None
    ]
    if case.final["status"] == "completed" and told and told[-1] and told[-1] not in whole:
        yield case.violation(
            "I6",
            "it is completed with a text that no finished upstream answer has",
            (told[-1], said),
        )


def _history(case: Case) -> Iterator[Violation]:
    """A continuation is asked with what the response before it has kept."""
    if case.story.previous is None:
        return
    before = [
        look.body
        for look in case.story.previous.of("get")
        if look.status == 200 and look.body["status"] == "completed"
    ]
    for call in case.calls:
        if before and json.dumps(before[-1]["output_text"])[1:-1] not in call.heard:
            yield case.violation(
                "I7", "the upstream was not told what the response before had said", call.heard
            )


def _tools(case: Case) -> Iterator[Violation]:
    """I6: no finished call and no unsafe call is made again."""
    mine = sorted(
        (call for call in case.record.tools if call.marker == case.story.marker),
        key=lambda call: (call.key, call.started),
    )
    for key, group in groupby(mine, key=lambda call: call.key):
        yield from _tool(case, key, list(group))


def _tool(case: Case, key: str, calls: list[ToolCall]) -> Iterator[Violation]:
    for earlier, later in pairwise(calls):
        if not earlier.safe:
            yield case.violation("I6", f"the unsafe call {key} was made again", (earlier, later))
        elif case.harm_to(None, earlier.started, later.started) is None:
            yield case.violation(
                "I6",
                f"the call {key} was made again, though no worker died between",
                (earlier, later),
            )


def _forgotten(case: Case) -> Iterator[Violation]:
    """I6: no finished turn is asked for again: what the upstream is told of tools only grows."""
    told = [call.heard.count(_ANSWER) for call in case.calls]
    for (earlier, before), (later, after) in pairwise(zip(case.calls, told, strict=True)):
        if after < before:
            between = f"{earlier.worker} at {earlier.started:.2f} with {before}, then {later.worker} at {later.started:.2f} with {after}"
            yield case.violation(
                "I6",
                "a turn that was finished, with its tools' answers, was asked for again",
                between,
            )


def _calls_told(case: Case) -> Iterator[Violation]:
    """I6: what the output says of tools is what happened: a call that is completed was made, each stands there once, and none without need
    is failed."""
    output = [item for item in (case.final or {}).get("output", []) if item["type"] == "mcp_call"]
    made = {call.key for call in case.record.tools if call.marker == case.story.marker}
    keys = [_call_key(item) for item in output]
    if len(set(keys)) < len(keys):
        yield case.violation("I6", "a call stands in the output twice", keys)
    for item, key in zip(output, keys, strict=True):
        if item["status"] == "completed" and key not in made:
            yield case.violation("I6", f"the call {key} is completed, and nobody made it", item)
        if (
            item["status"] == "failed"
            and case.harm_to(None, case.story.create.sent, case.over or _NEVER) is None
        ):
            yield case.violation("I6", f"the call {key} failed, though no worker died", item)


def _call_key(item: JSON) -> str:
    """As `ToolCall.key`."""
    key: str = json.loads(item["arguments"])["key"]
    return f"{item['name']} {key.partition('/')[2]}"


# --- recovery ---


def deaths_under(case: Case) -> Iterator[tuple[UpstreamCall, Fault]]:
    """Each open upstream request whose worker died or was stopped under it."""
    for call in case.calls:
        for fault in case.faults(DEADLY - {"parted"}, call.worker):
            if _was_under(call, fault):
                yield call, fault
                break


def _was_under(call: UpstreamCall, fault: Fault) -> bool:
    if call.worker is None:  # then it was the one whose socket closed with it
        return (
            fault.what == "killed"
            and call.closed is not None
            and abs(call.closed - fault.begin) < _AT_ONCE
        )
    ended = _NEVER if call.ended is None else call.ended
    return call.started <= fault.begin <= ended + _AT_ONCE and not (
        call.whole and ended < fault.begin
    )


def running_again(case: Case, fault: Fault) -> float | None:
    """When the response of a request that died was first seen to run again or to be over; None: never."""
    seen = [later.started for later in case.calls if later.started > fault.begin]
    seen += [case.over] if case.over is not None and case.over > fault.begin else []
    return min(seen, default=None)


def _recovered(case: Case) -> Iterator[Violation]:
    if case.deleted is not None:
        return
    for call, fault in deaths_under(case):
        due = due_again(case, fault.begin)
        seen = running_again(case, fault)
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


def due_again(case: Case, begin: float) -> float:
    """By when a response whose worker died at `begin` must run again. The clock starts again after an outage of Postgres; without one
    worker that was there all the time there is no promise (lack of capacity)."""
    due = begin + case.promise.recovery
    for fault in sorted(case.faults(_SERVER_DOWN, "postgres"), key=lambda fault: fault.begin):
        if fault.touches(begin, due):
            due = (_NEVER if fault.end is None else fault.end) + case.promise.recovery
    if case.record.workers and not any(
        worker.begin <= begin
        and (worker.end is None or worker.end >= due)
        and case.harm_to(worker.name, begin, due) is None
        for worker in case.record.workers
    ):
        return _NEVER
    return due
