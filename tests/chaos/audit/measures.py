"""Durations as seen from outside, in seconds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.chaos.audit.case import Case
from tests.chaos.audit.record import FATAL_FAULTS
from tests.chaos.audit.work import interrupted_calls, recovery_deadline, resumed_at


@dataclass(slots=True)
class Measures:
    """One list for each question, with an entry for each time it arose."""

    recovery: list[float] = field(default_factory=list)
    """From a worker's death until its response runs again or has ended.

    Only while PostgreSQL was up and a worker without faults was there.
    """
    recovery_in_trouble: list[float] = field(default_factory=list)
    """The same when nothing is promised: PostgreSQL was down too, or each worker had a fault."""
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
                is_promised = (
                    recovery_deadline(case, fault.begin) <= fault.begin + case.bounds.recovery
                )
                deaths = measures.recovery if is_promised else measures.recovery_in_trouble
                durations = measures.hand_over if fault.what == "stopped" else deaths
                durations.append(resumed - fault.begin)
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
    """Whether a fault of worker, web process or PostgreSQL excuses it: no time is promised then."""
    for target in (worker, web, "postgres"):
        if target is not None and any(
            fault.touches(begin, end, 1)
            for fault in case.faults(FATAL_FAULTS | {"restarted", "crashed", "hung"}, target)
        ):
            return True
    return False
