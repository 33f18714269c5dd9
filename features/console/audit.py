"""The audit log: who did what, when and to what. It is read backwards in time, in parts, until the
page is full or the time of a search is up."""

import json
import time
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.page import PAGE_SIZE, Page, PageError, Visit
from features.operator.filter import LAST_ID
from models.db.database import Pool, fetch_idempotent, find_by_id
from models.db.queries import audit
from models.db.queries.audit import AuditRow

_FIRST_PART = 1_000
"""Entries that are looked at together; each further part has twice as many."""
_LARGEST_PART = 16_000
_BUDGET = 0.1
"""Seconds after which a search stops and says how far it has looked."""
_LAST_TIME = datetime.max.replace(tzinfo=UTC)
_PAGES = {
    "resp_": "/responses",
    "batch_": "/batches",
    "sched_": "/schedules",
    "whe_": "/webhooks",
    "vs_": "/vector-stores",
}
"""The beginnings of ids, and the pages about such things."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as it is shown."""

    row: AuditRow
    who: str
    """the operator, the first characters of the key, or the address"""
    details: str
    link: str | None
    """the page about its object, below the console"""


@dataclass(slots=True)
class Found:
    """A page of entries."""

    rows: list[AuditRow] = field(default_factory=list)
    next: UUID | None = None
    """behind which entry the next page begins; None: this is the last one"""
    looked_back_to: datetime | None = None
    """The search stopped here before the page was full; None: it did not."""


@dataclass(frozen=True, slots=True)
class _Days:
    """The days, in UTC, of which entries are shown."""

    begin: datetime | None
    end: datetime
    """behind the last day"""


async def show(visit: Visit) -> Response:
    """The page."""
    days = _days(visit.query)
    filters = {name: visit.text(name) for name in ("who", "action", "project")}
    position = await _position(visit, days)
    found = await find(visit.pool, {**filters, "begin": days.begin}, position)
    return visit.page(
        "audit.html",
        entries=[_entry(visit, row) for row in found.rows],
        found=found,
        actions=sorted(audit.ACTIONS | {each.partition(".")[0] for each in audit.ACTIONS}),
        is_first="before" not in visit.query,
    )


def _days(query: QueryParams) -> _Days:
    """Raises PageError (400) for what is no date."""
    first, last = _date(query.get("from", "")), _date(query.get("to", ""))
    begin = None if first is None else datetime(first.year, first.month, first.day, tzinfo=UTC)
    if last is None or last == date.max:
        return _Days(begin, _LAST_TIME)
    return _Days(begin, datetime(last.year, last.month, last.day, tzinfo=UTC) + timedelta(days=1))


def _date(text: str) -> date | None:
    if not text.strip():
        return None
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise PageError(400, "No such day", "Write a day as 2026-01-31.") from None


async def _position(visit: Visit, days: _Days) -> tuple[datetime, UUID]:
    """Before which the page begins. Raises PageError (400)."""
    text = visit.query.get("before")
    if text is None:
        return (_LAST_TIME, LAST_ID) if days.end == _LAST_TIME else (days.end, UUID(int=0))
    try:
        row = await find_by_id(visit.pool, audit.FIND, UUID(text))
    except ValueError:
        row = None
    if row is None:
        raise PageError(400, "No such page", "The position of this page is no entry of the log.")
    return row.at, row.id


async def find(pool: Pool, values: dict[str, Any], position: tuple[datetime, UUID]) -> Found:
    """The newest entries before a position that fit. `values`: the filter of `audit.LOOK`."""
    started, size, rows = time.monotonic(), _FIRST_PART, list[AuditRow]()
    while True:
        part_started = time.monotonic()
        part = values | {"at": position[0], "id": position[1], "look_at": size}
        missing = PAGE_SIZE + 1 - len(rows)
        rows += await fetch_idempotent(pool, audit.LOOK, part | {"max_rows": missing})
        ends = await fetch_idempotent(pool, audit.LOOK_END, part)
        if len(rows) > PAGE_SIZE:
            return Found(rows[:PAGE_SIZE], rows[PAGE_SIZE - 1].id)
        if not ends:
            return Found(rows)
        position, size = (ends[0].at, ends[0].id), min(2 * size, _LARGEST_PART)
        now = time.monotonic()
        # The next part takes as long as this one at least.
        if (now - started) + (now - part_started) > _BUDGET:
            return Found(rows, ends[0].id, ends[0].at)


def _entry(visit: Visit, row: AuditRow) -> Entry:
    details = ", ".join(f"{name}: {_text(value)}" for name, value in row.details.items())
    return Entry(
        row, row.os_user or row.key_prefix or row.address or row.actor, details, _link(visit, row)
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _link(visit: Visit, row: AuditRow) -> str | None:
    if row.object is None:
        return None
    if row.action.startswith("project."):
        return visit.url("/projects", name=row.object)
    for beginning, page in _PAGES.items():
        if row.object.startswith(beginning) and visit.has_page(page):
            return visit.url(f"{page}/{row.object}")
    return None


PAGES = (Page("/audit", show, menu="Audit"),)
