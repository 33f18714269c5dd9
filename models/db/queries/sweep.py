"""Responses without a live owner: which of them a sweep enqueues again, and which it claims
itself."""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.common import (
    ABANDONED,
    CRASHES_OF_ORPHAN,
    NOT_DEFERRED,
    OPEN,
    ORPHAN,
    WEB_HAS_RENEWED,
)
from models.db.statement import Query, column
from models.lifecycle import QUARANTINE_THRESHOLD


@dataclass(frozen=True, slots=True)
class ReenqueuedResponse:
    """A response for which a Celery message is to be sent."""

    id: UUID
    background: bool
    crashes: int
    """owners that crashed since the last checkpoint"""


REENQUEUE = Query(
    f"""
    WITH unowned AS MATERIALIZED (
        SELECT r.id, r.background, {CRASHES_OF_ORPHAN} AS crashes FROM responses r
        WHERE r.status IN {OPEN} AND {ORPHAN} AND {WEB_HAS_RENEWED} AND (r.requeue_requested_at IS NOT NULL
          OR {NOT_DEFERRED} AND r.enqueued_at + CAST(:interval AS interval) * power(2, least(r.enqueue_count, 6)) < clock_timestamp())
        ORDER BY r.enqueued_at LIMIT 200 FOR UPDATE OF r SKIP LOCKED
    )
    UPDATE responses SET enqueued_at = clock_timestamp(), enqueue_count = responses.enqueue_count + 1, requeue_requested_at = NULL, resume_at = NULL
    FROM unowned WHERE responses.id = unowned.id
    RETURNING responses.id, unowned.background, unowned.crashes
    """,
    ReenqueuedResponse,
)
"""Marks up to 200 open responses without a live owner as enqueued again: those an operator
requeued, and those whose last Celery message is too old. The limit on its age doubles with each
message."""

ORPHANS = column(
    f"""
    SELECT r.id FROM responses r
    WHERE r.status IN {OPEN} AND {ORPHAN} AND {WEB_HAS_RENEWED}
      AND (r.status = 'in_progress' AND {NOT_DEFERRED} OR r.cancel_requested_at IS NOT NULL OR r.deadline <= clock_timestamp() OR {ABANDONED}
           OR {NOT_DEFERRED} AND r.enqueued_at < clock_timestamp() - CAST(:waiting AS interval)
           OR r.fail_requested_at IS NOT NULL OR r.requeue_requested_at IS NOT NULL)
      AND (CAST(:quarantine AS boolean) = ({CRASHES_OF_ORPHAN} >= {QUARANTINE_THRESHOLD}) OR r.cancel_requested_at IS NOT NULL
           OR r.fail_requested_at IS NOT NULL OR r.deadline <= clock_timestamp() OR {CRASHES_OF_ORPHAN} > {QUARANTINE_THRESHOLD})
    ORDER BY r.enqueued_at LIMIT :max_rows
    """,
    UUID,
)
"""Selects what a sweep may claim without a Celery message: responses of crashed workers, those that
are only to be ended, and those that have been in the queue for longer than `waiting`. `quarantine`:
the sweeping worker is a quarantine worker; one that is only to be ended goes to any worker."""
