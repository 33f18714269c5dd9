"""The auditor: reads what clients, the upstream and the faults left behind, and says which promises of design §1 were broken.

It is independent of the product: it imports nothing of it and never looks into its database. What it reads is a `Record`; a `Witness`
(tests/support/chaos/recording_client.py) writes one while it acts as the clients.

    async with Witness(stack) as witness:
        story = await witness.create(reply(...), stream=True)
        …                                    # faults: witness.fault("killed", process.name)
        await witness.settle()               # everything ends, is looked at and replayed
    report = audit(witness.record)
    assert not report.violations, report

Rules by invariant: `streams.py` (I3, I4, I11), `states.py` (I1, I2, I3, I7, I9, I10, I11), `work.py` (I2, I5, I6, I9, I10 and tools). I8
has no rule of its own: whatever is done to Redis, all the others hold; nothing but Postgres and the death of a worker excuses anything.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.chaos.audit.case import Case, Violation
from tests.chaos.audit.measures import Measures, measure
from tests.chaos.audit.record import RunRecord, TimeBounds, UpstreamCall
from tests.chaos.audit.states import check_states
from tests.chaos.audit.streams import check_streams
from tests.chaos.audit.work import check_work


@dataclass(slots=True)
class Report:
    """What the auditor found."""

    violations: list[Violation]
    measures: Measures
    responses: int
    """how many were accepted"""
    double_faults: list[str] = field(default_factory=list)
    """The responses that met the stated double fault: I4 was not asserted for them, everything else was."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.violations)) or f"{self.responses} responses, no violation"


def audit(record: RunRecord, bounds: TimeBounds | None = None) -> Report:
    """Check every response in the record. `promise`: the times, by default those of design §1."""
    cases = cases_of(record, bounds or TimeBounds())
    found = [
        violation
        for case in cases
        for check in (check_streams, check_states, check_work)
        for violation in check(case)
    ]
    found += _check_unique_ids(cases)
    doubles = [case.trace.id or case.trace.marker for case in cases if case.is_double_fault]
    return Report(found, measure(cases), sum(case.accepted for case in cases), doubles)


def cases_of(record: RunRecord, bounds: TimeBounds) -> list[Case]:
    """The material of each response."""
    calls: dict[str, list[UpstreamCall]] = {}
    for call in sorted(record.upstream, key=lambda call: call.started):
        calls.setdefault(call.marker, []).append(call)
    return [Case(story, record, bounds, calls.get(story.marker, [])) for story in record.traces]


def _check_unique_ids(cases: list[Case]) -> Iterator[Violation]:
    """No id belongs to two responses, neither its own nor an item's."""
    ids = Counter(case.trace.id for case in cases if case.trace.id is not None)
    for name in (name for name, count in ids.items() if count > 1):
        yield Violation("I11", name, "two creates were answered with this id")
    items: dict[str, Case] = {}
    for case in cases:
        for item in (case.final or {}).get("output", []):
            owner = items.setdefault(item["id"], case)
            if owner is not case:
                yield case.violation(
                    "I11", f"its item {item['id']} is also one of {owner.trace.id}"
                )
