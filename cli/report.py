"""Facts on the screen: as JSON with stable keys, or as lines for people. Pure."""

import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cli.configuration.conformance import Conformance
from cli.configuration.effective import EffectiveConfiguration
from cli.operations.diagnosis import process_text
from cli.operations.queries import (
    DrainResult,
    Explanation,
    OperatorRequest,
    ProcessState,
    StuckResponses,
)


def as_json(facts: Any) -> str:
    """Any of operations.py's facts; times are ISO 8601 in UTC, durations seconds."""
    return json.dumps(facts, default=_json_default, indent=2, ensure_ascii=False)


def _json_default(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return _format_time(value) if isinstance(value, datetime) else str(value)


def explanation(facts: Explanation) -> str:
    """The timeline, and below it what happens now."""
    first = facts.timeline[0].at
    lines = [f"{facts.response.id}, created {_format_time(first)}"]
    lines += [
        f"{(moment.at - first) / timedelta(seconds=1):>+12.3f} s  {moment.text}"
        for moment in facts.timeline
    ]
    shown = (
        f"; readers have been shown events up to {facts.journalled}"
        if facts.journalled is not None
        else ""
    )
    return "\n".join([*lines, f"           now  {facts.response.why}{shown}"])


def stuck(facts: StuckResponses) -> str:
    """One line a response."""
    if not facts.responses:
        return (
            f"no open response has been without progress for longer than {facts.idle_seconds:g} s"
        )
    rows = [
        (each.id, each.state, f"{each.idle_seconds:.0f} s", str(each.attempt), each.why)
        for each in facts.responses
    ]
    table = _table(("RESPONSE", "STATE", "IDLE", "ATTEMPT", "WHY"), rows)
    return f"{table}\n… and more" if facts.more else table


def workers(facts: Sequence[ProcessState]) -> str:
    """One line a process."""
    if not facts:
        return "no process has registered"
    rows = [
        (str(each.id), each.kind, each.host, str(each.pid), each.state, _format_time(each.started_at), f"{each.lease_seconds:.1f} s", str(each.running), each.ended or "")
        for each in facts
    ]  # fmt: skip
    return _table(
        ("ID", "KIND", "HOST", "PID", "STATE", "STARTED", "LEASE LEFT", "RUNNING", "ENDED"), rows
    )


def configuration(facts: EffectiveConfiguration) -> str:
    """File, upstreams and routes, and what else is not as by default."""
    lines = [f"file: {facts.file or 'none'}", ""]
    if facts.upstreams:
        lines += [
            _table(
                ("UPSTREAM", "API", "BASE URL", "KEY"),
                [(one.name, one.api, one.base_url, one.api_key) for one in facts.upstreams],
            ),
            "",
        ]
        routes = [
            (route.pattern, ", then ".join(map(_format_target, route.targets)))
            for route in facts.routes
        ]
        lines += [_table(("MODEL", "GOES TO"), routes), ""]
    else:
        lines += ["no upstream is configured; `up` starts a demo", ""]
    values = [
        (f"{one.name}: {value.key}", _format_value(value.value), value.source)
        for one in facts.upstreams
        for value in one.settings
    ]
    values += [(value.key, _format_value(value.value), value.source) for value in facts.settings]
    return "\n".join(
        [*lines, _table(("SETTING", "VALUE", "FROM"), values)] if values else lines
    ).rstrip()


def conformance(facts: Conformance) -> str:
    """The table of what works."""
    rows = [(finding.feature, finding.verdict.value, finding.said) for finding in facts.findings]
    return f"{facts.upstream} ({facts.api}, {facts.base_url}), model {facts.model}\n\n{_table(('FEATURE', 'VERDICT', ''), rows)}"


def _format_target(target: dict[str, str]) -> str:
    return (
        target["upstream"]
        if target["model"] == "as asked"
        else f"{target['upstream']} as {target['model']}"
    )


def _format_value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def request(facts: OperatorRequest) -> str:
    """What became of a request."""
    return f"{facts.id}: {'done' if facts.acted else 'recorded, not acted on yet'}: {facts.why}"


def drain_results(facts: Sequence[DrainResult]) -> str:
    """One line a process."""
    return "\n".join(
        f"{each.id}: {process_text(each.kind, each.pid, each.host)} {'has gone' if each.gone else 'is asked to go'}"
        for each in facts
    )


def _format_time(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; the last as it comes."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)), row[-1]]
        ).rstrip()
        for row in (head, *rows)
    )
