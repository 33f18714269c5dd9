"""Claiming a response, and what a new owner reads and repairs before it runs it."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.db.queries.common import (
    ABANDONED,
    CRASHES_OF_ORPHAN,
    FENCE,
    INSERT_INTO_LOG,
    NOT_DEFERRED,
    OPEN,
    ORPHAN,
    LogBlock,
    journal_of,
)
from models.db.statement import Query, Statement, column

_FENCE_WITH_PROCESS = FENCE.replace("SELECT id", "SELECT id, kind, host, pid")


@dataclass(frozen=True, slots=True)
class ClaimedRow:
    """A response as of its claim. Times in seconds."""

    id: UUID
    project_id: UUID
    attempt: int
    crashes: int
    """owners that crashed since the last checkpoint"""
    background: bool
    store: bool
    model: str
    parameters: dict[str, Any]
    previous_response_id: UUID | None
    conversation_id: UUID | None
    created_at: int
    """since the epoch"""
    seconds_left: float
    """to its deadline"""
    seconds_queued: float
    """since it was last put into the queue, or since its creation if that happened again"""
    checkpoint_number: int
    """the log up to this number belongs to finished turns"""
    next_output_index: int
    turns: int
    usage: dict[str, Any] | None
    traceparent: str | None
    cache_key: bytes | None
    cache_ttl: int | None


def _claim(conditions: str) -> Query[ClaimedRow]:
    return Query(
        f"""
        WITH {_FENCE_WITH_PROCESS},
             claimed AS (UPDATE responses r SET worker = me.id, attempt = r.attempt + 1, status = 'in_progress',
                                deaths = {CRASHES_OF_ORPHAN}, requeue_requested_at = NULL, resume_at = NULL,
                                deadline = CASE WHEN r.started_at IS NULL THEN clock_timestamp() + CAST(:wall_clock AS interval) ELSE r.deadline END,
                                started_at = coalesce(r.started_at, clock_timestamp())
                         FROM me WHERE r.id = :id AND r.status IN {OPEN} AND {conditions} RETURNING r.*),
             recorded AS (INSERT INTO attempts (response_id, attempt, worker, kind, host, pid)
                          SELECT claimed.id, claimed.attempt, me.id, me.kind, me.host, me.pid FROM claimed, me)
        SELECT id, project_id, attempt, deaths AS crashes, background, store, model, parameters, previous_response_id, conversation_id,
               extract(epoch FROM created_at)::bigint AS created_at, extract(epoch FROM deadline - clock_timestamp())::float AS seconds_left,
               extract(epoch FROM clock_timestamp() - CASE WHEN enqueue_count = 0 THEN enqueued_at ELSE created_at END)::float AS seconds_queued,
               checkpoint_number, next_output_index, turns, usage, traceparent, cache_key, cache_ttl
        FROM claimed
        """,
        ClaimedRow,
    )


_MAY_RUN = "r.cancel_requested_at IS NULL AND r.fail_requested_at IS NULL AND r.deadline > clock_timestamp()"

CLAIM_FRESH = _claim(f"r.worker IS NULL AND r.attempt = 0 AND NOT {ABANDONED} AND {_MAY_RUN}")
"""Claims a response that no worker has run before: the common case. Its log holds only its first
events, so there is nothing to recover. No row: it has run before, it may not run, or it is
deleted."""

FENCE_ALONE = column(f"WITH {FENCE} SELECT id FROM me", UUID)
"""The fence as the first statement of a longer transaction. No row: this process was declared
dead."""


@dataclass(frozen=True, slots=True)
class LockedOrphan:
    """An open response without a live owner, before its claim."""

    worker: UUID | None
    """the dead owner, whose journal the new owner must recover"""
    crashes: int
    """owners that crashed since the last checkpoint, this one included"""
    cancelled: bool
    failed: bool
    """an operator wants it to end as failed"""
    past_deadline: bool
    started: bool
    """a worker has claimed it before"""
    abandoned: bool


LOCK_ORPHAN = Query(
    f"""
    SELECT r.worker, {CRASHES_OF_ORPHAN} AS crashes, r.cancel_requested_at IS NOT NULL AS cancelled,
           r.fail_requested_at IS NOT NULL AS failed, r.deadline <= clock_timestamp() AS past_deadline, r.started_at IS NOT NULL AS started, {ABANDONED} AS abandoned
    FROM responses r WHERE r.id = :id AND r.status IN {OPEN} AND {ORPHAN} FOR UPDATE OF r SKIP LOCKED
    """,
    LockedOrphan,
)
"""Locks a response that is to be claimed. No row: it has ended, a live worker owns it, or another
transaction holds its lock."""

CLAIM = _claim(
    f"{ORPHAN} AND {_MAY_RUN} AND ({NOT_DEFERRED} OR r.requeue_requested_at IS NOT NULL)"
)
"""Claims an orphan in order to run it; a deferred one only once its pause is over or an operator
has requeued it. No row: it may not run now."""
CLAIM_TO_END = _claim(ORPHAN)
"""Claims an orphan whose end is already decided: cancelled, failed by an operator, past its
deadline, or too many crashes. No row: it has ended, or a live worker owns it."""

RECORD_OWNER_DEATH = column(
    """
    UPDATE attempts a SET outcome = 'died', ended_at = w.expires_at FROM workers w
    WHERE a.response_id = :id AND a.attempt = CAST(:attempt AS int) - 1 AND w.id = a.worker
    RETURNING extract(epoch FROM clock_timestamp() - w.expires_at)::float AS seconds_lost
    """,
    float,
)
"""Records, with a claim from a dead worker, that the attempt before ended when that worker's lease
ran out; returns how many seconds ago that was."""

LOG_END = column(
    "SELECT coalesce(max(last_number), -1) AS last FROM event_log WHERE response_id = :id", int
)
"""The number of the last event in the event log, -1 if there is none."""
UNFLUSHED_JOURNAL = Query(
    f"""
    SELECT j.attempts[p.n] AS attempt, j.first_numbers[p.n] AS first, j.last_numbers[p.n] AS last, j.frames[p.n] AS frames
    FROM workers w {journal_of("CAST(:id AS uuid)")}
    WHERE w.id = :previous AND p.n IS NOT NULL AND j.last_numbers[p.n] > :after
    ORDER BY first
    """,
    LogBlock,
)
"""Selects what the worker `previous` published of a response beyond `after`, the end of the event
log."""
RECOVER_JOURNAL = Statement(f"""
    {INSERT_INTO_LOG} VALUES (:id, :first, :last, :attempt, :frames) ON CONFLICT DO NOTHING
