"""What was used, in groups: the rows of the page and of its download."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from uuid import UUID

from models.csv_text import csv_text
from models.db.database import Pool, fetch_idempotent
from models.db.queries.usage import USAGE_SUMS, UsageSum
from models.ids import API_KEY, admin_id
from models.prices import exact_cost

LABELS = {
    "day": ("day",),
    "project": ("project_id",),
    "key": ("api_key_id",),
    "model": ("model",),
    "upstream": ("upstream",),
    "both": ("project_id", "model"),
}
"""What a row is about -> the labels that it is grouped by."""
_HEADS = {
    "day": ("day",),
    "project_id": ("project",),
    "api_key_id": ("key", "key_name", "project"),
    "model": ("model",),
    "upstream": ("upstream",),
}
"""Label -> its columns in the download."""
_COUNTS = ("requests", "input_tokens", "cached_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which usage is summed up. None: any."""

    first: date
    last: date
    project: UUID | None = None
    key: UUID | None = None
    model: str | None = None
    upstream: str | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is read at most."""

    rows: int
    """of the result"""
    summed: int
    """rows of days, and as many of hours"""
    entries: int
    """entries of the last minutes"""


@dataclass(frozen=True, slots=True)
class GroupedUsage:
    """Sums of groups."""

    total: UsageSum
    rows: list[UsageSum]
    is_cut: bool
    """There are more groups."""
    is_partial: bool
    """There is more usage than was read: the sums are too small."""


async def read_sums(pool: Pool, wanted: UsageFilter, by: str, bounds: Bounds) -> GroupedUsage:
    """Sums up the usage that fits. `by`: one of LABELS."""
    values = {
        "first": wanted.first,
        "last": wanted.last,
        "project": wanted.project,
        "key": wanted.key,
        "model": wanted.model,
        "upstream": wanted.upstream,
        "group_by": list(LABELS[by]),
        "max_summed": bounds.summed,
        "max_entries": bounds.entries,
        "max_rows": bounds.rows + 2,
    }
    total, *rows = await fetch_idempotent(pool, USAGE_SUMS, values)
    return GroupedUsage(
        total,
        rows[: bounds.rows],
        is_cut=len(rows) > bounds.rows,
        is_partial=total.summed_rows >= bounds.summed or total.entries >= bounds.entries,
    )


def sums_as_csv(rows: Sequence[UsageSum], by: str, currency: str) -> str:
    """The rows for a spreadsheet: the labels, counts, the known cost with all its digits, and how
    many requests have none."""
    labels = LABELS[by]
    head = [name for label in labels for name in _HEADS[label]]
    lines = [
        [
            *(value for label in labels for value in _label_cells(row, label)),
            *(getattr(row, name) for name in _COUNTS),
            None if row.cost is None else exact_cost(row.cost),
            currency,
            row.unpriced,
        ]
        for row in rows
    ]
    return csv_text([*head, *_COUNTS, "cost", "currency", "requests_without_cost"], lines)


def _label_cells(row: UsageSum, label: str) -> tuple[object, ...]:
    match label:
        case "day":
            return (None if row.day is None else row.day.isoformat(),)
        case "project_id":
            return (row.project,)
        case "api_key_id":
            return (key_text(row.key_id, row.key), row.key_name, row.project)
        case _:
            return (getattr(row, label),)


def key_text(key_id: UUID | None, prefix: str | None) -> str | None:
    """How a key is named: by its first characters; a deleted one by its id."""
    if key_id is None or prefix is not None:
        return prefix
    return admin_id(API_KEY, key_id)
