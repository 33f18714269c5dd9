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
    retried_by: UUID | None
    """the response that runs it again"""
    input_size: int
    """bytes of its input items"""
    input: list[dict[str, Any]]
    """none if they are larger than MAX_INPUT, or were not wanted"""
    now: int
    """seconds since the epoch"""


MAX_INPUT = 8 * 1024 * 1024
"""Bytes of items (models/wire/json_input.py). The process that runs it again, and its other work,
have memory for so much without a count."""

_INPUT = "FROM items i WHERE i.response_id = r.id AND i.direction = 'input'"


def _request(items: str) -> Query[StoredRequest]:
    return Query(
        f"""
        SELECT r.id, r.project_id, p.name AS project, p.policy, r.status, r.store, r.model, r.parameters,
               r.previous_response_id,
               (SELECT b.status FROM responses b WHERE b.id = r.previous_response_id AND b.delete_requested_at IS NULL)
                   AS previous_status,
               r.conversation_id, r.lane, r.api_key_id, r.retried_by, size.bytes AS input_size, {items} AS input,
               extract(epoch FROM clock_timestamp())::bigint AS now
        FROM responses r JOIN projects p ON p.id = r.project_id
        CROSS JOIN LATERAL (SELECT coalesce(sum(i.size), 0)::bigint AS bytes {_INPUT}) size
        WHERE r.id = :id AND r.delete_requested_at IS NULL AND p.archived_at IS NULL
        """,
        StoredRequest,
    )


STORED_REQUEST = _request(
    f"""CASE WHEN size.bytes <= {MAX_INPUT}
                    THEN (SELECT coalesce(jsonb_agg(i.payload ORDER BY i.position), '[]') {_INPUT}) ELSE '[]' END"""
)
"""Selects the request of a response. No row: it is deleted, or its project is archived."""
REQUEST_WITHOUT_INPUT = _request("'[]'::jsonb")
"""The same without the items."""
