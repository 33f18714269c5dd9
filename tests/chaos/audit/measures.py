"""Durations as seen from outside, in seconds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.chaos.audit.case import Case
from tests.chaos.audit.record import FATAL_FAULTS, Fault
from tests.chaos.audit.work import (
    SERVER_DOWN,
    abandoned_calls,
    interrupted_calls,
    is_single_kill,
    recovery_deadline,
    resumed_at,
)


@dataclass(slots=True)
class Measures:
    """One list for each question, with an entry for each time it arose."""

    recovery: list[float] = field(default_factory=list)
    """From the `kill -9` of a worker until its response runs again or has ended, no other fault."""
    recovery_by_lease: list[float] = field(default_factory=list)
    """The same where the lease decides: the worker was frozen, or another fault was near."""
    recovery_in_trouble: list[float] = field(default_factory=list)
    """The same when nothing is promised: PostgreSQL was down too, each worker had a fault, or there
    was too little CPU."""
    abandoned: list[float] = field(default_factory=list)
    """From the `kill -9` of a web process to the closed upstream connection of its foreground
    response."""
    hand_over: list[float] = field(default_factory=list)
    """The same after SIGTERM."""
    cancel: list[float] = field(default_factory=list)
    """From a cancel to the closed connection of the upstream, without faults near."""
    cancel_in_trouble: list[float] = field(default_factory=list)
    """The same with any fault near."""
    gap: list[float] = field(default_factory=list)
    """Each reader's longest time from the upstream's text to the reader."""
    wait: list[float] = field(default_factory=list)
    """From the answer to a create to its first upstream request."""

    def add(self, other: "Measures") -> None:
        """Adds the measures of another run."""
        for name in self.__slots__:
            getattr(self, name).extend(getattr(other, name))


def measure(cases: Iterable[Case]) -> Measures:
    """The measures of all these responses."""
    measures = Measures()
    for case in cases:
        for call, fault in interrupted_calls(case):
            resumed = resumed_at(case, fault)
            # If no client looked for a while, the time at which the end was seen means nothing.
            if (
                resumed is not None
                and not _survived(call.finished, fault.end)
                and _was_watched(case, resumed)
            ):
                durations = _recoveries(measures, case, fault)
                durations.append(resumed - fault.begin)
        measures.abandoned += [
            call.closed - fault.begin
            for call, fault in abandoned_calls(case)
            if call.closed is not None
        ]
        for duration, is_calm in _cancels(case):
            (measures.cancel if is_calm else measures.cancel_in_trouble).append(duration)
        measures.gap += _reader_gaps(case)
        if (
            case.trace.create.status == 200
            and case.trace.background
            and case.calls
            and case.trace.create.answered is not None
        ):
            measures.wait.append(max(0.0, case.calls[0].started - case.trace.create.answered))
    return measures


def _recoveries(measures: Measures, case: Case, fault: Fault) -> list[float]:
    """The list for responses whose worker had this fault."""
    if fault.what == "stopped":
        return measures.hand_over
    if recovery_deadline(case, fault) > fault.begin + case.bounds.recovery_by_lease:
        return measures.recovery_in_trouble
    return measures.recovery if is_single_kill(case, fault) else measures.recovery_by_lease


def _was_watched(case: Case, resumed: float) -> bool:
    return resumed != case.seen_ended_at or case.unfinished_after(resumed - 1)


def _survived(finished: float | None, resumed: float | None) -> bool:
    return finished is not None and resumed is not None and finished > resumed


def _cancels(case: Case) -> Iterator[tuple[float, bool]]:
    for request in case.trace.requests_of("cancel"):
        if request.status != 200:
            continue
        for call in case.calls:
            if call.closed is not None and call.started < request.sent < call.closed:
                is_calm = not any(
                    fault.touches(request.sent - 20, call.closed, 1) for fault in case.record.faults
                )
                yield call.closed - request.sent, is_calm


def _reader_gaps(case: Case) -> Iterator[float]:
    """Each reader's longest time for a text of a worker without faults. Texts are unique."""
    sent: dict[str, tuple[float, str | None]] = {}
    for call in case.calls:
        sent |= {text: (at, call.worker) for at, text in call.sent_text}
    for stream in case.streams:
        duration = [
            event.time - max(sent[text][0], stream.reading.opened)
            for event in stream.events
            if (text := event.data.get("delta")) in sent
            and not _excused(case, sent[text][1], stream.reading.web, sent[text][0], event.time)
        ]
        if duration:
            yield max(duration)


def _excused(case: Case, worker: str | None, web: str, begin: float, end: float) -> bool:
    """Whether a fault of worker, web process, PostgreSQL or machine excuses it."""
    for target in (worker, web, "postgres", "machine"):
        if target is not None and any(
            fault.touches(begin, end, 1)
            for fault in case.faults(FATAL_FAULTS | SERVER_DOWN | {"starved"}, target)
        ):
            return True
    return False
