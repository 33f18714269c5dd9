"""One response: what it does and waits for, what happened to it, and what may be done."""

from collections import defaultdict
from dataclasses import dataclass
from uuid import UUID

from starlette.responses import Response

from features.console import grants
from features.console.content import Content, curl, read_content
from features.console.errors import PageError
from features.console.page import Page
from features.console.visit import Visit
from features.operator.history import History, read_history
from models.db.database import Pool, fetch_idempotent, find_by_id
from models.db.queries import listing
from models.ids import parse_response_id, response_id
from models.lifecycle import TERMINAL
from models.tracing.traceparent import parse_traceparent

_MAX_CALLS = 200
"""Tool calls that are shown."""
_MAX_NEXT = 10
"""Responses that continue this one and are shown."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything about a response but its input and output."""

    id: str
    history: History
    details: listing.ResponseDetails
    calls: dict[int, list[listing.ToolCallRow]]
    """by the turn in which the model asked for them"""
    has_more_calls: bool
    next_ids: list[UUID]

    @property
    def is_open(self) -> bool:
        """It has not ended."""
        return self.history.state.status not in TERMINAL

    @property
    def trace_id(self) -> str | None:
        """Its trace; None: it has none."""
        parts = parse_traceparent(self.details.traceparent)
        return None if parts is None else f"{parts[0]:032x}"


def response_id_of(visit: Visit) -> UUID:
    """The id in the URL. Raises PageError (404) if it cannot be one."""
    text = visit.request.path_params["response_id"]
    found = parse_response_id(text)
    if found is None:
        raise no_response(text)
    return found


def no_response(text: str) -> PageError:
    """The error for an id without a response."""
    return PageError(
        404,
        "No such response",
        f"There is no response {text[:100]}. It was never created, or its retention has ended.",
    )


async def read(pool: Pool, identifier: UUID) -> Shown:
    """Raises PageError (404) if there is no such response."""
    history = await read_history(pool, identifier)
    details = await find_by_id(pool, listing.RESPONSE_DETAILS, identifier)
    if history is None or details is None:
        raise no_response(response_id(identifier))
    values = {"id": identifier}
    limits = values | {"max_rows": _MAX_CALLS + 1}
    calls = await fetch_idempotent(pool, listing.TOOL_CALLS, limits)
    next_ids = await fetch_idempotent(
        pool, listing.NEXT_RESPONSES, values | {"max_rows": _MAX_NEXT}
    )
    by_turn = defaultdict(list)
    for call in calls[:_MAX_CALLS]:
        by_turn[call.turn].append(call)
    return Shown(
        id=response_id(identifier),
        history=history,
        details=details,
        calls=dict(by_turn),
        has_more_calls=len(calls) > _MAX_CALLS,
        next_ids=next_ids,
    )


async def show(visit: Visit) -> Response:
    """The page; with input and output if they were asked for."""
    identifier = response_id_of(visit)
    shown = await read(visit.pool, identifier)
    content: Content | None = None
    grant = visit.query.get("content", "")
    if grant and grants.is_valid(visit.user, identifier, grant):
        content = await read_content(visit, identifier)
    return visit.page(
        "response.html",
        shown=shown,
        content=content,
        grant=grant if content is not None else "",
        now=shown.history.state.now,
        first_at=shown.history.timeline[0].at,
        curl=curl(f"/v1/responses/{shown.id}"),
    )


PAGES = (Page("/responses/{response_id}", show),)
