"""Facts about responses and processes as text for people. Reads nothing but the terminal's
width."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from cli.output import (
    GREEN,
    GREY,
    RED,
    YELLOW,
    as_json,
    clean,
    clean_lines,
    fitted_table,
    paint,
    wrap,
)
from features.operator.diagnosis import process_text
from features.operator.facts import (
    DrainResult,
    Explanation,
    OperatorRequest,
    ProcessState,
    ResponseList,
    ResponseReport,
    StuckResponses,
)
from models.time_text import format_date, format_seconds, format_time

SHORT_ID = 16
"""Hexadecimal digits of a short id: its time, to a quarter of a microsecond."""
_SHORT_RESPONSE_ID = len("resp_") + SHORT_ID
_SHORT_PROCESS_ID = SHORT_ID + 2
"""With two dashes."""
_INDENT = "    "
_COLOURS = {
    "completed": GREEN,
    "live": GREEN,
    "in_progress": YELLOW,
    "draining": YELLOW,
    "silent": YELLOW,
    "failed": RED,
    "dead": RED,
    "incomplete": RED,
    "cancelled": GREY,
    "stopped": GREY,
}


def state_text(state: str) -> str:
    """A status of a response or a state of a process, in its colour."""
    return paint(state, _COLOURS.get(state))


def explanation(facts: Explanation) -> str:
    """The timeline, and the present state below it."""
    first = facts.timeline[0].at
    lines = [f"{facts.response.id}, created {format_time(first)}"]
    lines += [
        _timeline_line(f"{(event.at - first) / timedelta(seconds=1):>+12.3f} s", event.text)
        for event in facts.timeline
    ]
    published = (
        f"; events up to {facts.journalled} were published" if facts.journalled is not None else ""
    )
    return "\n".join([*lines, _timeline_line("now", f"{facts.response.why}{published}")])


def _timeline_line(when: str, text: str) -> str:
    return wrap(clean(text), " " * 16, f"{when:>14}  ")


def stuck(facts: StuckResponses) -> str:
    """One line per response; on a terminal one more with the reason."""
    if not facts.responses:
        return (
            f"no open response has been without progress for longer than {facts.idle_seconds:g} s"
        )

    def rows(short: bool) -> list[tuple[str, ...]]:
        return [
            (
                short_response_id(each.id) if short else each.id,
                each.state,
                format_seconds(each.idle_seconds),
                str(each.attempt),
                clean(each.why),
            )
            for each in facts.responses
        ]

    text = fitted_table(("RESPONSE", "STATE", "IDLE", "ATTEMPT", "WHY"), rows)
    return f"{text}\n… and more" if facts.more else text


def workers(facts: Sequence[ProcessState]) -> str:
    """One line per process."""
    if not facts:
        return "no process has registered"

    def rows(short: bool) -> list[tuple[str, ...]]:
        return [
            (
                str(process.id)[:_SHORT_PROCESS_ID] if short else str(process.id),
                process.kind,
                process.host,
                str(process.pid),
                state_text(process.state),
                _age(process) if short else format_time(process.started_at),
                f"{process.lease_seconds:.1f} s" if process.ended is None else "",
                str(process.running),
                _ended_text(process),
            )
            for process in facts
        ]

    head = ("ID", "KIND", "HOST", "PID", "STATE", "STARTED", "LEASE", "RUNS", "ENDED")
    return fitted_table(head, rows, ["HOST"])


def _age(process: ProcessState) -> str:
    return format_seconds(process.age_seconds)


def _ended_text(process: ProcessState) -> str:
    """How it ended, where its state does not show that."""
    return "" if process.state == "stopped" else process.ended or ""


def short_response_id(public_id: str) -> str:
    """The beginning of a response's id, which commands accept if it is unique."""
    return public_id[:_SHORT_RESPONSE_ID]


def request(facts: OperatorRequest) -> str:
    """What happened to a request."""
    if facts.refused:
        return f"{facts.id}: {paint('not done', RED)}: {clean(facts.why)}"
    outcome = "done" if facts.acted else "recorded, not acted on yet"
    return f"{facts.id}: {outcome}: {clean(facts.why)}"


def requests(facts: Sequence[OperatorRequest]) -> str:
    """One line per response."""
    return "\n".join(map(request, facts))


def intention(action: str, facts: ResponseList) -> str:
    """What an action with a filter would do."""
    if not facts.responses:
        return "No open response fits; nothing was done."
    count = f"{'more than ' if facts.more else ''}{len(facts.responses)}"
    return f"Nothing was done. With --yes: {action} {count} {_noun(len(facts.responses))}."


