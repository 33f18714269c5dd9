"""Responses as an operator lists them, over all projects."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from models.db.queries.common import OPEN
from models.db.statement import Query, column


@dataclass(frozen=True, slots=True)
class ListedResponse:
    """A response in a list."""

    id: UUID
    status: str
    background: bool
    project: str
    """its name"""
    model: str
    upstream: str | None
    """that answered its last turn"""
    reason: str | None
    attempt: int
    usage: dict[str, Any] | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    """in whole seconds"""
    ended_at: datetime | None
    """when its last event was stored; null while it is open"""
    now: datetime


_LISTED = """
    r.id, r.status, r.background, p.name AS project, r.model, r.upstream, r.reason, r.attempt, r.usage,
    r.created_at, r.started_at, r.completed_at, CASE WHEN r.completed_at IS NOT NULL THEN coalesce(
        (SELECT e.stored_at FROM event_log e WHERE e.response_id = r.id ORDER BY e.first_number DESC LIMIT 1), r.completed_at) END AS ended_at,
    clock_timestamp() AS now"""

_ID_AT = """CAST(rpad(lpad(to_hex(floor(extract(epoch FROM now() - CAST(:since AS interval) - interval '1 hour') * 1000)::bigint), 12, '0'), 32, '0') AS uuid)"""
"""The smallest id of the time `since` ago. The first 48 bits of an id are milliseconds, on the clock
of its web process: an hour of difference is allowed."""


def _list(condition: str) -> Query[ListedResponse]:
    return Query(
        f"""
        SELECT {_LISTED} FROM responses r JOIN projects p ON p.id = r.project_id
        WHERE {condition} AND r.delete_requested_at IS NULL AND (CAST(:since AS interval) IS NULL OR r.created_at >= now() - CAST(:since AS interval))
          AND (CAST(:statuses AS text[]) IS NULL OR r.status = ANY(CAST(:statuses AS text[])))
          AND (CAST(:project AS text) IS NULL OR p.name = CAST(:project AS text))
          AND (CAST(:model AS text) IS NULL OR r.model = CAST(:model AS text))
          AND (CAST(:upstream AS text) IS NULL OR r.upstream = CAST(:upstream AS text))
          AND (CAST(:reason AS text) IS NULL OR r.reason = CAST(:reason AS text))
        ORDER BY r.id DESC LIMIT :max_rows
        """,
        ListedResponse,
    )


LIST_RESPONSES = _list(f"r.id >= {_ID_AT}")
"""Selects the newest responses that were created within `since` and fit the other parameters; null:
any. It reads the primary key from its end, at most to the rows of that time."""
LIST_OPEN_RESPONSES = _list(f"r.status IN {OPEN}")
"""Selects the newest of the responses that have not ended, and fit the parameters as in
LIST_RESPONSES. `since` may be null too: it reads all open responses in any case."""

RESPONSES_BY_PREFIX = column(
    "SELECT id FROM responses WHERE id BETWEEN :first AND :last ORDER BY id LIMIT 2", UUID
)
"""Selects the responses whose ids are in this range, at most two."""


@dataclass(frozen=True, slots=True)
class ResponseDetails:
    """What a response's row says about it, for an operator."""

    id: UUID
    status: str
    background: bool
    project: str
    model: str
    upstream: str | None
    reason: str | None
    error: dict[str, Any] | None
    attempt: int
    turns: int
    usage: dict[str, Any] | None
    store: bool
    previous_response_id: UUID | None
    conversation_id: UUID | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    deadline: datetime
    expires_at: datetime
    deleted: bool
    input_items: int
    output_items: int
    """those that are stored: all of a response that has ended, else those of finished turns"""
    tool_calls: int
    """calls that this server makes or has made"""


RESPONSE_DETAILS = Query(
    """
    SELECT r.id, r.status, r.background, p.name AS project, r.model, r.upstream, r.reason, r.error, r.attempt, r.turns, r.usage, r.store,
           r.previous_response_id, r.conversation_id, r.created_at, r.started_at, r.completed_at, r.deadline, r.expires_at,
           r.delete_requested_at IS NOT NULL AS deleted,
           (SELECT count(*) FROM items i WHERE i.response_id = r.id AND i.direction = 'input') AS input_items,
           (SELECT count(*) FROM items i WHERE i.response_id = r.id AND i.direction = 'output') AS output_items,
           (SELECT count(*) FROM tool_calls c WHERE c.response_id = r.id) AS tool_calls
    FROM responses r JOIN projects p ON p.id = r.project_id WHERE r.id = :id
    """,
    ResponseDetails,
)


@dataclass(frozen=True, slots=True)
class RequestState:
    """How far a response is with what was requested of it."""

    id: UUID
    status: str
    requeued: bool
    """a worker has released it since a requeue was requested, or none was"""


REQUEST_STATES = Query(
    f"""
    SELECT r.id, r.status, r.requeue_requested_at IS NULL OR r.status NOT IN {OPEN} AS requeued
    FROM responses r WHERE r.id = ANY(CAST(:ids AS uuid[]))
    """,
    RequestState,
)
"""Selects these responses; one without a row was deleted."""
