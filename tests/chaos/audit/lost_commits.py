"""What still holds after a failover to a standby that lacks the last commits.

Responses may be gone, be shorter than a reader has seen, or run again (docs/guarantees.md). So only
these rules are left: what exists ends (I2), once (I3), no stream mixes two attempts (I4), and
nothing is shown to a stranger (I11).
"""

from collections.abc import Iterator

from tests.chaos.audit.case import TERMINAL, Case, Violation


def check_after_lost_commits(case: Case) -> Iterator[Violation]:
    """All rules for one response."""
    gets = [get for get in case.trace.requests_of("get") if get.status in (200, 404)]
    last = max(gets, key=lambda get: get.sent, default=None)
    if last is not None and last.status == 200 and last.body["status"] not in TERMINAL:
        yield case.violation("I2", f"it has not ended: {last.body['status']}", last.body)
    for request in case.trace.requests_of("other_project"):
        if request.status not in (404, 503, None):
            yield case.violation("I11", f"another project was answered {request.status}")
    for stream in case.streams:
        numbers = [event.number for event in stream.events]
        first = stream.reading.after + 1
        if numbers != list(range(first, first + len(numbers))):
            yield case.violation("I4", "the numbers of a stream do not rise by 1", numbers)
        ids = {event.data["response"]["id"] for event in stream.events if "response" in event.data}
        if ids - {case.trace.id}:
            yield case.violation("I11", "a stream has another response", ids)
        ending = stream.terminal_event
        if ending is not None and stream.events[-1] is not ending:
            yield case.violation("I3", "events follow the terminal event", stream.events[-1])
