"""One response: what it does and waits for, what happened to it, and, when somebody asks for them,
its input and output."""

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from starlette.responses import Response

from features.console.page import Page, PageError, Visit
from features.operator.history import History, read_history
from features.operator.service import record_reveal
from models.db.database import fetch_idempotent, find_by_id
from models.db.queries import listing, read
from models.errors import ShareUsedUp, Unavailable
from models.ids import parse_response_id, response_id
from models.lifecycle import TERMINAL
from models.tracing.spans import parse_traceparent
from web.http.body import held_bytes
from web.responses.shown import Watched

_MAX_CALLS = 200
"""Tool calls that are shown."""
_MAX_NEXT = 10
"""Responses that continue this one and are shown."""
_MAX_ITEMS = 100
_MAX_SIZE = 512 * 1024
"""Bytes of items that are read for the page."""
_MAX_TEXT = 64 * 1024
"""Characters of one item that are shown."""


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
    watched: Watched | None
    """how far it is; None: it has ended, or the process has no memory to look at it now"""

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


async def _read(visit: Visit, identifier: UUID) -> Shown:
    """Raises PageError (404) if there is no such response."""
    pool = visit.pool
    history = await read_history(pool, identifier)
    details = await find_by_id(pool, listing.RESPONSE_DETAILS, identifier)
    if history is None or details is None:
        raise no_response(response_id(identifier))
    most = {"id": identifier, "max_rows": _MAX_CALLS + 1}
    calls = await fetch_idempotent(pool, listing.TOOL_CALLS, most)
    next_ids = await fetch_idempotent(pool, listing.NEXT_RESPONSES, most | {"max_rows": _MAX_NEXT})
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
        watched=await _watch(visit, history),
    )


async def _watch(visit: Visit, history: History) -> Watched | None:
    if history.state.status in TERMINAL:
        return None
    hold = partial(held_bytes, visit.request)
    try:
        watched = await visit.state.response_store.watch(history.state.id, hold=hold)
    except (ShareUsedUp, Unavailable):
        return None
    return None if watched is None or watched.progress is None else watched


@dataclass(frozen=True, slots=True)
class ShownItem:
    """An item of the input or output."""

    type: str
    who: str
    """its role, or the name of what is called"""
    text: str
    is_cut: bool

    @classmethod
    def from_payload(cls, item: dict[str, Any]) -> "ShownItem":
        """The text of a message, or the JSON of anything else."""
        text = _text_of(item) or pretty(item)
        who = str(item.get("role") or item.get("name") or "")
        kind = str(item.get("type", "message"))
        return cls(kind, who, text[:_MAX_TEXT], len(text) > _MAX_TEXT)


def _text_of(item: dict[str, Any]) -> str | None:
    """The text of a message; None for anything else."""
    content = item.get("content")
    if item.get("type", "message") != "message" or isinstance(content, str):
        return content if isinstance(content, str) else None
    if not isinstance(content, list):
        return None
    texts = [part.get("text") or part.get("refusal") for part in content if isinstance(part, dict)]
    return "\n".join(map(str, texts)) if texts and None not in texts else None


@dataclass(frozen=True, slots=True)
class Content:
    """What a response was asked and has answered."""

    parameters: str
    """what the client has set, as JSON"""
    input: list[ShownItem]
    output: list[ShownItem]
    is_cut: bool
    """There is more input than is shown."""
    curl: str
    """a command that sends the same request"""


def pretty(value: Any) -> str:
    """JSON to read."""
    return json.dumps(value, indent=2, ensure_ascii=False)


async def read_content(visit: Visit, identifier: UUID) -> Content:
    """What the database has. Raises PageError (404)."""
    rows = await fetch_idempotent(visit.pool, read.RESPONSE, {"id": identifier})
    if not rows:
        raise no_response(response_id(identifier))
    values = {"id": identifier, "after": None, "limit": _MAX_ITEMS + 1, "max_size": _MAX_SIZE}
    page = await fetch_idempotent(visit.pool, read.INPUT_ITEMS["asc"], values)
    payloads = [item.payload for item in page[:_MAX_ITEMS] if item.payload is not None]
    output = await fetch_idempotent(visit.pool, read.OUTPUT_PAGE["asc"], values)
    outputs = [item.payload for item in output[:_MAX_ITEMS] if item.payload is not None]
    parameters = {"model": rows[0].model, **rows[0].parameters}
    body = parameters | {"input": payloads}
    return Content(
        parameters=pretty(parameters)[:_MAX_TEXT],
        input=[ShownItem.from_payload(item) for item in payloads],
        output=[ShownItem.from_payload(item) for item in outputs],
        is_cut=len(payloads) < len(page) or len(outputs) < len(output),
        curl=curl("/v1/responses", json.dumps(body, ensure_ascii=False)),
    )


def curl(path: str, body: str | None = None) -> str:
    """A command for a shell. The key comes from a variable, so no page has one."""
    lines = [f'curl "$BACKBURNER_URL{path}"', '-H "Authorization: Bearer $BACKBURNER_KEY"']
    if body is not None:
        quoted = body.replace("'", "'\\''")
        lines += ["-H 'Content-Type: application/json'", f"-d '{quoted}'"]
    return " \\\n  ".join(lines)


async def show(visit: Visit) -> Response:
    """The page; with input and output if the session has asked for them."""
    identifier = response_id_of(visit)
    shown = await _read(visit, identifier)
    content: Content | None = None
    # A refresh takes only what is live, which has no content.
    if visit.may_read and "hx-request" not in visit.request.headers:
        await record_reveal(visit.pool, identifier, visit.actor)
        content = await read_content(visit, identifier)
    return visit.page(
        "response.html",
        shown=shown,
        content=content,
        now=shown.history.state.now,
        first_at=shown.history.timeline[0].at,
        curl=curl(f"/v1/responses/{shown.id}"),
    )


PAGES = (Page("/responses/{response_id}", show),)
