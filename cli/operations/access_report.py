"""Projects and keys as text for people."""

import json
from collections.abc import Sequence

from cli.operations.keys import ListedKey
from cli.operations.projects import ListedProject, ShownProject
from cli.output import GREEN, GREY, clean, fitted_table, paint, table
from models.operator.text import format_date, format_seconds

_SHORT_ID = 18


def projects(facts: Sequence[ListedProject]) -> str:
    """One line per project."""
    if not facts:
        return "there is no project; the first key makes one"

    def rows(short: bool) -> list[tuple[str, ...]]:
        return [
            (
                clean(project.name),
                str(project.id)[:_SHORT_ID] if short else str(project.id),
                format_date(project.created_at),
                str(project.weight),
                _archived(project),
                clean(json.dumps(project.policy)) if project.policy else "",
            )
            for project in facts
        ]

    return fitted_table(("NAME", "ID", "CREATED", "WEIGHT", "STATE", "POLICY"), rows, ["NAME"])


def project(facts: ListedProject) -> str:
    """A project in several lines."""
    lines = [
        f"{clean(facts.name)}  {facts.id}",
        f"  {_archived(facts)}, created {format_date(facts.created_at)}, weight {facts.weight}",
        "  policy " + (json.dumps(facts.policy, indent=2) if facts.policy else "as the settings"),
    ]
    return "\n".join(lines)


def shown_project(facts: ShownProject) -> str:
    """A project in several lines, and a line for each quota."""
    rows = [
        (
            quota.name,
            "-" if quota.used is None else f"{quota.used:,}",
            "no limit" if quota.limit is None else f"{quota.limit:,}",
        )
        for quota in facts.quotas
    ]
    return f"{project(facts)}\n\n{table(('QUOTA', 'USED', 'LIMIT'), rows)}"


def _archived(facts: ListedProject) -> str:
    if facts.archived_at is None:
        return paint("active", GREEN)
    return paint(f"archived {format_date(facts.archived_at)}", GREY)


def keys(facts: Sequence[ListedKey]) -> str:
    """One line per key."""
    if not facts:
        return "there is no key"

    def rows(short: bool) -> list[tuple[str, ...]]:
        return [
            (
                f"{clean(key.prefix)}…",
                str(key.id)[:_SHORT_ID] if short else str(key.id),
                clean(key.project),
                clean(key.name or ""),
                ",".join(key.scopes),
                _ago(key.created_seconds) if short else format_date(key.created_at),
                _last_use(key, short=short),
                _validity(key, short=short),
            )
            for key in facts
        ]

    head = ("KEY", "ID", "PROJECT", "NAME", "SCOPES", "CREATED", "LAST USED", "STATE")
    return fitted_table(head, rows, ["PROJECT", "NAME"])


def _last_use(key: ListedKey, *, short: bool) -> str:
    if key.last_used_at is None or key.unused_seconds is None:
        return "never"
    return _ago(key.unused_seconds) if short else format_date(key.last_used_at)


def _validity(key: ListedKey, *, short: bool) -> str:
    if key.state == "valid":
        until = "" if short or key.expires_at is None else f" until {format_date(key.expires_at)}"
        return paint(f"valid{until}", GREEN)
    if key.revoked_at is not None and not short:
        return paint(f"revoked {format_date(key.revoked_at)}", GREY)
    return paint(key.state, GREY)


def _ago(seconds: float) -> str:
    return f"{format_seconds(seconds)} ago"
