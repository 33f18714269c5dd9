"""The list of responses: filters in the URL, pages, counts, and what an operator does to those that
are selected."""

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.access import EVERYONE
from features.console.content import read_previews
from features.console.notice import Notice, outcome
from features.console.page import PAGE_SIZE, Page, PageError, Visit, back_path, choice
from features.console.saved_filters import Choices, near_model, read_choices, read_saved_filters
from features.operator import document_search, service
from features.operator.diagnosis import diagnose
from features.operator.document_search import Found, SearchTooSlow, has_few_open, look_up
from features.operator.filter import DEFAULT_SINCE, FIRST_ID, LAST_ID, Filter, id_range
from features.operator.history import live_counts
from features.operator.service import Action
from models.db.database import Pool, fetch_idempotent, find_by_id
from models.db.queries import listing, operations
from models.ids import parse_response_id, response_id
from models.lifecycle import OperatorStatus
from models.redis.channels import control
from models.redis.client import REDIS_ERRORS
from models.time_text import format_duration, parse_duration
from models.windows import CompletionWindow

_COUNTED = 10_000
"""The newest responses that are counted by status."""
_COUNTED_WITH_PARAMETERS = 2_000
"""The same if what clients have set has to be read."""
_FIRST_CHUNK = 1_000
"""Responses that are looked at together; each further chunk has twice as many."""
_LARGEST_CHUNK = 4_000
_BUDGET = 0.1
"""Seconds after which a search stops and says how far it has looked."""
_MAX_FIELD = 200
_TEXTS = (
    *("project", "model", "upstream", "reason", "continuation"),
    *("text", "user", "safety_identifier", "prompt_cache_key", "key"),
)
"""The parameters that are fields of a filter as they are."""
_SINCE_CHOICES = ("1h", "6h", "24h", "7d", "30d")
MOST_SELECTED = 100
"""Responses of one action."""
_MEANINGS = {
    Action.CANCEL: "They end as cancelled, as if their clients had cancelled them. Output so far "
    "is kept.",
    Action.REQUEUE: "Their workers release them, and a worker claims them again; deferred ones at "
    "once. The current turn is repeated. A tool call that runs is repeated only if that is safe.",
    Action.FAIL: "They end as failed, reason failed_by_operator. Output so far is kept.",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the URL asks for."""

    filter: Filter
    before: UUID
    id_text: str
    mistakes: list[str]
    """sentences about parameters that cannot be read"""


def read_wanted(query: QueryParams) -> Wanted:
    """The filter of a URL."""
    mistakes: list[str] = []
    statuses = []
    for name in query.getlist("status"):
        if name in list(OperatorStatus):
            statuses.append(OperatorStatus(name))
        elif name:
            known = ", ".join(OperatorStatus)
            mistakes.append(f"There is no status {name[:50]}; there are {known}.")
    texts: dict[str, Any] = {
        name: query.get(name, "").strip()[:_MAX_FIELD] or None for name in _TEXTS
    }
    window = query.get("window", "").strip() or None
    if window is not None and window not in list(CompletionWindow):
        known = ", ".join(CompletionWindow)
        mistakes.append(f"There is no window {window[:50]}; there are {known}.")
        window = None
    before = LAST_ID
    if (cursor := query.get("before")) is not None:
        before = parse_response_id(cursor) or LAST_ID
        if before == LAST_ID:
            mistakes.append("The position of this page is no id of a response.")
    return Wanted(
        Filter(
            statuses=statuses or None,
            **texts,
            since=_since(query.get("since", "").strip(), mistakes),
            metadata=_metadata(query.get("metadata", "").strip(), mistakes),
            window=window,
            missed=query.get("missed") == "yes",
        ),
        before,
        query.get("id", "").strip()[:_MAX_FIELD],
        mistakes,
    )


def _since(text: str, mistakes: list[str]) -> timedelta | None:
    if not text:
        return None
    try:
        since = parse_duration(text)
    except OverflowError:
        since = None
    if since is None or not timedelta(0) < since <= timedelta(days=36_500):
        mistakes.append(f"{text[:50]} is no duration such as 90s, 15m, 6h or 7d.")
        return None
    return since


def _metadata(text: str, mistakes: list[str]) -> tuple[str, str] | None:
    if not text:
        return None
    key, mark, value = text.partition("=")
    if not mark or not key.strip():
        mistakes.append("Write metadata as key=value.")
        return None
    return key.strip()[:_MAX_FIELD], value.strip()[: _MAX_FIELD * 5]


async def find(
    pool: Pool,
    wanted: Filter,
    before: UUID,
    limit: int,
    budget: float = _BUDGET,
    *,
    texts: bool = True,
) -> Found:
    """A page of the newest responses before an id. It reads a bounded number of rows, and no more
    after `budget` seconds. `texts`: as for `document_search.search`, which raises SearchTooSlow."""
    if wanted.searches_documents and (wanted.text is not None or not wanted.is_open_only):
        async with pool.connection() as connection:
            return await document_search.search(
                connection, wanted, before, limit, texts=texts, budget=budget
            )
    values = wanted.values(limit + 1, before)
    scan = listing.scan_of_upstream(values["statuses"], wanted.upstream)
    if scan is not None:
        return await _search(pool, values, limit, budget, scan)
    if wanted.is_open_only and await has_few_open(pool):
        rows = await fetch_idempotent(pool, listing.LIST_OPEN_RESPONSES, values)
        return Found.page(rows, limit)
    return await _search(pool, values, limit, budget)


async def _search(
    pool: Pool,
    values: dict[str, Any],
    limit: int,
    budget: float,
    scan: listing.ListScan = listing.SCAN_OF_ALL,
) -> Found:
    """Looks at chunks of responses, the newest first, until the page is full or the time is up."""
    started, chunk = time.monotonic(), _FIRST_CHUNK
    position, rows = values["before"], list[listing.ListedResponseRow]()
    while True:
        chunk_started = time.monotonic()
        chunk_values = values | {"before": position, "rows": chunk}
        ends = await fetch_idempotent(pool, scan.chunk_end, chunk_values)
        down_to = ends[0].id if ends else FIRST_ID
        wanted = {"before": position, "down_to": down_to, "max_rows": limit + 1 - len(rows)}
        rows += await fetch_idempotent(pool, scan.rows, values | wanted)
        if len(rows) > limit or not ends:
            return Found.page(rows, limit)
        position, chunk = down_to, min(2 * chunk, _LARGEST_CHUNK)
        now = time.monotonic()
        # The next chunk takes as long as this one at least.
        if (now - started) + (now - chunk_started) > budget:
            found = Found.page(rows, limit)
            found.next_before = position
            found.looked_back_to = ends[0].created_at
            return found


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of the newest responses fit, by status."""

    by_status: dict[str, int]
    looked_at: int | None
    """None: all of the time were counted"""


async def _count(pool: Pool, wanted: Filter) -> Counts | None:
    """None: with words they cannot be counted."""
    if wanted.text is not None:
        return None
    limit = _COUNTED_WITH_PARAMETERS if wanted.searches_documents else _COUNTED
    values = wanted.values(limit)
    rows = await fetch_idempotent(pool, listing.STATUS_COUNTS, values)
    ends = {"since": values["since"], "before": LAST_ID, "rows": limit}
    is_partial = await fetch_idempotent(pool, listing.CHUNK_END, ends)
    counted = {row.status: row.responses for row in rows}
    return Counts(
        {status.value: counted.get(status.value, 0) for status in OperatorStatus},
        limit if is_partial else None,
    )


async def _named(pool: Pool, text: str) -> list[UUID]:
    """The responses that an id, its beginning, or the id of their request names; at most two."""
    bounds = id_range(text)
    if bounds is not None:
        found = await fetch_idempotent(pool, listing.RESPONSES_BY_PREFIX, bounds)
        if found:
            return found
    values = {"request_id": text, "max_rows": 2}
    return await fetch_idempotent(pool, operations.MADE_BY_REQUEST, values)


async def _owned(visit: Visit, named: list[UUID]) -> list[UUID]:
    """Those of these responses that the user may see."""
    owned = []
    for identifier in named:
        details = await find_by_id(visit.pool, listing.RESPONSE_DETAILS, identifier)
        if details is not None and visit.owns(details.project):
            owned.append(identifier)
    return owned


async def show(visit: Visit) -> Response:
    """The page; for an id, the page of that response."""
    wanted = read_wanted(visit.query)
    if visit.user.of_project is not None:
        wanted = replace(wanted, filter=replace(wanted.filter, is_exact=True))
    if wanted.id_text:
        named = await _owned(visit, await _named(visit.pool, wanted.id_text))
        if len(named) == 1:
            return visit.redirect(f"/responses/{response_id(named[0])}")
        wanted.mistakes.append(
            f"More than one response fits {wanted.id_text}: write more of its id."
            if named
            else f"There is no response {wanted.id_text}. It was never created, or it was deleted."
        )
    is_whole_page = "hx-request" not in visit.request.headers
    choices = await read_choices(visit) if is_whole_page else Choices()
    listed = await _read_list(visit, wanted)
    parameters = [(name, value) for name, value in visit.query.multi_items() if value]
    given = {name: visit.query.getlist(name) for name, _ in parameters if name != "before"}
    next_before = listed.found.next_before
    is_first = wanted.before == LAST_ID
    return visit.page(
        "responses.html",
        status=400 if wanted.mistakes else 200,
        wanted=wanted,
        found=listed.found,
        next_before=None if next_before is None else response_id(next_before),
        counts=listed.counts,
        given=given,
        statuses=[status.value for status in OperatorStatus],
        windows=[window.value for window in CompletionWindow],
        since_choices=_SINCE_CHOICES,
        default_since=format_duration(DEFAULT_SINCE),
        is_first=is_first,
        is_live=is_first and not wanted.mistakes and wanted.filter.text is None,
        choices=choices,
        near_model=near_model(wanted.filter.model, choices) if not listed.found.rows else [],
        previews=await read_previews(visit, listed.found.rows),
        saved=await read_saved_filters(visit) if is_whole_page else [],
        searchable_from=listed.searchable_from,
        is_text_searched=visit.state.settings.search.text,
    )


@dataclass(frozen=True, slots=True)
class _Listed:
    found: Found
    counts: Counts | None
    searchable_from: datetime | None
    """older responses may have no search documents yet; None: all have them"""


async def _read_list(visit: Visit, wanted: Wanted) -> _Listed:
    """What the page shows. Adds to the mistakes of `wanted`. A search for words is recorded in the
    audit log."""
    pool, nothing = visit.pool, _Listed(Found([]), None, None)
    if wanted.filter.text is not None:
        visit.require_operator()
    async with pool.connection() as connection:
        looked_up, mistakes = await look_up(connection, wanted.filter)
    wanted.mistakes.extend(mistakes)
    if wanted.mistakes:
        return nothing
    if looked_up.text is not None:
        await service.record_search(pool, looked_up, visit.actor)
    texts = visit.state.settings.search.text
    try:
        found = await find(pool, looked_up, wanted.before, PAGE_SIZE, texts=texts)
    except SearchTooSlow:
        wanted.mistakes.append(
            "The search takes too long. Add a rarer word, a project or a shorter time."
        )
        return nothing
    searchable_from = None
    if looked_up.searches_documents:
        searchable_from = await document_search.searchable_from(pool)
    return _Listed(found, await _count(pool, looked_up), searchable_from)


@dataclass(frozen=True, slots=True)
class Affected:
    """A response of an action."""

    id: str
    status: str
    text: str
    """what it does now"""


def _action(fields: QueryParams) -> Action:
    """Raises PageError (400) for none, and for what is none."""
    return Action(choice(fields, "action", list(Action)))


def selected_ids(texts: list[str]) -> list[UUID]:
    """The responses of an action. Raises PageError (400) for none, for too many, and for what is no
    id."""
    ids = [parse_response_id(text) for text in dict.fromkeys(texts)]
    found = [identifier for identifier in ids if identifier is not None]
    if not found or len(found) < len(ids):
        raise PageError(400, "Nothing selected", "Select responses in the list first.")
    if len(found) > MOST_SELECTED:
        raise PageError(400, "Too many", f"Select at most {MOST_SELECTED} responses.")
    return found


async def confirm(visit: Visit) -> Response:
    """Shows exactly which responses are meant, before anything happens."""
    visit.require_operator()
    action = _action(visit.query)
    live = await live_counts(visit.pool)
    affected = []
    for identifier in selected_ids(visit.query.getlist("id")):
        row = await find_by_id(visit.pool, operations.STATE, identifier)
        if row is not None:
            text = diagnose(row, live).why
            affected.append(Affected(response_id(identifier), row.operator_status, text))
    if not affected:
        raise PageError(404, "No such response", "All of them were deleted.")
    return visit.page(
        "confirm.html",
        action=action,
        meaning=_MEANINGS[action],
        affected=affected,
        back=back_path(visit, visit.query, "/responses"),
    )


async def act(visit: Visit) -> Response:
    """Does it, each with its entry in the audit log, and returns to the list with its filter."""
    fields = await visit.form(visit.user.token)
    action = _action(fields)
    done, refused = [], []
    for identifier in selected_ids(fields.getlist("id")):
        requested = await _request(visit, action, identifier)
        if requested.refusal is not None:
            refused.append(requested.refusal)
        elif requested.is_recorded:
            done.append(f"{action} requested; a worker, or a sweep, acts on it")
        else:
            done.append("it was cancelled before")
    notice = Notice(outcome(done, refused), is_warning=bool(refused))
    return visit.done(back_path(visit, fields, "/responses"), notice)


async def _request(visit: Visit, action: Action, identifier: UUID) -> service.Requested:
    async with visit.pool.connection() as connection:
        requested = await service.request(connection, action, identifier, visit.actor)
    if (owner := requested.cancelled_worker) is not None:
        # Without Redis nothing is lost: the worker sees the cancel at its next heartbeat.
        with suppress(*REDIS_ERRORS):
            await visit.state.redis.publish(control(owner), identifier.hex.encode())
    return requested


PAGES = (
    Page("/responses", show, menu="Responses", is_by_project=True, roles=EVERYONE),
    Page("/responses/act", confirm),
    Page("/responses/act", act, method="POST"),
)
