"""What projects have used, for the command `backburner usage`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cli.errors import RequestRefused
from cli.output import clean, table
from features.tenants.project_listing import find_project
from models.db.database import Connection, fetch
from models.db.queries.leases import NOW
from models.db.queries.organization import LIST_PROJECTS
from models.db.queries.usage import USAGE, UsageRow

_HOUR, _DAY = 3600, 86_400
_LABELS = {
    "project": "project_id",
    "key": "api_key_id",
    "model": "model",
    "upstream": "upstream",
    "tier": "service_tier",
}
GROUPS = ("day", "hour", *_LABELS)
_COUNTS = ("requests", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which usage is wanted. None: all."""

    project: str | None
    model: str | None
    since: timedelta


async def usage(
    database: Connection, wanted: UsageFilter, by: Sequence[str]
) -> list[dict[str, Any]]:
    """Sums, one for each group: `by` names what they are grouped by, and their first keys. Raises
    RequestRefused."""
    unknown = sorted(set(by) - set(GROUPS))
    if unknown:
        raise RequestRefused(f"usage cannot be grouped by {clean(unknown[0])}")
    [now] = await fetch(database, NOW, {})
    width = _HOUR if "hour" in by else _DAY
    project = None if wanted.project is None else await find_project(database, wanted.project)
    values = {
        "first": int((now - wanted.since).timestamp()) // width * width,
        "last": int(now.timestamp()) + 1,
        "width": width,
        "kind": None,
        "batch": None,
        "group_by": [_LABELS[name] for name in by if name in _LABELS],
        "project_ids": None if project is None else [project.id],
        "api_key_ids": None,
        "models": None if wanted.model is None else [wanted.model],
        "max_rows": None,
    }
    rows = await fetch(database, USAGE, values)
    names = await _project_names(database) if "project" in by else {}
    sums: dict[tuple[str, ...], dict[str, int]] = {}
    for row in rows:
        labels = tuple(_label(row, name, names) for name in by)
        group = sums.setdefault(labels, dict.fromkeys(_COUNTS, 0))
        for count in _COUNTS:
            group[count] += getattr(row, count)
    return [dict(zip(by, labels, strict=True)) | counts for labels, counts in sums.items()]


def usage_text(facts: Sequence[dict[str, Any]]) -> str:
    """One line per group."""
    if not facts:
        return "nothing was used"
    head = [name.upper().replace("_", " ") for name in facts[0]]
    return table(head, [[clean(str(value)) for value in row.values()] for row in facts])


async def _project_names(database: Connection) -> dict[str, str]:
    values = {"include_archived": True, "after": None, "max_rows": 100_000}
    return {str(row.id): row.name for row in await fetch(database, LIST_PROJECTS, values)}


def _label(row: UsageRow, name: str, projects: dict[str, str]) -> str:
    if name in ("day", "hour"):
        begin = datetime.fromtimestamp(row.bucket, UTC)
        return f"{begin:%Y-%m-%d}" if name == "day" else f"{begin:%Y-%m-%dT%H:00Z}"
    value = str(getattr(row, _LABELS[name]) or "")
    return projects.get(value, value) if name == "project" else value
