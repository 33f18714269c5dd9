"""Claiming a response, and what a new owner reads and repairs before it runs it."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.db.queries.common import (
    ABANDONED,
    CRASHES_IN_TURN_OF_ORPHAN,
    CRASHES_OF_ORPHAN,
    FENCE,
    FENCE_WITH_PROCESS,
    IN_TURN,
    INSERT_INTO_LOG,
    NOT_DEFERRED,
    OPEN,
    ORPHAN,
    UNFLUSHED_BATCHES,
    LogBlock,
    array,
    locked_responses,
)
from models.db.statement import Query, Statement, column
from models.lifecycle import Crashes


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
    request_id: str | None
    """of the request that made it, for the logs"""
    cache_key: bytes | None
    cache_ttl: int | None
    secrets_key_id: str | None
    """of `sealed_secrets`; both are null if the client sent no credentials"""
    sealed_secrets: bytes | None
    input: list[dict[str, Any]] | None
    """the payloads of its input items, in order, if they are small and all of its history; else
    None: history.HISTORY reads it"""
    last_failures: list[dict[str, Any]] | None
    """if the attempt before was deferred: the failed calls of upstreams, as FailedCall has them; the
    last one is what it waited for"""
    turn_repeats: int
    """how often its upstream broke off the present turn, so that it was repeated"""
    lane: int
    api_key_id: UUID | None
    """of the request that made it, for the usage of its tools"""
    window_ends_at: float | None
    """in seconds since the epoch; null: it has no completion window"""
    is_retrying: bool
    """an upstream has failed, and none has answered since"""


_MAX_INPUT_BYTES = 16 * 1024
"""Bytes of the input items, as they are stored, up to which a claim returns them. They are received
before a takeover is committed, so they must not be able to crash the process: that crash would not
be counted."""
_SIZE_OF_INPUT = """(SELECT sum(pg_column_size(s.payload)) FROM items s
                     WHERE s.response_id = claimed.id AND s.direction = 'input')"""
_INPUT = f"""CASE WHEN claimed.previous_response_id IS NULL AND claimed.conversation_id IS NULL
                    THEN (SELECT jsonb_agg(i.payload ORDER BY i.position) FROM items i
                          WHERE i.response_id = claimed.id AND i.direction = 'input'
                            AND {_SIZE_OF_INPUT} <= {_MAX_INPUT_BYTES}) END"""

_LAST_FAILURES = """CASE WHEN claimed.attempt > 1 THEN (SELECT a.failures FROM attempts a
                    WHERE a.response_id = claimed.id AND a.attempt < claimed.attempt
                    ORDER BY a.attempt DESC LIMIT 1) END"""
_TURN_REPEATS = f"""CASE WHEN claimed.attempt > 1 THEN (SELECT count(*) FROM attempts a
                    WHERE a.response_id = claimed.id AND a.outcome = 'repeated' AND {IN_TURN}) ELSE 0 END"""


def claim_sql(
    condition: str,
    *,
    first: str = "",
    source: str = "me",
    input_items: str = _INPUT,
    recursive: str = "",
    last_column: str = "",
) -> str:
    """The statement that claims the responses `r` for which the condition holds. `first`: CTEs
    before the UPDATE, which are then a part of its `source`; `recursive`: the word, if one of them
    is. `last_column`: one more than ClaimedRow has."""
    return f"""
        WITH {recursive} {FENCE_WITH_PROCESS}, {first}
             claimed AS (UPDATE responses r SET worker = me.id,
                                attempt = greatest(r.attempt + 1, CAST(:first_attempt AS int)), status = 'in_progress',
                                crashes = {CRASHES_OF_ORPHAN}, requeue_requested_at = NULL, resume_at = NULL,
                                reason = NULL,
                                deadline = CASE WHEN r.started_at IS NULL
                                    THEN clock_timestamp() + CAST(:wall_clock AS interval) ELSE r.deadline END,
                                started_at = coalesce(r.started_at, clock_timestamp())
                         FROM {source} WHERE {condition} RETURNING r.*),
             recorded AS (INSERT INTO attempts (response_id, attempt, worker, kind, host, pid)
                          SELECT claimed.id, claimed.attempt, me.id, me.kind, me.host, me.pid FROM claimed, me)
        SELECT id, project_id, attempt, crashes, background, store, model, parameters, previous_response_id,
               conversation_id,
               extract(epoch FROM created_at)::bigint AS created_at,
               extract(epoch FROM deadline - clock_timestamp())::float AS seconds_left,
               extract(epoch FROM clock_timestamp() - CASE WHEN enqueue_count = 0 THEN enqueued_at
                           ELSE created_at END)::float AS seconds_queued,
               checkpoint_number, next_output_index, turns, usage, traceparent, request_id, cache_key, cache_ttl,
               secrets.key_id AS secrets_key_id, secrets.sealed AS sealed_secrets, {input_items} AS input,
               {_LAST_FAILURES} AS last_failures,
               {_TURN_REPEATS} AS turn_repeats, lane, api_key_id,
               extract(epoch FROM window_ends_at)::float AS window_ends_at,
               failed_upstream IS NOT NULL AS is_retrying
               {last_column}
        FROM claimed LEFT JOIN job_secrets secrets ON secrets.response_id = claimed.id"""


def _claim(
    condition: str, *, first: str = "", source: str = "me", input_items: str = _INPUT
) -> Query[ClaimedRow]:
    return Query(
        claim_sql(condition, first=first, source=source, input_items=input_items), ClaimedRow
    )


_MAY_RUN = "r.cancel_requested_at IS NULL AND r.fail_requested_at IS NULL AND r.deadline > clock_timestamp()"

IS_READY = f"""r.status IN {OPEN} AND r.worker IS NULL AND r.crashes = 0 AND {NOT_DEFERRED} AND NOT {ABANDONED}
    AND {_MAY_RUN}"""
"""A response that may be claimed by a single statement."""
CLAIM_UNOWNED = _claim(f"r.id = :id AND {IS_READY}")
"""Claims a response that no worker has run before, or that its last owner has released: the common
cases. All of its events are in the event log, so there is nothing to recover. No row: it names a
dead owner, its workers have crashed, it may not run now, or it is deleted.

