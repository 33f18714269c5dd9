"""Rules about the background field: chains, schedules, steers, windows (docs/background.md).

I1 (nothing accepted is lost), I2 (ends), I5 (order), I6 (once).
"""

from collections import Counter
from collections.abc import Iterator

from tests.chaos.audit.case import TERMINAL, Case, Violation
from tests.chaos.audit.record import (
    ChainTrace,
    ObjectTrace,
    RunRecord,
    ScheduleTrace,
    SteeredTrace,
    UpstreamCall,
)

_RANKS = {"soonest": 0, "2h": 1, "8h": 2}
_IN_LINE = 3.0
"""Seconds after its create until every worker's choice must have seen a response."""
_SETTLES = 8.0
"""Seconds after a fault until the order of what waits is judged again."""


def check_background(record: RunRecord) -> Iterator[Violation]:
    """All rules."""
    for chain in record.chains:
        yield from _check_ends(chain)
        for before, after in zip(chain.links, chain.links[1:], strict=False):
            yield from _check_order(before, after, record)
    for schedule in record.schedules:
        yield from _check_runs(schedule, record)
    for steered in record.steered:
        yield from _check_steers(steered, record)


def _violation(trace: ObjectTrace, rule: str, sentence: str, evidence: object = "") -> Violation:
    return Violation(rule, f"{trace.kind} {trace.name}", sentence, str(evidence))


def _calls(record: RunRecord, marker: str) -> list[UpstreamCall]:
    calls = [call for call in record.object_calls if call.marker == marker]
    return sorted(calls, key=lambda call: call.started)


# --- chains ---


def _check_ends(chain: ChainTrace) -> Iterator[Violation]:
    """I2: all end. One that continues a response without a result fails, every other runs."""
    before = "completed"
    for number, (link, status) in enumerate(zip(chain.links, chain.statuses, strict=False)):
        if status not in TERMINAL:
            yield _violation(link, "I2", "it has not ended")
            return
        possible = {"completed"} if before == "completed" else {"failed"}
        if number == 0 and chain.is_stopped:
            possible |= {"cancelled"}
        if status not in possible:
            sentence = f"it is {status} behind one that is {before}"
            yield _violation(link, "I2", sentence, chain.statuses)
        before = status


def _check_order(before: ObjectTrace, after: ObjectTrace, record: RunRecord) -> Iterator[Violation]:
    """I5: no request of a link before the end of the one that it waits for, whose output it has."""
    done = [call.finished for call in _calls(record, before.name) if call.is_complete_turn]
    for call in _calls(record, after.name):
        if not done or call.started < min(filter(None, done), default=float("inf")):
            yield _violation(after, "I5", "it ran before its previous response had ended")
        if not any(f"{before.name}.0 " in text for text in call.request_texts):
            sentence = "its request lacks the output of its previous response"
            yield _violation(after, "I5", sentence, call.request_texts)


# --- schedules ---


def _check_runs(schedule: ScheduleTrace, record: RunRecord) -> Iterator[Violation]:
    """I6: its slot has run once, and each request to run it at most once; I2: all have ended. A
    request that was answered 503 may have been stored: it is no create of a response."""
    trace = schedule.created
    if trace.id is None:
        return
    if schedule.runs is None:
        yield _violation(trace, "I2", "its runs cannot be read")
        return
    triggers = Counter(run["trigger"] for run in schedule.runs)
    answered = sum(one.status == 200 for one in schedule.requested)
    if triggers["slot"] != 1:
        yield _violation(trace, "I6", f"its slot has {triggers['slot']} runs", schedule.runs)
    if not answered <= triggers["request"] <= len(schedule.requested):
        sentence = f"{answered} runs were requested, and it has {triggers['request']}"
        yield _violation(trace, "I6", sentence, schedule.runs)
    made = [run["response_id"] for run in schedule.runs]
    if None in made or len(set(made)) != len(made):
        yield _violation(trace, "I6", "not each of its runs has a response of its own", made)
    for id_, status in schedule.statuses.items():
        if status != "completed":
            yield _violation(trace, "I2", f"{id_} is {status or 'not ended'}")
    complete = sum(call.is_complete_turn for call in _calls(record, trace.name))
    if complete < len(made):
        yield _violation(trace, "I6", f"{len(made)} runs, and the upstream was called {complete} x")


# --- steers ---


def _check_steers(steered: SteeredTrace, record: RunRecord) -> Iterator[Violation]:
    """I1: an accepted steer is committed or returned, and I6: committed once. One that was answered
    503 may have been stored: it is no create of a response."""
    trace = steered.first
    if steered.shown is None:
        yield _violation(trace, "I1", "its steers cannot be read")
        return
    shown = {one["id"]: one for one in steered.shown}
    inputs = Counter(text for _, texts in steered.successors.values() for text in texts)
    sent = [text for call in _calls(record, trace.name) for text in call.request_texts]
    for steer in steered.steers:
        text, request = steer.text, steer.request
        if inputs[text] > steer.tries:
            yield _violation(trace, "I6", f"{text!r} is {inputs[text]} times input", inputs)
        if request.status != 200:
            if request.status is not None and inputs[text] >= steer.tries:
                yield _violation(trace, "I6", f"{text!r} was refused, and is input", request.body)
            continue
        found = shown.get(request.body["id"], {})
        if found.get("state") == "committed":
            if not inputs[text]:
                yield _violation(trace, "I1", f"{text!r} is committed, and is no input", found)
        elif found.get("state") == "failed":
            if steer.tries == 1 and (inputs[text] or text in sent):
                yield _violation(trace, "I6", f"{text!r} was returned, and is input", found)
            if found.get("input") != text:
                yield _violation(trace, "I1", f"{text!r} was not returned as it was sent", found)
        else:
            yield _violation(trace, "I1", f"{text!r} is neither committed nor returned", found)
    for id_, (status, _) in steered.successors.items():
        if status not in TERMINAL:
            yield _violation(trace, "I2", f"its successor {id_} has not ended")


# --- windows ---


def check_windows(cases: list[Case], record: RunRecord) -> Iterator[Violation]:
    """I5: where all slots are busy, a response begins before those with a longer window."""
    if not record.is_crowded:
        return
    started = [case for case in cases if case.trace.window and case.calls]
    chosen = [case for case in started if not _is_disturbed(case.calls[0].started, record)]
    for late in started:
        since = (late.trace.create.answered or late.trace.create.sent) + _IN_LINE
        begun = late.calls[0].started
        overtaken_by = [
            early.trace.window
            for early in chosen
            if _RANKS[early.trace.window] > _RANKS[late.trace.window]
            and since < early.calls[0].started < begun - 1
        ]
        if overtaken_by:
            sentence = f"its window is {late.trace.window}, and longer ones began before it"
            yield late.violation("I5", sentence, overtaken_by)


def _is_disturbed(moment: float, record: RunRecord) -> bool:
    """Whether a process had just died. Too little CPU changes no order."""
    return any(
        fault.what != "starved" and fault.begin < moment < (fault.end or fault.begin) + _SETTLES
        for fault in record.faults
    )
