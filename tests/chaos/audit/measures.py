"""How long things took, as seen from outside. All in seconds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.chaos.audit.case import Case
from tests.chaos.audit.record import FATAL_FAULTS
from tests.chaos.audit.work import interrupted_calls, recovery_deadline, resumed_at


@dataclass(slots=True)
class Measures:
    """One list per question; an entry for each time it arose."""

    recovery: list[float] = field(default_factory=list)
    """from a worker's death to the response running again or over, with Postgres there and one worker well all the while"""
    recovery_in_trouble: list[float] = field(default_factory=list)
    """the same where nothing is promised: Postgres was away as well, or no worker was well"""
    hand_over: list[float] = field(default_factory=list)
    """the same after SIGTERM"""
    cancel: list[float] = field(default_factory=list)
    """from the sending of a cancel to the upstream's socket closed, with a live owner and Redis there"""
    cancel_in_trouble: list[float] = field(default_factory=list)
    """the same with any fault near"""
    gap: list[float] = field(default_factory=list)
    """each reader's longest: from the upstream saying a word to the reader having it"""
    wait: list[float] = field(default_factory=list)
    """from the answer to a create to its first upstream request"""

    def add(self, other: "Measures") -> None:
        """Put another run's beside ours."""
        for name in self.__slots__:
            getattr(self, name).extend(getattr(other, name))


def measure(cases: Iterable[Case]) -> Measures:
    """The measures of all these responses."""
    found = Measures()
    for case in cases:
        for call, fault in interrupted_calls(case):
            again = resumed_at(case, fault)
            # nobody may have looked for a while: then the moment at which it was seen says nothing
            if (
                again is not None
                and not _survived(call.finished, fault.end)
                and _was_watched(case, again)
            ):
                promised = (
                    recovery_deadline(case, fault.begin) <= fault.begin + case.bounds.recovery
                )
                died = found.recovery if promised else found.recovery_in_trouble
                (found.hand_over if fault.what == "stopped" else died).append(again - fault.begin)
        for took, calm in _cancels(case):
            (found.cancel if calm else found.cancel_in_trouble).append(took)
        found.gap += _reader_gaps(case)
        if (
            case.trace.create.status == 200
            and case.trace.background
            and case.calls
            and case.trace.create.answered is not None
        ):
            found.wait.append(max(0.0, case.calls[0].started - case.trace.create.answered))
    return found


def _was_watched(case: Case, resumed: float) -> bool:
    return resumed != case.seen_ended_at or case.unfinished_after(resumed - 1)


def _survived(finished: float | None, resumed: float | None) -> bool:
    return finished is not None and resumed is not None and finished > resumed


def _cancels(case: Case) -> Iterator[tuple[float, bool]]:
    for asked in case.trace.requests_of("cancel"):
        if asked.status != 200:
            continue
        for call in case.calls:
            if call.closed is not None and call.started < asked.sent < call.closed:
                calm = not any(
                    fault.touches(asked.sent - 20, call.closed, 1) for fault in case.record.faults
                )
                yield call.closed - asked.sent, calm


def _reader_gaps(case: Case) -> Iterator[float]:
    """For each reader the longest time a word of a worker that stayed well took to reach it. A word is known by its text."""
    said: dict[str, tuple[float, str | None]] = {}
    for call in case.calls:
        said |= {word: (at, call.worker) for at, word in call.sent_text}
    for heard in case.streams:
        took = [
            event.at - max(said[word][0], heard.reading.opened)
            for event in heard.events
            if (word := event.data.get("delta")) in said
            and not _excused(case, said[word][1], heard.reading.web, said[word][0], event.at)
        ]
        if took:
            yield max(took)


def _excused(case: Case, worker: str | None, web: str, begin: float, end: float) -> bool:
    """The worker or the web process was stopped in between, or Postgres was away: then words wait, and no time is promised."""
    for target in (worker, web, "postgres"):
        if target is not None and any(
            fault.touches(begin, end, 1)
            for fault in case.faults(FATAL_FAULTS | {"away", "crashed", "hung"}, target)
        ):
            return True
    return False
