"""One response's material, put in order for the rules."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tests.chaos.audit.fold import Fold
from tests.chaos.audit.record import (
    FATAL_FAULTS,
    JSON,
    ClientRequest,
    Fault,
    ResponseTrace,
    RunRecord,
    TimeBounds,
    UpstreamCall,
)
from tests.chaos.audit.sse import Event, ParsedStream, parse

TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})
_RESTORE_TIME = 3.0
"""Seconds after Postgres is back within which a worker that dies had not yet stored again what the crash has taken."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    invariant: str
    """`I1` … `I11`"""
    response: str
    """its id, or its marker when the client never learnt the id"""
    sentence: str
    evidence: str = ""

    def __str__(self) -> str:
        return f"{self.invariant} {self.response}: {self.sentence}{f' · {self.evidence[:600]}' if self.evidence else ''}"


@dataclass
class Case:
    """One response as everybody saw it."""

    trace: ResponseTrace
    record: RunRecord
    bounds: TimeBounds
    calls: list[UpstreamCall]
    """its upstream requests, in the order of their start"""
    streams: list[ParsedStream] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.streams = [parse(reading) for reading in self.trace.readings]

    def violation(self, invariant: str, sentence: str, evidence: object = "") -> Violation:
        return Violation(invariant, self.trace.id or self.trace.marker, sentence, str(evidence))

    @cached_property
    def events(self) -> list[Event]:
        """The longest row of events without a hole from 0 on that readers put together; equal numbers as whoever came first said them."""
        found: dict[int, Event] = {}
        for heard in self.streams:
            for event in heard.events:
                found.setdefault(event.number, event)
        row: list[Event] = []
        while len(row) in found:
            row.append(found[len(row)])
        return row

    @cached_property
    def folded(self) -> Fold:
        """The fold of all these events."""
        return Fold(event.data for event in self.events)

    @property
    def successful_gets(self) -> list[ClientRequest]:
        """The GETs that were answered with the response, in the order in which they were sent."""
        return sorted(
            (look for look in self.trace.requests_of("get") if look.status == 200),
            key=lambda look: look.sent,
        )

    @property
    def final(self) -> JSON | None:
        """The last state that a GET showed, if it is terminal."""
        last = self.successful_gets[-1].body if self.successful_gets else None
        return last if last is not None and last["status"] in TERMINAL else None

    @property
    def accepted(self) -> bool:
        """I1 holds for it: the POST was answered 200, or the first byte of its stream was read."""
        if self.trace.create.status != 200:
            return False
        streams = not self.trace.create.body
        return not streams or any(
            reading.after < 0 and reading.chunks for reading in self.trace.readings
        )

    @property
    def deleted_at(self) -> float | None:
        """When a delete was first sent."""
        return min((asked.sent for asked in self.trace.requests_of("delete")), default=None)

    @cached_property
    def seen_ended_at(self) -> float | None:
        """When somebody first saw that it had ended."""
        seen = [event.at for heard in self.streams if (event := heard.terminal_event) is not None]
        told = [
            *self.trace.requests_of("get"),
            *self.trace.requests_of("cancel"),
            self.trace.create,
        ]
        seen += [
            asked.answered
            for asked in told
            if asked.answered is not None and asked.body.get("status") in TERMINAL
        ]
        return min(seen, default=None)

    def unfinished_after(self, moment: float) -> bool:
        """Whether somebody saw after this moment that it had not ended: by asking, or by still listening. A foreground response is 404
        until its end."""
        looks = [
            look
            for look in self.trace.requests_of("get")
            if look.sent > moment and look.status in (200, 404)
        ]
        if any(
            look.body.get("status") not in TERMINAL
            if look.status == 200
            else not self.trace.background
            for look in looks
        ):
            return True
        return any(
            heard.terminal_event is None and (heard.reading.closed or 0) > moment
            for heard in self.streams
        ) or any(
            heard.terminal_event is not None
            and heard.terminal_event.at > moment > heard.reading.opened
            for heard in self.streams
        )

    # --- what was done to those who served it ---

    def faults(self, kinds: frozenset[str], target: str | None = None) -> Iterator[Fault]:
        """Faults of these kinds; of one process or server, or of all."""
        for fault in self.record.faults:
            if fault.what in kinds and target in (None, fault.target):
                yield fault

    def fatal_fault(self, worker: str | None, begin: float, end: float) -> Fault | None:
        """What could have taken a response from this worker between these moments. An unknown worker may be any that is not a web process."""
        for fault in self.faults(FATAL_FAULTS, worker):
            if (worker is not None or not fault.target.startswith("web")) and fault.touches(
                begin, end, self.bounds.exit
            ):
                return fault
        return None

    def outage(self, target: str, begin: float, end: float, *, kinds: frozenset[str]) -> bool:
        """Whether such a fault of this server touches the time between these moments."""
        return any(fault.touches(begin, end) for fault in self.faults(kinds, target))

    @cached_property
    def is_double_fault(self) -> bool:
        """The stated limit of design §1: Postgres crashed (its journal is empty) while what a dead worker of this response had said was
        not yet taken over, or not yet stored again by one that died right after."""
        workers = {call.worker for call in self.calls}
        deaths = [
            fault
            for fault in self.faults(FATAL_FAULTS)
            if not fault.target.startswith("web") and (fault.target in workers or None in workers)
        ]
        return any(
            crash.begin - self.bounds.recovery
            <= death.begin
            <= (crash.end or crash.begin) + _RESTORE_TIME
            for crash in self.faults(frozenset({"crashed"}), "postgres")
            for death in deaths
        )