The commit waits for the disk. Otherwise a crash of Postgres could undo the claim of a worker that
lives on and has published events under it: the journal's commits wait for no disk either. The next
claim would then have the same attempt number, and readers could not tell its events from those that
they have received (I4)."""
CLAIM_UNOWNED_TOGETHER = _claim(
    "r.id = ready.id",
    first=f"""ready AS MATERIALIZED (SELECT r.id FROM me
                                     CROSS JOIN {locked_responses(f"unnest({array('ids', 'uuid')}) AS t (id)")}
                                     WHERE {IS_READY}),""",
    source="me, ready",
)
"""CLAIM_UNOWNED for several responses. No row also for one that another transaction has locked: the
claims of the others do not wait for that."""

FENCE_ALONE = column(f"WITH {FENCE} SELECT id FROM me", UUID)
"""The fence as the first statement of a longer transaction. No row: this process was declared
dead."""


@dataclass(frozen=True, slots=True)
class LockedOrphan:
    """An open response without a live owner, before its claim."""

    id: UUID
    worker: UUID | None
    """the dead owner, whose journal the new owner must recover"""
    crashes_since_checkpoint: int
    """this owner's included"""
    crashes_in_turn: int
    """this owner's included"""
    cancelled: bool
    failed: bool
    """an operator wants it to end as failed"""
    past_deadline: bool
    started: bool
    """a worker has claimed it before"""
    abandoned: bool
    previous: str | None
    """of one that waits for its previous response, if that has ended so that this one cannot run:
    `failed`, `cancelled`, `deleted`, or `calls`: it needs outputs of calls"""

    @property
    def crashes(self) -> Crashes:
        """How often its owners crashed."""
        return Crashes(self.crashes_since_checkpoint, self.crashes_in_turn)


_PREVIOUS = f"""CASE WHEN r.waits AND r.fail_requested_at IS NOT NULL THEN nullif(coalesce(
               (SELECT CASE WHEN p.delete_requested_at IS NOT NULL THEN 'deleted' WHEN p.status IN {OPEN} THEN ''
                       WHEN p.status IN ('failed', 'cancelled') THEN p.status ELSE 'calls' END
                FROM responses p WHERE p.id = r.previous_response_id), 'deleted'), '') END"""

LOCK_ORPHANS = Query(
    f"""
    SELECT r.id, r.worker, {CRASHES_OF_ORPHAN} AS crashes_since_checkpoint,
           {CRASHES_IN_TURN_OF_ORPHAN} AS crashes_in_turn, r.cancel_requested_at IS NOT NULL AS cancelled,
           r.fail_requested_at IS NOT NULL AS failed, r.deadline <= clock_timestamp() AS past_deadline,
           r.started_at IS NOT NULL AS started, {ABANDONED} AS abandoned, {_PREVIOUS} AS previous
    FROM responses r WHERE r.id = ANY(CAST(:ids AS uuid[])) AND r.status IN {OPEN} AND {ORPHAN} ORDER BY r.id
    FOR UPDATE OF r SKIP LOCKED
    """,
    LockedOrphan,
)
"""Locks those of these responses that can be claimed, in id order. A response without a row: it has
ended, a live worker owns it, or another transaction holds its lock."""

_IS_GIVEN_ORPHAN = f"r.id = ANY(CAST(:ids AS uuid[])) AND r.status IN {OPEN} AND {ORPHAN}"
CLAIM = _claim(
    f"{_IS_GIVEN_ORPHAN} AND {_MAY_RUN} AND ({NOT_DEFERRED} OR r.requeue_requested_at IS NOT NULL)"
)
"""Claims orphans in order to run them; a deferred one only once its pause is over or an operator
has requeued it. A response without a row: it may not run now."""
CLAIM_TO_END = _claim(_IS_GIVEN_ORPHAN, input_items="CAST(NULL AS jsonb)")
"""Claims orphans whose end is already decided: cancelled, failed by an operator, past the deadline,
or too many crashes. A response without a row: it has ended, or a live worker owns it."""


