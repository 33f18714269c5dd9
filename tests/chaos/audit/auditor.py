"""Checks what clients, the upstream and the faults left behind against the promises I1 to I11.

The promises are those of docs/guarantees.md.

It is independent of the product: it imports none of it and never reads its database. It reads a
`RunRecord`, which `RecordedClients` (tests/support/chaos/recording_client.py) write.

    async with RecordedClients(stack) as clients:
        trace = await clients.create(reply(...), stream=True)
        ...                                  # faults: clients.record_fault("killed", process.name)
        record = await clients.finish()      # waits for all ends, then reads all again
    report = audit(record)
    assert not report.violations, report

Rules by invariant: `streams.py` (I3, I4, I11), `states.py` (I1, I2, I3, I7, I9, I10, I11),
`work.py` (I2, I5, I6, I9, I10 and tools), `histories.py` (I5, I6, I7 of continued responses,
conversations and compactions), `background.py` (chains, schedules, steers). I8 has no rule of its
own: all others must hold whatever happens to Redis. Only outages of PostgreSQL and deaths of
workers excuse a violation.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.chaos.audit.background import check_background, check_windows
from tests.chaos.audit.case import Case, Violation
from tests.chaos.audit.histories import check_conversation, check_history
from tests.chaos.audit.lost_commits import check_after_lost_commits
from tests.chaos.audit.measures import Measures, measure
from tests.chaos.audit.objects import check_objects
from tests.chaos.audit.record import RunRecord, TimeBounds, UpstreamCall
from tests.chaos.audit.states import check_states
from tests.chaos.audit.streams import check_streams
from tests.chaos.audit.work import check_work


@dataclass(slots=True)
class Report:
    """The result of an audit."""

    violations: list[Violation]
    measures: Measures
    responses: int
    """Number of accepted responses."""
    double_faults: list[str] = field(default_factory=list)
    """Responses with the stated double fault: I4 is not checked for them, all other rules are."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.violations)) or f"{self.responses} responses, no violation"


def audit(record: RunRecord, bounds: TimeBounds | None = None) -> Report:
    """Checks every response in the record. `bounds`: time limits, by default those promised."""
    cases = cases_of(record, bounds or TimeBounds())
    if any(fault.what == "commits_lost" for fault in record.faults):
        left = [violation for case in cases for violation in check_after_lost_commits(case)]
        return Report(left, Measures(), sum(case.accepted for case in cases))
    violations = [
        violation
        for case in cases
        for check in (check_streams, check_states, check_work)
        for violation in check(case)
    ]
    violations += _check_unique_ids(cases)
    violations += [*check_objects(record), *check_background(record)]
    violations += check_windows(cases, record)
    by_marker = {case.trace.marker: case for case in cases}
    for case in cases:
        violations += check_history(case, by_marker)
    for conversation in record.conversations:
        members = [case for case in cases if case.trace.conversation is conversation]
        violations += check_conversation(conversation, members)
    double_faults = [case.trace.id or case.trace.marker for case in cases if case.is_double_fault]
    return Report(violations, measure(cases), sum(case.accepted for case in cases), double_faults)


def cases_of(record: RunRecord, bounds: TimeBounds) -> list[Case]:
    """The material of each response."""
    calls: dict[str, list[UpstreamCall]] = {}
    for call in sorted(record.upstream, key=lambda call: call.started):
        calls.setdefault(call.marker, []).append(call)
    return [Case(trace, record, bounds, calls.get(trace.marker, [])) for trace in record.traces]


def _check_unique_ids(cases: list[Case]) -> Iterator[Violation]:
    """No id belongs to two responses; no item id to two responses."""
    ids = Counter(case.trace.id for case in cases if case.trace.id is not None)
    for response_id in (response_id for response_id, count in ids.items() if count > 1):
        yield Violation("I11", response_id, "two creates returned this id")
    items: dict[str, Case] = {}
    for case in cases:
        for item in (case.final or {}).get("output", []):
            owner = items.setdefault(item["id"], case)
            if owner is not case:
                yield case.violation(
                    "I11", f"its item {item['id']} is also an item of {owner.trace.id}"
                )
