"""What was used and what it cost, in groups, with a download."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from starlette.responses import Response

from features.console.access import EVERYONE
from features.console.page import HEADERS, Page, PageError, Visit, choice, project_of
from models.csv_text import csv_text
from models.db.database import Pool, fetch_idempotent
from models.db.queries.organization import FIND_KEYS
from models.db.queries.usage import USAGE_SUMS, UsageSum
from models.ids import API_KEY, admin_id, parse_admin_id
from models.prices import PriceList, exact_cost

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


_PAGE = Bounds(rows=500, summed=50_000, entries=200_000)
_DOWNLOAD = Bounds(rows=50_000, summed=1_000_000, entries=1_000_000)
_DAY_CHOICES = {
    "1": "today",
    "yesterday": "yesterday",
    "7": "7 days",
    "30": "30 days",
    "90": "90 days",
}
_GROUPS = {
    "day": "day",
    "project": "project",
    "key": "key",
    "model": "model",
    "upstream": "upstream",
    "both": "project and model",
}
"""What a row is about."""
_PARAMETERS = ("by", "days", "day", "project", "key", "model", "upstream")
_NEXT_GROUP = {"day": "project", "project": "model", "key": "model", "upstream": "model"}
"""What a row is about -> by what the page shows that row alone."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the URL asks for."""

    group: str
    days: str
    """of _DAY_CHOICES; empty: a single day"""
    filter: UsageFilter
    mistakes: list[str]
    """names of which there is none"""


async def _read_wanted(visit: Visit) -> _Wanted:
    """Raises PageError (400)."""
    group = choice(visit.query, "by", _GROUPS, "project")
    day = _day(visit.text("day"))
    days = "" if day is not None else choice(visit.query, "days", _DAY_CHOICES, "7")
    first, last = (day, day) if day is not None else _bounds(days)
    mistakes = []
    if (name := visit.text("project")) is not None:
        project = await project_of(visit, name)
        if project is None:
            mistakes.append(f"There is no project {name}.")
    else:
        project = None
    if (text := visit.text("key")) is not None:
        key = await _key(visit, text)
        if key is None:
            mistakes.append(f"There is no key {text}, or several begin so.")
    else:
        key = None
    wanted = UsageFilter(first, last, project, key, visit.text("model"), visit.text("upstream"))
    return _Wanted(group, days, wanted, mistakes)


def _day(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise PageError(400, "No such day", "Write a day as 2026-01-31.") from None


def _bounds(days: str) -> tuple[date, date]:
    """The first and the last day."""
    today = datetime.now(UTC).date()
    if days == "yesterday":
        return today - timedelta(days=1), today - timedelta(days=1)
    return today - timedelta(days=int(days) - 1), today


async def _key(visit: Visit, text: str) -> UUID | None:
    """The key that an id or its first characters name; None: none, or several."""
    identifier = parse_admin_id(API_KEY, text)
    if identifier is not None:
        return identifier
    found = await fetch_idempotent(
        visit.pool, FIND_KEYS, {"name": text.rstrip("…"), "hash": None, "digits": None}
    )
    return found[0].id if len(found) == 1 else None


async def show(visit: Visit) -> Response:
    """The page."""
    wanted = await _read_wanted(visit)
    grouped: GroupedUsage | None = None
    if not wanted.mistakes:
        grouped = await read_sums(visit.pool, wanted.filter, wanted.group, _PAGE)
    settings = visit.state.settings
    has_prices = not PriceList(settings.prices, settings).is_empty
    has_costs = grouped is not None and grouped.total.cost is not None
    rows = [] if grouped is None else grouped.rows
    return visit.page(
        "usage.html",
        wanted=wanted,
        grouped=grouped,
        next_group=_NEXT_GROUP.get(wanted.group, "project"),
        groups=_GROUPS.items(),
        day_choices=_DAY_CHOICES.items(),
        has_prices=has_prices,
        shows_costs=has_prices or has_costs,
        most_cost=max((row.cost or 0 for row in rows), default=0),
        most_tokens=max((row.tokens for row in rows), default=0),
        currency=settings.prices.currency,
        key_text=key_text,
        download=visit.url("/usage/csv", **{name: visit.text(name) for name in _PARAMETERS}),
    )


async def download(visit: Visit) -> Response:
    """The same rows, as CSV."""
    wanted = await _read_wanted(visit)
    if wanted.mistakes:
        raise PageError(404, "Nothing to download", " ".join(wanted.mistakes))
    grouped = await read_sums(visit.pool, wanted.filter, wanted.group, _DOWNLOAD)
    if grouped.is_cut or grouped.is_partial:
        raise PageError(
            400, "Too much", "Choose fewer days, or a project. The command has no such limit."
        )
    text = sums_as_csv(grouped.rows, wanted.group, visit.state.settings.prices.currency)
    name = f"usage-{wanted.group}-{wanted.filter.first}-{wanted.filter.last}.csv"
    return Response(
        text,
        media_type="text/csv",
        headers={**HEADERS, "content-disposition": f'attachment; filename="{name}"'},
    )


PAGES = (
    Page("/usage", show, menu="Usage", roles=EVERYONE),
    Page("/usage/csv", download, roles=EVERYONE),
)
