"""What the retry by an operator reads."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.db.statement import Query


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A response, and the request that it answers."""

    id: UUID
    project_id: UUID
    project: str
    """its name"""
    policy: dict[str, Any]
    status: str
    store: bool
    model: str
    parameters: dict[str, Any]
    previous_response_id: UUID | None
    previous_status: str | None
    """null also if that one was deleted"""
    conversation_id: UUID | None
    lane: int
    api_key_id: UUID | None
    input: list[dict[str, Any]] | None
    """null: it is larger than MAX_INPUT"""
    now: int
    """seconds since the epoch"""


MAX_INPUT = 8 * 1024 * 1024
"""Bytes of items (models/wire/json_values.py). The process that runs it again, and its other work,
have memory for so much without a count."""

STORED_REQUEST = Query(
    f"""
    SELECT r.id, r.project_id, p.name AS project, p.policy, r.status, r.store, r.model, r.parameters,
           r.previous_response_id,
           (SELECT b.status FROM responses b WHERE b.id = r.previous_response_id AND b.delete_requested_at IS NULL)
               AS previous_status,
           r.conversation_id, r.lane, r.api_key_id,
           CASE WHEN coalesce((SELECT sum(i.size) FROM items i
                               WHERE i.response_id = r.id AND i.direction = 'input'), 0) <= {MAX_INPUT}
               THEN coalesce((SELECT jsonb_agg(i.payload ORDER BY i.position) FROM items i
                              WHERE i.response_id = r.id AND i.direction = 'input'), '[]') END AS input,
           extract(epoch FROM clock_timestamp())::bigint AS now
    FROM responses r JOIN projects p ON p.id = r.project_id
    WHERE r.id = :id AND r.delete_requested_at IS NULL AND p.archived_at IS NULL
    """,
    StoredRequest,
)
"""Selects the request of a response. No row: it is deleted, or its project is archived."""
