"""Rules about webhooks.

A response has one event, with one id, however often it is delivered: I3 (one ending), I1 (it
arrives), I11 (nothing about what no client was given).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from tests.chaos.audit.case import Case, Violation
from tests.chaos.audit.record import ReceivedEvent, RunRecord


@dataclass(slots=True)
class EventLedger:
    """What the rounds of a deployment made, and which events they must have."""

    statuses: dict[str, str] = field(default_factory=dict)
    """By the id of each response or batch: its status at the end."""
    known: set[str] = field(default_factory=set)
    """All ids that clients were given."""
    gone: set[str] = field(default_factory=set)
    """The ids of those that were deleted before their upstream had answered."""
    unknown: int = 0
    """Creates whose answer was lost: their responses have events about ids that nobody knows."""

    has_lost_commits: bool = False
    """After a failover events may be missing, and statuses others; ids stay."""

    def add(self, cases: Iterable[Case]) -> None:
        """Adds the responses of a round."""
        for case in cases:
            trace = case.trace
            if not trace.background:
                continue
            if trace.id is None:
                self.unknown += trace.create.status is None
                continue
            self.known.add(trace.id)
            if _was_deleted_early(case):
                self.gone.add(trace.id)
            if case.final is not None and case.deleted_at is None:
                self.statuses[trace.id] = case.final["status"]

    def add_objects(self, record: RunRecord) -> None:
        """Adds the batches and responses of a round that its errands made."""
        for trace in record.objects:
            if trace.kind not in ("batch", "response"):
                continue
            self.known |= {one.body["id"] for one in trace.creates if one.status == 200}
            self.known |= set(trace.listed or ())
            self.unknown += sum(one.status is None for one in trace.creates)
        self.statuses |= {
            batch.created.id: batch.status
            for batch in record.batches
            if batch.created.id is not None and batch.status
        }

    def missing(self, events: Iterable[ReceivedEvent]) -> set[str]:
        """The ids whose event has not come yet."""
        return set(self.statuses) - {event.object_id for event in events}

    def check(self, events: list[ReceivedEvent]) -> Iterator[Violation]:
        """All rules, for all events of the deployment."""
        if self.has_lost_commits:
            yield from check_ids(events, "type")
            return
        for missing in sorted(self.missing(events)):
            status = self.statuses[missing]
            yield Violation("I1", missing, f"it is {status}, and no event was delivered")
        yield from check_ids(events)
        for event in events:
            if event.object_id in self.gone and event.type == "response.completed":
                yield Violation("I10", event.object_id, "it was deleted, and ran to its end")
            expected = self.statuses.get(event.object_id)
            if expected is not None and event.type.partition(".")[2] != expected:
                yield Violation("I3", event.object_id, f"it is {expected}, with a {event.type}")
        strangers = {event.object_id for event in events} - self.known
        if len(strangers) > self.unknown:
            sentence = f"{len(strangers)} objects that no client was given have events"
            yield Violation("I11", min(strangers), f"{sentence}; {self.unknown} answers were lost")


def _was_deleted_early(case: Case) -> bool:
    """Whether a delete was answered while its last upstream request had not been answered."""
    deleted = [one.answered for one in case.trace.requests_of("delete") if one.status == 200]
    calls = [call for call in case.calls if call.is_complete_turn]
    return bool(
        deleted and calls and min(filter(None, deleted), default=0) < (calls[-1].finished or 0)
    )


def check_ids(
    events: Iterable[ReceivedEvent], of: Literal["object", "type"] = "object"
) -> Iterator[Violation]:
    """An object has one event, which always has the same id. After a failover that lost its ending
    it may have ended once more with another status: then each type has one id."""
    by_object: dict[str, set[tuple[str, str]]] = {}
    for event in events:
        known = event.object_id if of == "object" else f"{event.object_id} {event.type}"
        by_object.setdefault(known, set()).add((event.id, event.type))
    for known, found in by_object.items():
        if len(found) > 1:
            yield Violation("I3", known, f"it has {len(found)} events", str(sorted(found)))
