"""Responses that wait for the end of their previous one (ADR 0073). What that end does to them is in
migrations/functions.sql, `release_waiting_responses`."""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.common import CREATE_IS_SETTLED, OPEN
from models.db.statement import Query, Statement, column
from models.lifecycle import NEVER

_WAITS = "r.waits AND r.status = 'queued'"


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """How many responses wait around one for which another one is to wait."""

    before: int
    """those that wait in a row, this one included if it waits"""
    beside: int
    """those that wait for this one"""


COUNT_WAITING = Query(
    f"""
    WITH RECURSIVE chain AS (
        SELECT r.previous_response_id AS id, 1 AS length FROM responses r WHERE r.id = :id AND {_WAITS}
        UNION ALL
        SELECT r.previous_response_id, chain.length + 1
        FROM chain CROSS JOIN LATERAL (SELECT * FROM responses WHERE id = chain.id OFFSET 0) r
        WHERE {_WAITS} AND chain.length < CAST(:most AS int))
    SELECT (SELECT count(*) FROM chain) AS before,
           (SELECT count(*) FROM (SELECT * FROM responses WHERE previous_response_id = :id OFFSET 0) r WHERE {_WAITS})
               AS beside
    """,
    WaitingCount,
)
"""Counts the responses that wait before the response `id`, at most `most`, and beside a new one that
waits for it. One that has not ended is continued only by responses that wait."""

AWAIT_PREVIOUS = column(
    f"""
    UPDATE responses SET awaited = true
    WHERE id = :id AND project_id = :project AND status IN {OPEN} AND delete_requested_at IS NULL RETURNING id
    """,
    UUID,
)
"""Locks the response that another one will wait for, until that one is committed: its end comes
before or after. No row: it has ended."""
WAIT = Statement(f"""
    UPDATE responses SET waits = true, resume_at = {NEVER}, deadline = {NEVER} + (deadline - enqueued_at) WHERE id = :id
""")
"""Lets a response wait, in the transaction that stores it."""

CONFIRM_WAITING = column(
    """
    UPDATE responses SET confirmed = true WHERE id = :id AND worker IS NULL AND attempt = 0
    RETURNING waits IS NULL OR fail_requested_at IS NOT NULL AS is_ready
    """,
    bool,
)
"""Records that the create of a response that waits has a known outcome, for which another one has
its wake-up. Returns whether it waits no more, so that a wake-up is to be sent. No row: a worker has
claimed it, or it has ended."""


@dataclass(frozen=True, slots=True)
class ReadySuccessor:
    """A response that has waited for one that has ended."""

    id: UUID
    is_to_end: bool
    """It cannot run, because of how that one ended."""


READY_SUCCESSORS = Query(
    f"""
    SELECT r.id, r.fail_requested_at IS NOT NULL AS is_to_end
    FROM (SELECT * FROM responses WHERE previous_response_id = :id OFFSET 0) r
    WHERE r.status = 'queued' AND r.worker IS NULL AND (r.waits IS NULL OR r.fail_requested_at IS NOT NULL)
      AND {CREATE_IS_SETTLED}
    ORDER BY r.id
    """,
    ReadySuccessor,
)
"""Selects the responses that waited for the response `id`, which has ended, and that a worker may
claim. One whose create has no known outcome yet is enqueued by its web process (CONFIRM_WAITING),
or found by a sweep."""
