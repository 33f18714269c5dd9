"""Responses by what their search documents have: words of input and output, and what clients have
set (models/db/queries/search_documents.py).

A search goes back in time by ranges, each twice as long as the one before. So a rare word is found
in all that is kept by a few statements, and a frequent one fills the page with the first of them.
Documents come soon after the end of a response. Unless words are wanted, the newest responses and
the open ones are therefore read as well.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any
from uuid import UUID

import psycopg

from features.operator.filter import FIRST_ID, LAST_ID, Filter, Names
from models.db.database import Connection, Pool, fetch, fetch_idempotent
from models.db.queries import listing, operations, search_documents
from models.db.queries.listing import ListedResponseRow
from models.db.statement import column
from models.keys import key_prefix
from models.search_text import MINUTE_MS, Minutes, marks_query, minute_of, search_words

NEWEST = 1_000
"""Responses that are read whether or not they have documents."""
MAX_OPEN = 20_000
"""Open responses up to which all of them are read."""
_FIRST_MINUTES = 16
_CLOCKS = 60
"""Minutes by which the clocks of web processes may differ from this one."""
_MAX_NAMES = 2_000
"""Projects whose names are compared, and keys of one name."""
_STATEMENT_TIME = column("SELECT set_config('statement_timeout', '1s', true)", str)
"""The limit of a statement of a search, until the transaction ends."""


@dataclass(slots=True)
class Found:
    """A page of a list."""

    rows: list[ListedResponseRow]
    next_before: UUID | None = None
    """where the next page begins; None: this is the last one"""
    looked_back_to: datetime | None = None
    """The search stopped here before the page was full; None: it did not."""

    @classmethod
    def page(cls, rows: list[ListedResponseRow], limit: int) -> "Found":
        """The first `limit` of `rows`."""
        return cls(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)


class SearchTooSlow(Exception):
    """The first statement of a search has reached its time limit."""


async def look_up(database: Connection, wanted: Filter) -> tuple[Filter, list[str]]:
    """The filter with what its names stand for, and a sentence for each name that nothing has and
    each text that has no word."""
    mistakes, project, keys = [], None, list[UUID]()
    if wanted.project is not None and (wanted.is_exact or "*" not in wanted.project):
        found = await fetch(database, listing.PROJECT_NAMED, {"name": wanted.project})
        project = found[0] if found else None
        if project is None:
            mistakes.append(await _no_project(database, wanted.project))
    if wanted.key is not None:
        prefix = key_prefix(wanted.key)
        values = {"key": wanted.key, "prefix": prefix, "max_rows": _MAX_NAMES}
        keys = await fetch(database, listing.KEYS_NAMED, values)
        if not keys:
            mistakes.append(
                f"There is no key that is named {wanted.key[:50]} or begins with these characters."
            )
    if wanted.text is not None and search_words(wanted.text) is None:
        mistakes.append("There is no word in the text to search for.")
    return replace(wanted, names=Names(project, tuple(keys))), mistakes


async def _no_project(database: Connection, name: str) -> str:
    names = await fetch(database, listing.PROJECT_NAMES, {"max_rows": _MAX_NAMES})
    near = get_close_matches(name, names, n=3)
    begin = [each for each in names if each.startswith(name)][:3]
    meant = list(dict.fromkeys([*near, *begin]))[:3]
    hint = f" Did you mean {' or '.join(meant)}?" if meant else ""
    return f"There is no project {name[:50]}.{hint}"


async def search(
    database: Connection,
    wanted: Filter,
    before: UUID,
    limit: int,
    *,
    texts: bool,
    budget: float,
) -> Found:
    """A page of the newest responses before an id that fit a filter that was looked up. No range is
    begun after `budget` seconds. `texts`: whether the settings let texts be searched. Raises
    SearchTooSlow."""
    async with database.transaction():
        await fetch(database, _STATEMENT_TIME, {})
        started = time.monotonic()
        values = wanted.values(limit + 1, before) | wanted.document_values() | {"texts": texts}
        newest, open_rows, top = list[ListedResponseRow](), list[ListedResponseRow](), before
        if wanted.text is None:
            newest, open_rows, top = await _undocumented(database, values, before)
        older, stopped = await _documented(
            database, values, top, limit + 1 - len(newest), started + budget
        )
    rows = {row.id: row for row in (*newest, *open_rows, *older)}
    ordered = sorted(rows.values(), key=lambda row: row.id, reverse=True)
    if stopped is None:
        return Found.page(ordered, limit)
    found = Found.page([row for row in ordered if row.id >= stopped], limit)
    if found.next_before is None:
        found.next_before, found.looked_back_to = stopped, _created_at(stopped)
    return found


async def _undocumented(
    database: Connection, values: Mapping[str, Any], before: UUID
) -> tuple[list[ListedResponseRow], list[ListedResponseRow], UUID]:
    """Those that fit of the newest responses, and of the open ones; and the id before which
    documents are searched."""
    newest = {"since": None, "before": LAST_ID, "rows": NEWEST}
    ends = await fetch(database, listing.CHUNK_END, newest)
    down_to = ends[0].id if ends else FIRST_ID
    rows = []
    if before > down_to:
        rows = await fetch(database, listing.LIST_RESPONSES, {**values, "down_to": down_to})
    open_rows = []
    if ends and await has_few_open(database):
        open_rows = await fetch(database, listing.LIST_OPEN_RESPONSES, values)
    return rows, open_rows, min(before, down_to)


async def has_few_open(database: Pool | Connection) -> bool:
    """So few responses are open that all of them may be read."""
    limit = {"max_rows": MAX_OPEN + 1}
    return (await fetch_idempotent(database, operations.OPEN_COUNT, limit))[0] <= MAX_OPEN


async def _documented(
    database: Connection, values: Mapping[str, Any], before: UUID, wanted: int, until: float
) -> tuple[list[ListedResponseRow], UUID | None]:
    """Up to `wanted` responses before an id, by their documents; and the id down to which was
    searched, if it stopped at the time `until`."""
    oldest = await fetch(database, search_documents.OLDEST_DOCUMENT, {})
    if wanted <= 0 or not oldest or before <= oldest[0]:
        return [], None
    now = int(time.time() * 1000) // MINUTE_MS
    first = minute_of(oldest[0])
    if (since := values["since"]) is not None:
        first = max(first, now - since // timedelta(minutes=1) - _CLOCKS)
    end = min(minute_of(before) + 1, now + _CLOCKS)
    minutes = Minutes(max(first, min(end, now) - _FIRST_MINUTES), end)
    rows = list[ListedResponseRow]()
    while minutes.begin < minutes.end:
        started = time.monotonic()
        ranged: dict[str, Any] = {
            "times": marks_query(minutes.marks()),
            "before": before,
            "down_to": minutes.first_id,
            "max_rows": wanted - len(rows),
        }
        try:
            async with database.transaction():
                rows += await fetch(database, listing.SEARCH_RESPONSES, {**values, **ranged})
        except psycopg.errors.QueryCanceled:
            if minutes.end == end:
                raise SearchTooSlow from None
            return rows, Minutes(minutes.end, minutes.end).first_id
        if len(rows) >= wanted:
            break
        seconds = time.monotonic() - started
        minutes = minutes.before(first)
        # The next range is twice as long, and takes as long as both before it if the words are
        # frequent.
        if minutes.begin < minutes.end and time.monotonic() + 2 * seconds > until:
            return rows, Minutes(minutes.end, minutes.end).first_id
    return rows, None


def _created_at(response: UUID) -> datetime:
    return datetime.fromtimestamp((response.int >> 80) / 1000, UTC)


async def searchable_from(database: Pool | Connection) -> datetime | None:
    """Responses that ended before this release was installed get their documents by and by, the
    newest first. Older ones than this have none yet; None: all have them."""
    [walk] = await fetch_idempotent(database, search_documents.WALK_STATE, {})
    if walk.completed_at is not None:
        return None
    return datetime.now(UTC) if walk.position == LAST_ID else _created_at(walk.position)
