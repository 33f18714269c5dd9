"""Statements about steers: accepting and listing them. What becomes of them is decided by the
ending of their response (models/db/queries/steers.py)."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.db.statement import Query, column
from models.lifecycle import Lane
from models.wire.steering import MARK


@dataclass(frozen=True, slots=True)
class SteerTarget:
    """A response that is to be steered, whose row is locked."""

    status: str
    background: bool
    is_steerable: bool
    """in no conversation and no batch, and without automatic compaction"""
    is_stopping: bool
    """its end was requested"""
    is_accepted: bool
    """an earlier try has stored the steer"""


LOCK_TARGET = Query(
    f"""
    SELECT r.status, r.background,
           r.conversation_id IS NULL AND r.lane <> {Lane.BATCH.value}
               AND r.parameters -> '{MARK}' IS NULL AS is_steerable,
           r.cancel_requested_at IS NOT NULL OR r.fail_requested_at IS NOT NULL AS is_stopping,
           EXISTS (SELECT 1 FROM steers s WHERE s.id = :steer) AS is_accepted
    FROM responses r WHERE r.id = :response AND r.project_id = :project AND r.delete_requested_at IS NULL
    FOR NO KEY UPDATE OF r
    """,
    SteerTarget,
)
"""Locks the response, so that it does not end in this transaction. No row: the project has none with
this id."""

ACCEPT = column(
    """
    WITH queued AS (SELECT count(*) AS steers, coalesce(sum(size), 0) AS bytes FROM steers
                    WHERE response_id = :response AND state = 'queued'),
         accepted AS (INSERT INTO steers (id, response_id, number, input, items, size)
                      SELECT CAST(:steer AS uuid), r.id, r.steers + 1, CAST(:input AS json), CAST(:items AS jsonb),
                             CAST(:size AS bigint)
                      FROM responses r, queued
                      WHERE r.id = :response AND queued.steers < CAST(:max_pending AS int)
                        AND queued.bytes + CAST(:size AS bigint) <= CAST(:max_bytes AS bigint)
                      RETURNING id, response_id),
         counted AS (UPDATE responses r SET steers = r.steers + 1 FROM accepted WHERE r.id = accepted.response_id)
    SELECT id FROM accepted
    """,
    UUID,
)
"""Queues a steer behind LOCK_TARGET. No row: too many, or too much, is queued already."""


@dataclass(frozen=True, slots=True)
class SteerRow:
    """A steer as it is shown."""

    id: UUID
    response_id: UUID
    state: str
    created_at: int
    """seconds since the epoch"""
    input: Any
    """null once an ending has committed it"""
    successor_id: UUID | None
    required_input: list[dict[str, Any]] | None
    error_code: str | None


_SHOWN = """SELECT s.id, s.response_id, s.state, extract(epoch FROM s.created_at)::bigint AS created_at, s.input,
           s.successor_id, s.required_input, s.error_code FROM steers s"""

FIND_STEER = Query(
    f"""{_SHOWN} JOIN responses r ON r.id = s.response_id
        WHERE s.id = :id AND r.project_id = :project AND r.delete_requested_at IS NULL""",
    SteerRow,
)
STEERS_OF = Query(f"{_SHOWN} WHERE s.response_id = :id ORDER BY s.number", SteerRow)
"""Selects all steers of a response, in order."""
LIST_STEERS = {
    order: Query(
        f"""{_SHOWN} WHERE s.response_id = :id
              AND (CAST(:after AS uuid) IS NULL
                   OR s.number {comparison} (SELECT a.number FROM steers a WHERE a.id = :after AND a.response_id = :id))
            ORDER BY s.number {order} LIMIT :limit""",
        SteerRow,
    )
    for order, comparison in (("asc", ">"), ("desc", "<"))
}
"""Selects a page of the steers of a response, behind the steer `after`."""
