"""One response: what it does and waits for, its figures, what it spent its time on, what it
continues, and, when somebody asks for them, its input and output."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

import orjson
from starlette.responses import Response

from features.console import response_queries
from features.console.access import EVERYONE
from features.console.content import (
    Content,
    curl,
    no_response,
    read_content,
    read_details,
    response_id_of,
)
from features.console.page import Page, Visit
from features.console.waterfall import ToolTimes, Waterfall, draw
from features.operator.history import History, read_history
from models.db.database import Pool, fetch_idempotent, find_by_id
from models.db.queries import listing
from models.errors import ShareUsedUp, Unavailable
from models.ids import response_id
from models.lifecycle import TERMINAL
from models.ownership.timeline import attempts_on_timeline
from models.time_text import seconds_between
from models.tracing.spans import parse_traceparent
from models.wire.events import split_frames
from web.http.body import held_bytes
from web.responses.shown import Watched

_MAX_CALLS = 200
"""Tool calls that are shown."""
_MAX_RELATED = 20
"""Responses before this one that are shown."""
_MAX_NEXT = 10
"""Responses that continue this one and are shown."""
_MAX_CONVERSATION_ITEMS = 200
"""The newest items of a conversation, by which its responses are found."""
_ITEM_DONE = b"event: response.output_item.done\n"
_LOG_LIMITS = {"max_blocks": 1000, "max_block": 32 * 1024, "max_bytes": 512 * 1024}
"""Of the log that is searched for the ends of tool calls. Large blocks have text of the model."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The times and speeds of a response, in seconds; None: not known, or not yet."""

    in_line: float | None
    """from its creation to its first claim"""
    first_output: float | None
    """from its creation until its first output was stored, about a second too late at most; also
    None if that was not before its end"""
    duration: float
    """from its creation to its end, or until now"""
    speed: float | None
    """output tokens in a second of all attempts"""
    attempts: int


