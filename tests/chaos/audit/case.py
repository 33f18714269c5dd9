"""The material of one response, prepared for the rules."""

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
"""Seconds after PostgreSQL is back until workers have surely written their journal again."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise."""

    invariant: str
    """`I1` to `I11`, or `deployment`."""
    response: str
    """Its id, or its marker if the client never got the id."""
    sentence: str
    evidence: str = ""

    def __str__(self) -> str:
        evidence = f" · {self.evidence[:600]}" if self.evidence else ""
        return f"{self.invariant} {self.response}: {self.sentence}{evidence}"


@dataclass
class Case:
    """One response as all clients, the upstream and the tools saw it."""

    trace: ResponseTrace
    record: RunRecord
    bounds: TimeBounds
    calls: list[UpstreamCall]
    """Its upstream requests in the order of their start."""
    streams: list[ParsedStream] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.streams = [parse(reading) for reading in self.trace.readings]

    def violation(self, invariant: str, sentence: str, evidence: object = "") -> Violation:
        return Violation(invariant, self.trace.id or self.trace.marker, sentence, str(evidence))

    @cached_property
    def events(self) -> list[Event]:
        """The events from number 0 up to the first hole, from all readers.

        Of events with the same number the first reader's counts.
        """
        by_number: dict[int, Event] = {}
        for stream in self.streams:
            for event in stream.events:
                by_number.setdefault(event.number, event)
        events: list[Event] = []
        while len(events) in by_number:
            events.append(by_number[len(events)])
        return events

    @cached_property
    def folded(self) -> Fold:
        """The fold of all these events."""
        return Fold(event.data for event in self.events)

    @property
    def successful_gets(self) -> list[ClientRequest]:
        """The GETs that returned the response, in the order in which they were sent."""
        return sorted(
            (request for request in self.trace.requests_of("get") if request.status == 200),
            key=lambda request: request.sent,
        )

    @property
    def final(self) -> JSON | None:
        """The state of the last GET, if it is terminal; if it is not stored, of its last event."""
        if not self.trace.stored:
            endings = (stream.terminal_event for stream in self.streams)
            return next((event.data["response"] for event in endings if event is not None), None)
        last = self.successful_gets[-1].body if self.successful_gets else None
        return last if last is not None and last["status"] in TERMINAL else None

    @property
    def accepted(self) -> bool:
        """Whether I1 applies: the POST returned 200, or the first byte of its stream was read."""
        if self.trace.create.status != 200:
            return False
        streams = not self.trace.create.body
        return not streams or any(
            reading.after < 0 and reading.chunks for reading in self.trace.readings
        )

    @property
    def deleted_at(self) -> float | None:
        """The time of the first delete; None without one."""
        return min((request.sent for request in self.trace.requests_of("delete")), default=None)

    @cached_property
    def seen_ended_at(self) -> float | None:
        """The first time at which a client saw that the response had ended."""
        endings = [stream.terminal_event for stream in self.streams]
        times = [event.time for event in endings if event is not None]
        requests = [
            *self.trace.requests_of("get"),
            *self.trace.requests_of("cancel"),
            self.trace.create,
        ]
        times += [
            request.answered
            for request in requests
            if request.answered is not None and request.body.get("status") in TERMINAL
        ]
        create = self.trace.create
        if self.trace.kind == "compaction" and create.status == 200 and create.answered is not None:
            times.append(create.answered)
        return min(times, default=None)

    def unfinished_after(self, time: float) -> bool:
        """Returns whether a client saw after this time that the response had not ended.

        By a GET, or by a stream that was still open. A foreground response is a 404 until its end.
        """
        answered = self.trace.create.answered
        if self.trace.kind == "compaction":
            return answered is not None and answered > time
        gets = [
            request
            for request in self.trace.requests_of("get")
            if self.trace.stored and request.sent > time and request.status in (200, 404)
        ]
        if any(
            request.body.get("status") not in TERMINAL
            if request.status == 200
            else not self.trace.background
            for request in gets
        ):
            return True
        return any(
            stream.terminal_event is None and (stream.reading.closed or 0) > time
            for stream in self.streams
        ) or any(
            stream.terminal_event is not None
            and stream.terminal_event.time > time > stream.reading.opened
            for stream in self.streams
        )

    # --- faults of the processes and servers ---

    def faults(self, kinds: frozenset[str], target: str | None = None) -> Iterator[Fault]:
        """The faults of these kinds: of one process or server, or of all."""
        for fault in self.record.faults:
            if fault.what in kinds and target in (None, fault.target):
                yield fault

    def fatal_fault(self, worker: str | None, begin: float, end: float) -> Fault | None:
        """A fault between these times that could have ended the run of this worker.

        An unknown worker can be any process except a web process.
        """
        for fault in self.faults(FATAL_FAULTS, worker):
            if (worker is not None or not fault.target.startswith("web")) and fault.touches(
                begin, end, self.bounds.exit
            ):
                return fault
        return None

    def is_starved(self, begin: float, end: float) -> bool:
        """Returns whether the machine had too little CPU at any time from `begin` to `end`.

        No limit in seconds is checked then.
        """
        return self.outage("machine", begin, end, kinds=frozenset({"starved"}))

    def outage(self, target: str, begin: float, end: float, *, kinds: frozenset[str]) -> bool:
        """Returns whether such a fault of this server touches the time from `begin` to `end`."""
        return any(fault.touches(begin, end) for fault in self.faults(kinds, target))

    @cached_property
    def is_double_fault(self) -> bool:
        """The stated limit: PostgreSQL crashed, which empties its journal, around a worker's death.

        Either the dead worker's events were not recovered yet, or the worker died before it had
        written its journal again. A worker may die before it has called the upstream.
        """
        workers = {call.worker for call in self.calls}
        deaths = [
            fault
            for fault in self.faults(FATAL_FAULTS)
            if not fault.target.startswith("web")
            and (
                fault.target in workers
                or None in workers
                or not any(call.started < fault.begin for call in self.calls)
            )
        ]
        return any(
            crash.begin - self.bounds.recovery_by_lease
            <= death.begin
            <= (crash.end or crash.begin) + _RESTORE_TIME
            for crash in self.faults(frozenset({"crashed"}), "postgres")
            for death in deaths
        )