def _noun(count: int) -> str:
    return "response" if count == 1 else "responses"


def responses(facts: ResponseList) -> str:
    """One line per response."""
    if not facts.responses:
        if facts.since_seconds is None:
            return "no response fits"
        return (
            f"no response of the last {format_seconds(facts.since_seconds)} fits; "
            "--since 30d looks further back"
        )

    def rows(short: bool) -> list[tuple[str, ...]]:
        return [
            (
                short_response_id(each.id) if short else each.id,
                state_text(each.status),
                format_seconds(each.age_seconds) if short else format_date(each.created_at),
                "" if each.run_seconds is None else format_seconds(each.run_seconds),
                clean(each.model),
                each.upstream or "",
                each.reason if each.reason and each.reason != each.status else "",
            )
            for each in facts.responses
        ]

    head = ("RESPONSE", "STATUS", "CREATED", "RAN", "MODEL", "UPSTREAM", "REASON")
    text = fitted_table(head, rows, ["MODEL", "UPSTREAM"])
    return f"{text}\n… and more; --limit shows them" if facts.more else text


def response(facts: ResponseReport) -> str:
    """One line per fact."""
    mode = "background" if facts.background else "foreground"
    shown = {
        "status": state_text(facts.status),
        "now": clean(facts.why),
        "reason": facts.reason,
        "error": clean(facts.error["message"]) if facts.error else None,
        "model": clean(facts.model),
        "upstream": facts.upstream,
        "project": facts.project,
        "mode": mode if facts.store else f"{mode}, not to be stored",
        "continues": facts.conversation or facts.previous_response,
        "created": format_date(facts.created_at),
        "first claim": format_date(facts.started_at) if facts.started_at else None,
        "ended": format_date(facts.completed_at) if facts.completed_at else None,
        "deadline": None if facts.completed_at else format_date(facts.deadline),
        "kept until": format_date(facts.expires_at) if facts.store else None,
        "attempts": str(facts.attempt),
        "turns": str(facts.turns),
        "tool calls": str(facts.tool_calls),
        "items": f"{facts.input_items} input, {facts.output_items} output",
        "tokens": None
        if facts.input_tokens is None
        else f"{facts.input_tokens} input, {facts.output_tokens} output",
        "deleted": "hidden from the API; the purge deletes it" if facts.deleted else None,
    }
    lines = [facts.id]
    lines += [
        wrap(text, " " * 13, f"{name:>11}  ") for name, text in shown.items() if text is not None
    ]
    for item in facts.output or ():
        lines.append(f"{item.get('type', 'item')}:")
        lines += [_INDENT + line for line in _item_text(item).split("\n")]
    return "\n".join(lines)


def _item_text(item: Mapping[str, Any]) -> str:
    """What a person reads of an item: the text of a message, or its JSON."""
    parts = item.get("content")
    texts = [part.get("text") or part.get("refusal") for part in parts or ()]
    if item.get("type") != "message" or None in texts:
        return as_json(item)
    return "\n".join(clean_lines(text) for text in texts)


def audit(entries: Sequence[Mapping[str, Any]]) -> str:
    """One line per entry."""
    if not entries:
        return "there is no such entry"

    def rows(_short: bool) -> list[tuple[str, ...]]:
        return [
            (
                entry["at"],
                _actor(entry),
                clean(entry.get("project", "")),
                entry["action"],
                clean(entry.get("object", "")),
                entry["outcome"],
                entry["id"],
                " ".join(f"{name}={value}" for name, value in entry.get("details", {}).items()),
            )
            for entry in entries
        ]

    return fitted_table(
        ("TIME", "WHO", "PROJECT", "ACTION", "OBJECT", "OUTCOME", "ENTRY", "DETAILS"),
        rows,
        ["OBJECT"],
    )


def _actor(entry: Mapping[str, Any]) -> str:
    """The operator, the key's first characters, or the address."""
    who = entry.get("os_user") or entry.get("key_prefix", "")
    place = entry.get("address", "")
    return clean(" ".join(filter(None, (who, f"from {place}" if place else entry["actor"]))))


def drain_results(facts: Sequence[DrainResult]) -> str:
    """One line per process."""
    return "\n".join(
        f"{process.id}: {process_text(process.kind, process.pid, process.host)} "
        f"{'has exited' if process.gone else 'was asked to exit'}"
        for process in facts
    )