@dataclass(frozen=True, slots=True)
class Related:
    """The chain or the conversation that a response belongs to."""

    before: list[response_queries.RelatedResponse]
    """the oldest first"""
    has_earlier: bool
    after: list[UUID]
    """responses that continue this one"""


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything about a response but its input and output."""

    id: str
    history: History
    details: listing.ResponseDetails
    caller: response_queries.Caller
    figures: Figures
    waterfall: Waterfall
    calls: list[listing.ToolCallRow]
    has_more_calls: bool
    related: Related
    watched: Watched | None
    """how far it is; None: it has ended, or the process has no memory to look at it now"""

    @property
    def is_open(self) -> bool:
        """It has not ended."""
        return self.history.state.status not in TERMINAL

    @property
    def first_at(self) -> datetime:
        """When it was created."""
        return self.history.timeline[0].at

    @property
    def error(self) -> str | None:
        """The message of a failure."""
        return (self.details.error or {}).get("message")

    @property
    def trace_id(self) -> str | None:
        """Its trace; None: it has none."""
        parts = parse_traceparent(self.details.traceparent)
        return None if parts is None else f"{parts[0]:032x}"


async def _read(visit: Visit, identifier: UUID) -> Shown:
    """Raises PageError (404) if there is no such response."""
    pool = visit.pool
    details = await read_details(visit, identifier)
    history = await read_history(pool, identifier)
    caller = await find_by_id(pool, response_queries.CALLER, identifier)
    if history is None or caller is None:
        raise no_response(response_id(identifier))
    most = {"id": identifier, "max_rows": _MAX_CALLS + 1}
    calls = await fetch_idempotent(pool, listing.TOOL_CALLS, most)
    tools = ToolTimes(calls[:_MAX_CALLS], await _read_answered(pool, identifier) if calls else {})
    return Shown(
        id=response_id(identifier),
        history=history,
        details=details,
        caller=caller,
        figures=_figures(history, details, await _read_first_output(pool, history, details)),
        waterfall=draw(history, tools),
        calls=calls[:_MAX_CALLS],
        has_more_calls=len(calls) > _MAX_CALLS,
        related=await _read_related(pool, details),
        watched=await _watch(visit, history),
    )


async def _read_answered(pool: Pool, identifier: UUID) -> dict[str, datetime]:
    """When items of the output were complete, as far as the searched part of the log says so."""
    values = {"id": identifier, "mark": _ITEM_DONE, **_LOG_LIMITS}
    blocks = await fetch_idempotent(pool, response_queries.BLOCKS_WITH, values)
    return {
        orjson.loads(frame.partition(b"\ndata: ")[2])["item"].get("id"): block.stored_at
        for block in blocks
        for frame in split_frames(block.frames)
        if frame.startswith(_ITEM_DONE)
    }


async def _read_first_output(
    pool: Pool, history: History, details: listing.ResponseDetails
) -> datetime | None:
    if history.state.status in TERMINAL and not details.output_items:
        return None
    opening = history.logs.get(0)
    begun = 0 if opening is None else opening.last + 1
    values = {"id": history.state.id, "begun": begun}
    found = await fetch_idempotent(pool, response_queries.FIRST_OUTPUT, values)
    return found[0] if found else None


def _figures(
    history: History, details: listing.ResponseDetails, first_output: datetime | None
) -> Figures:
    created, last = history.timeline[0].at, history.timeline[-1].at
    end = last if history.state.status in TERMINAL else history.state.now
    tokens = (details.usage or {}).get("output_tokens")
    ran = _run_seconds(history, end)
    return Figures(
        in_line=_seconds_until(_first_claim(history), created),
        first_output=_seconds_until(first_output if first_output != end else None, created),
        duration=seconds_between(created, end),
        speed=tokens / ran if tokens and ran and history.state.status in TERMINAL else None,
        attempts=attempts_on_timeline(details.attempt) if details.attempt else 0,
    )


def _first_claim(history: History) -> datetime | None:
    """The attempts before the first that is stored were deferred; then the row says it, a moment
    earlier."""
    attempts = history.attempts
    if attempts and attempts_on_timeline(attempts[0].attempt) == 1:
        return attempts[0].claimed_at
    return history.state.started_at


def _seconds_until(at: datetime | None, created: datetime) -> float | None:
    return None if at is None else seconds_between(created, at)


def _run_seconds(history: History, end: datetime) -> float:
    """The time of all attempts together."""
    return sum(
        seconds_between(attempt.claimed_at, attempt.ended_at or end) for attempt in history.attempts
    )


async def _read_related(pool: Pool, details: listing.ResponseDetails) -> Related:
    identifier = details.id
    values = {"id": identifier, "max_rows": _MAX_NEXT}
    after = await fetch_idempotent(pool, listing.NEXT_RESPONSES, values)
    if details.conversation_id is not None:
        limits = {"conversation": details.conversation_id, "max_items": _MAX_CONVERSATION_ITEMS}
        found = await fetch_idempotent(pool, response_queries.OF_CONVERSATION, limits)
        after = [*after, *(row.id for row in reversed(found) if row.id > identifier)][:_MAX_NEXT]
        return _related([row for row in found if row.id < identifier], after)
    if details.previous_response_id is None:
        return Related([], has_earlier=False, after=after)
    limit = {"id": identifier, "most": _MAX_RELATED + 1}
    return _related(await fetch_idempotent(pool, response_queries.CHAIN_BEFORE, limit), after)


def _related(before: Sequence[response_queries.RelatedResponse], after: list[UUID]) -> Related:
    """`before`: the nearest first."""
    shown = list(reversed(before[:_MAX_RELATED]))
    return Related(shown, has_earlier=len(before) > len(shown), after=after)


async def _watch(visit: Visit, history: History) -> Watched | None:
    if history.state.status in TERMINAL:
        return None
    hold = partial(held_bytes, visit.request)
    try:
        watched = await visit.state.response_store.watch(history.state.id, hold=hold)
    except (ShareUsedUp, Unavailable):
        return None
    return None if watched is None or watched.progress is None else watched


async def show(visit: Visit) -> Response:
    """The page; with input and output if the session has asked for them."""
    identifier = response_id_of(visit)
    shown = await _read(visit, identifier)
    content: Content | None = None
    # A refresh of what is live takes none of the content.
    if visit.may_read and visit.request.headers.get("hx-target") != "live":
        content = await read_content(visit, identifier)
    return visit.page(
        "response.html", shown=shown, content=content, curl=curl(f"/responses/{shown.id}")
    )


PAGES = (Page("/responses/{response_id}", show, roles=EVERYONE),)
