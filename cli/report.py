"""Facts on the screen: as JSON with stable keys, or as lines for people. Pure."""

import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cli.diagnosis import process
from cli.operations import Drained, Explanation, Request, Stuck, Worker


def as_json(facts: Any) -> str:
    """Any of operations.py's facts; times are ISO 8601 in UTC, durations seconds."""
    return json.dumps(facts, default=_plain, indent=2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return _moment(value) if isinstance(value, datetime) else str(value)


def explanation(facts: Explanation) -> str:
    """The timeline, and below it what happens now."""
    first = facts.timeline[0].at
    lines = [f"{facts.response.id}, created {_moment(first)}"]
    lines += [f"{(moment.at - first) / timedelta(seconds=1):>+12.3f} s  {moment.text}" for moment in facts.timeline]
    shown = f"; readers have been shown events up to {facts.journalled}" if facts.journalled is not None else ""
    return "\n".join([*lines, f"           now  {facts.response.why}{shown}"])


def stuck(facts: Stuck) -> str:
    """One line a response."""
    if not facts.responses:
        return f"no open response has been without progress for longer than {facts.idle_seconds:g} s"
    rows = [(each.id, each.state, f"{each.idle_seconds:.0f} s", str(each.attempt), each.why) for each in facts.responses]
    table = _table(("RESPONSE", "STATE", "IDLE", "ATTEMPT", "WHY"), rows)
    return f"{table}\n… and more" if facts.more else table


def workers(facts: Sequence[Worker]) -> str:
    """One line a process."""
    if not facts:
        return "no process has registered"
    rows = [
        (str(each.id), each.kind, each.host, str(each.pid), each.state, _moment(each.started_at), f"{each.lease_seconds:.1f} s", str(each.running), each.ended or "")
        for each in facts
    ]  # fmt: skip
    return _table(("ID", "KIND", "HOST", "PID", "STATE", "STARTED", "LEASE LEFT", "RUNNING", "ENDED"), rows)


def request(facts: Request) -> str:
    """What became of a request."""
    return f"{facts.id}: {'done' if facts.acted else 'recorded, not acted on yet'}: {facts.why}"


def drained(facts: Sequence[Drained]) -> str:
    """One line a process."""
    return "\n".join(
        f"{each.id}: {process(each.kind, each.pid, each.host)} {'has gone' if each.gone else 'is asked to go'}" for each in facts
    )


def _moment(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; the last as it comes."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)), row[-1]]).rstrip() for row in (head, *rows)
    )