""")
"""Appends a block of the previous owner's journal to the event log."""
LOG_SINCE = Query(
    """
    SELECT attempt, first_number AS first, last_number AS last, frames FROM event_log
    WHERE response_id = :id AND last_number > :after ORDER BY first_number
    """,
    LogBlock,
)


@dataclass(frozen=True, slots=True)
class SealedSecrets:
    """The credentials that a client sent with its request, encrypted."""

    key_id: str
    sealed: bytes


SECRETS = Query("SELECT key_id, sealed FROM job_secrets WHERE response_id = :id", SealedSecrets)
"""Selects a response's secrets. No row: it has none, or it has ended."""


@dataclass(frozen=True, slots=True)
class CheckpointedItem:
    """An output item as of the last checkpoint. The other columns are null for an item that is no
    tool call run by this server."""

    payload: dict[str, Any]
    output_index: int | None
    turn: int | None
    started_attempt: int | None
    """the attempt that began to run the call last"""
    finished: bool | None
    result: Any
    """what the model received, where the item does not contain it"""


CHECKPOINTED_OUTPUT = Query(
    """
    SELECT i.payload, c.output_index, c.turn, c.started_attempt, c.finished, c.answer AS result
    FROM items i LEFT JOIN tool_calls c ON c.response_id = i.response_id AND c.position = i.position
    WHERE i.response_id = :id AND i.direction = 'output' ORDER BY i.position
    """,
    CheckpointedItem,
)
"""Selects the output up to the last checkpoint, for the attempt that continues it."""
