"""Facts about responses and processes as lines for people. Pure."""

from collections.abc import Sequence
from datetime import timedelta

from cli.operations.diagnosis import process_text
from cli.operations.facts import (
    DrainResult,
    Explanation,
    OperatorRequest,
    ProcessState,
    StuckResponses,
)
from cli.output import format_time, table


def explanation(facts: Explanation) -> str:
    """The timeline, and the present state below it."""
    first = facts.timeline[0].at
    lines = [f"{facts.response.id}, created {format_time(first)}"]
    lines += [
        f"{(event.at - first) / timedelta(seconds=1):>+12.3f} s  {event.text}"
        for event in facts.timeline
    ]
    published = (
        f"; events up to {facts.journalled} were published" if facts.journalled is not None else ""
    )
    return "\n".join([*lines, f"           now  {facts.response.why}{published}"])


def stuck(facts: StuckResponses) -> str:
    """One line per response."""
    if not facts.responses:
        return (
            f"no open response has been without progress for longer than {facts.idle_seconds:g} s"
        )
    rows = [
        (each.id, each.state, f"{each.idle_seconds:.0f} s", str(each.attempt), each.why)
        for each in facts.responses
    ]
    text = table(("RESPONSE", "STATE", "IDLE", "ATTEMPT", "WHY"), rows)
    return f"{text}\n… and more" if facts.more else text


def workers(facts: Sequence[ProcessState]) -> str:
    """One line per process."""
    if not facts:
        return "no process has registered"
    rows = [
        (
            str(process.id),
            process.kind,
            process.host,
            str(process.pid),
            process.state,
            format_time(process.started_at),
            f"{process.lease_seconds:.1f} s",
            str(process.running),
            process.ended or "",
        )
        for process in facts
    ]
    return table(
        ("ID", "KIND", "HOST", "PID", "STATE", "STARTED", "LEASE LEFT", "RUNNING", "ENDED"), rows
    )


def request(facts: OperatorRequest) -> str:
    """What happened to a request."""
    return f"{facts.id}: {'done' if facts.acted else 'recorded, not acted on yet'}: {facts.why}"


def drain_results(facts: Sequence[DrainResult]) -> str:
    """One line per process."""
    return "\n".join(
        f"{process.id}: {process_text(process.kind, process.pid, process.host)} "
        f"{'has exited' if process.gone else 'was asked to exit'}"
        for process in facts
    )
