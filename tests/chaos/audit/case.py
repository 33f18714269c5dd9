"""One response's material, put in order for the rules."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tests.chaos.audit.fold import Fold
from tests.chaos.audit.record import (
    DEADLY,
    JSON,
    Asked,
    Fault,
    Promise,
    Record,
    Story,
    UpstreamCall,
)
from tests.chaos.audit.sse import Event, Heard, parse

TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})
_DOUBLE = 3.0
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

    story: Story
    record: Record
    promise: Promise
    calls: list[UpstreamCall]
    """its upstream requests, in the order of their start"""
    heard: list[Heard] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.heard = [parse(reading) for reading in self.story.readings]

    def violation(self, invariant: str, sentence: str, evidence: object = "") -> Violation:
        return Violation(invariant, self.story.id or self.story.marker, sentence, str(evidence))

    @cached_property
    def events(self) -> list[Event]:
        """The longest row of events without a hole from 0 on that readers put together; equal numbers as whoever came first said them."""
        found: dict[int, Event] = {}
        for heard in self.heard:
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
    def looks(self) -> list[Asked]:
        """The GETs that were answered with the response, in the order in which they were sent."""
        return sorted(
            (look for look in self.story.of("get") if look.status == 200),
            key=lambda look: look.sent,
        )

    @property
    def final(self) -> JSON | None:
        """The last state that a GET showed, if it is terminal."""
        last = self.looks[-1].body if self.looks else None
        return last if last is not None and last["status"] in TERMINAL else None

    @property
    def accepted(self) -> bool:
        """I1 holds for it: the POST was answered 200, or the first byte of its stream was read."""
        if self.story.create.status != 200:
            return False
        streams = not self.story.create.body
        return not streams or any(
            reading.after < 0 and reading.chunks for reading in self.story.readings
        )

    @property
    def deleted(self) -> float | None:
        """When a delete was first sent."""
        return min((asked.sent for asked in self.story.of("delete")), default=None)

    @cached_property
    def over(self) -> float | None:
        """When somebody first saw that it had ended."""
        seen = [event.at for heard in self.heard if (event := heard.ending) is not None]
        told = [*self.story.of("get"), *self.story.of("cancel"), self.story.create]
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
            for look in self.story.of("get")
            if look.sent > moment and look.status in (200, 404)
        ]
        if any(
            look.body.get("status") not in TERMINAL
            if look.status == 200
            else not self.story.background
            for look in looks
        ):
            return True
        return any(
            heard.ending is None and (heard.reading.closed or 0) > moment for heard in self.heard
        ) or any(
            heard.ending is not None and heard.ending.at > moment > heard.reading.opened
            for heard in self.heard
        )

    # --- what was done to those who served it ---

    def faults(self, kinds: frozenset[str], target: str | None = None) -> Iterator[Fault]:
        """Faults of these kinds; of one process or server, or of all."""
        for fault in self.record.faults:
            if fault.what in kinds and target in (None, fault.target):
                yield fault

    def harm_to(self, worker: str | None, begin: float, end: float) -> Fault | None:
        """What could have taken a response from this worker between these moments. An unknown worker may be any that is not a web process."""
        for fault in self.faults(DEADLY, worker):
            if (worker is not None or not fault.target.startswith("web")) and fault.touches(
                begin, end, self.promise.exit
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
            for fault in self.faults(DEADLY)
            if not fault.target.startswith("web") and (fault.target in workers or None in workers)
        ]
        return any(
            crash.begin - self.promise.recovery
            <= death.begin
            <= (crash.end or crash.begin) + _DOUBLE
            for crash in self.faults(frozenset({"crashed"}), "postgres")
            for death in deaths
        )