@dataclass(frozen=True, slots=True)
class OwnerDeath:
    """The crash of the owner that a response had before its claim."""

    id: UUID
    """of the response"""
    seconds_lost: float
    """since the lease of that owner ran out"""


RECORD_OWNER_DEATHS = Query(
    """
    UPDATE attempts a SET outcome = 'died', ended_at = w.expires_at
    FROM unnest(CAST(:ids AS uuid[]), CAST(:attempts AS int[])) AS t (id, attempt)
    CROSS JOIN LATERAL (SELECT max(b.attempt) AS attempt FROM attempts b
                        WHERE b.response_id = t.id AND b.attempt < t.attempt) previous, workers w
    WHERE a.response_id = t.id AND a.attempt = previous.attempt AND w.id = a.worker
    RETURNING t.id, extract(epoch FROM clock_timestamp() - w.expires_at)::float AS seconds_lost
    """,
    OwnerDeath,
)
"""Records, with claims from dead workers, that the attempt before each ended when the lease of its
worker ran out. `attempts`: the numbers of the new attempts. A response without a row: the record of
that attempt or worker was deleted."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How much of a response is in the event log."""

    id: UUID
    last: int
    """the number of its last event, -1 if there is none"""


LOG_ENDS = Query(
    """
    SELECT t.id, coalesce((SELECT max(e.last_number) FROM event_log e WHERE e.response_id = t.id), -1) AS last
    FROM unnest(CAST(:ids AS uuid[])) AS t (id)
    """,
    LogEnd,
)
"""Selects the ends of these responses' event logs: one row for each."""


@dataclass(frozen=True, slots=True)
class ResponseBlock:
    """A `LogBlock` and its response."""

    id: UUID
    attempt: int
    first: int
    last: int
    frames: bytes


UNFLUSHED_JOURNALS = Query(
    f"""
    WITH given AS MATERIALIZED (SELECT *
                                FROM unnest(CAST(:ids AS uuid[]), CAST(:previous AS uuid[]), CAST(:afters AS int[]))
                                    AS t (id, previous, after)),
         owner AS MATERIALIZED (SELECT DISTINCT previous AS id FROM given),
         unflushed AS MATERIALIZED (
             SELECT w.id AS worker, b.* FROM owner JOIN workers w ON w.id = owner.id {UNFLUSHED_BATCHES}
             CROSS JOIN LATERAL unnest(j.response_ids, j.attempts, j.first_numbers, j.last_numbers, j.frames)
                 AS b (id, attempt, first, last, frames)
             WHERE b.id = ANY(CAST(:ids AS uuid[])))
    SELECT b.id, b.attempt, b.first, b.last, b.frames
    FROM unflushed b JOIN given ON given.id = b.id AND given.previous = b.worker
    WHERE b.last > given.after ORDER BY b.id, b.first
    """,
    ResponseBlock,
)
"""Selects what the workers `previous` published of these responses beyond `afters`, the ends of the
event logs. It reads each worker's journal once, however many responses there are."""
RECOVER_JOURNALS = Statement(f"""
    {INSERT_INTO_LOG} SELECT *
    FROM unnest(CAST(:ids AS uuid[]), CAST(:firsts AS int[]), CAST(:lasts AS int[]), CAST(:attempts AS int[]),
                CAST(:frames AS bytea[]))
    ON CONFLICT DO NOTHING
""")
"""Appends blocks of the previous owners' journals to the event log."""
LOG_SINCE = Query(
    """
    SELECT attempt, first_number AS first, last_number AS last, frames FROM event_log
    WHERE response_id = :id AND last_number > :after ORDER BY first_number
    """,
    LogBlock,
)
"""Selects the event log of a response beyond the number `after`."""
LOGS_SINCE = Query(
    """
    SELECT t.id, e.attempt, e.first, e.last, e.frames
    FROM unnest(CAST(:ids AS uuid[]), CAST(:afters AS int[])) AS t (id, after)
    CROSS JOIN LATERAL (SELECT attempt, first_number AS first, last_number AS last, frames FROM event_log
                        WHERE response_id = t.id AND last_number > t.after OFFSET 0) e
    ORDER BY t.id, e.first
    """,
    ResponseBlock,
)
"""Selects the event logs of several responses, each beyond its number of `afters`. `OFFSET 0` keeps
Postgres from reading the table of all logs."""


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
    origin: str | None = None
    """sealed: what its upstream wants back with the call"""


CHECKPOINTED_OUTPUT = Query(
    """
    SELECT i.payload, c.output_index, c.turn, c.started_attempt, c.finished, c.answer AS result, i.origin
    FROM items i LEFT JOIN tool_calls c ON c.response_id = i.response_id AND c.position = i.position
    WHERE i.response_id = :id AND i.direction = 'output' ORDER BY i.position
    """,
    CheckpointedItem,
)
"""Selects the output up to the last checkpoint, for the attempt that continues it."""
