"""What one cell shows of itself: rows of text, with the columns of each view."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from features.cells.queries import VALID_KEYS_OF_CELL
from features.operator.filter import LAST_ID
from features.tenants.usage_pages import Bounds, UsageFilter, read_sums
from models.db.database import Pool, fetch_idempotent
from models.db.queries.audit import LIST
from models.db.queries.organization import LIST_PROJECTS
from models.ids import PROJECT, admin_id
from models.prices import exact_cost
from models.time_text import format_time

Rows = list[dict[str, str]]

MAX_ROWS = 500
"""Rows of a cell. There may be more."""
COLUMNS = {
    "projects": ("project", "id", "weight", "created"),
    "keys": ("key", "project", "name", "scopes", "last_used"),
    "usage": ("project", "requests", "input_tokens", "output_tokens", "cost"),
    "audit": ("time", "who", "project", "action", "object", "outcome"),
}
"""View -> its columns."""
_USAGE_DAYS = 7
_BOUNDS = Bounds(rows=MAX_ROWS, summed=50_000, entries=200_000)


async def read_view(pool: Pool, view: str) -> Rows:
    """The rows of a view, at most MAX_ROWS. `view`: one of COLUMNS."""
    found = await _READ[view](pool)
    return [
        {name: _text(value) for name, value in zip(COLUMNS[view], row, strict=True)}
        for row in found
    ]


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case datetime():
            return format_time(value)
        case list():
            return ",".join(value)
    return str(value)


async def _projects(pool: Pool) -> list[tuple[Any, ...]]:
    values = {"include_archived": False, "after": None, "max_rows": MAX_ROWS}
    return [
        (row.name, admin_id(PROJECT, row.id), row.weight, row.created_at)
        for row in await fetch_idempotent(pool, LIST_PROJECTS, values)
    ]


async def _keys(pool: Pool) -> list[tuple[Any, ...]]:
    return [
        (f"{row.prefix}…", row.project, row.name, row.scopes, row.last_used_at)
        for row in await fetch_idempotent(pool, VALID_KEYS_OF_CELL, {"max_rows": MAX_ROWS})
    ]


async def _usage(pool: Pool) -> list[tuple[Any, ...]]:
    """Of the last seven days."""
    today = datetime.now(UTC).date()
    wanted = UsageFilter(today - timedelta(days=_USAGE_DAYS - 1), today)
    found = await read_sums(pool, wanted, "project", _BOUNDS)
    return [
        (
            row.project,
            row.requests,
            row.input_tokens,
            row.output_tokens,
            None if row.cost is None else exact_cost(row.cost),
        )
        for row in found.rows
    ]


async def _audit(pool: Pool) -> list[tuple[Any, ...]]:
    """The newest entries."""
    position = {"at": datetime.max.replace(tzinfo=UTC), "id": LAST_ID, "max_rows": MAX_ROWS}
    values = {"since": None, "project": None, "action": None, **position}
    return [
        (
            row.at,
            row.os_user or row.key_prefix or row.address or row.actor,
            row.project,
            row.action,
            row.object,
            row.outcome,
        )
        for row in await fetch_idempotent(pool, LIST, values)
    ]


_READ: dict[str, Callable[[Pool], Awaitable[list[tuple[Any, ...]]]]] = {
    "projects": _projects,
    "keys": _keys,
    "usage": _usage,
    "audit": _audit,
}
