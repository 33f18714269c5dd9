"""Projects as text for people."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.operations.projects import ListedProject
from cli.output import GREEN, GREY, clean, fitted_table, paint, table
from models.operator.text import format_date

if TYPE_CHECKING:
    from cli.operations.shown_project import ShownProject

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


def shown_project(facts: "ShownProject") -> str:
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
