"""What a worker writes while it runs a response: journal, flushes, checkpoints, and its release."""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.common import FENCE, INSERT_INTO_LOG, insert_items
from models.db.statement import Query, Statement, column
from models.lifecycle import QUARANTINE_THRESHOLD


@dataclass(frozen=True, slots=True)
class JournalOutcome:
    """What became of a batch."""

    live: bool
    """False: this process was declared dead; it must exit"""
    marked: bool
    """False: a crash of Postgres has emptied the journal; all tails must be flushed first"""
    stored: bool
    """False: an earlier try has stored the batch"""


JOURNAL = Query(
    f"""
    WITH {FENCE},
         mark AS (SELECT 1 FROM journal, me WHERE worker = me.id AND batch = 0),
         ins AS (INSERT INTO journal (worker, batch, response_ids, attempts, first_numbers, last_numbers, frames)
                 SELECT me.id, CAST(:batch AS bigint), CAST(:ids AS uuid[]), CAST(:attempts AS int[]),
                        CAST(:firsts AS int[]),
                        CAST(:lasts AS int[]), CAST(:frames AS bytea[]) FROM me, mark
                 ON CONFLICT DO NOTHING RETURNING 1)
    SELECT (SELECT count(*) FROM me) > 0 AS live, (SELECT count(*) FROM mark) > 0 AS marked,
           (SELECT count(*) FROM ins) > 0 AS stored
    """,
    JournalOutcome,
)
"""Inserts a batch of frames into this worker's journal. One row. If `live` and `marked`, the batch
is stored, now or by an earlier try, and may be published."""

FLUSH = column(
    f"""
    WITH {FENCE},
         logged AS ({INSERT_INTO_LOG}
                    SELECT t.id, t.first, t.last, t.attempt, t.frames
                    FROM me CROSS JOIN unnest(CAST(:ids AS uuid[]), CAST(:firsts AS int[]), CAST(:lasts AS int[]),
                                              CAST(:attempts AS int[]),
                                              CAST(:frames AS bytea[])) AS t (id, first, last, attempt, frames)
                    CROSS JOIN LATERAL (SELECT r.worker, r.attempt FROM responses r WHERE r.id = t.id OFFSET 0) r
                    WHERE r.worker = me.id AND r.attempt = t.attempt ORDER BY t.id
                    ON CONFLICT DO NOTHING),
         trimmed AS (DELETE FROM journal USING me WHERE journal.worker = me.id AND batch > CAST(:trimmed AS bigint)
                     AND batch <= CAST(:answered AS bigint)),
         marked AS (UPDATE workers SET flushed_batch = :answered FROM me
                    WHERE workers.id = me.id AND workers.flushed_batch < CAST(:answered AS bigint))
    SELECT id FROM me
    """,
    UUID,
)
"""Appends the tails of many responses to the event log, and deletes the journal's batches up to
`answered`: those that transactions with a known outcome cover. No row: this process was declared
dead.

`OFFSET 0` makes Postgres look each response up by its id; it would else read those of all workers.

`trimmed`: an earlier flush has deleted the batches up to this one. Without this bound, the statement
would read them all again while an old snapshot (a dump) keeps them in the table."""

OWNED = "r.id = :id AND r.worker = me.id AND r.attempt = :attempt AND r.status = 'in_progress'"
"""The response `r` runs in this process, as this attempt."""
INSERT_TAIL = f"""logged AS ({INSERT_INTO_LOG}
                   SELECT id, CAST(:first AS int), CAST(:last AS int), CAST(:attempt AS int), CAST(:frames AS bytea)
                   FROM updated
                   WHERE CAST(:first AS int) <= CAST(:last AS int) ON CONFLICT DO NOTHING)"""
"""Appends the tail of the response in `updated`, unless the tail is empty."""


def insert_output(conversation: str = "CAST(NULL AS uuid)") -> str:
    """Inserts output `items` from `position` on, of the response in `updated`."""
    insert = insert_items(
        "updated",
        response="updated.id",
        conversation=conversation,
        direction="output",
        position="CAST(:position AS int)",
        origins="CAST(:origins AS jsonb)",
        on_conflict="ON CONFLICT DO NOTHING",
    )
    return f"stored AS ({insert})"


_ANSWERED_BY_TURN = ", ".join(
    f"{name} = CASE WHEN CAST(:turns AS int) > 0 THEN {value} ELSE r.{name} END"
    for name, value in (
        ("failed_upstream", "NULL"),
        ("retrying_since", "NULL"),
        ("failed_tries", "0"),
    )
)
"""After a turn of the model the response is not `retrying` any more."""

CHECKPOINT = column(
    f"""
    WITH {FENCE},
         updated AS (UPDATE responses r SET turns = r.turns + CAST(:turns AS int), crashes = 0, usage = :usage,
                            upstream = coalesce(:upstream, r.upstream), {_ANSWERED_BY_TURN},
                            checkpoint_number = :last, next_output_index = :next_output_index
                     FROM me WHERE {OWNED} AND r.checkpoint_number < CAST(:last AS int)
                     RETURNING r.id, r.steers),
         {INSERT_TAIL}, {insert_output()},
         called AS (INSERT INTO tool_calls (response_id, position, output_index, turn, finished)
                    SELECT updated.id, c.position, c.output_index, c.turn, c.finished
                    FROM updated CROSS JOIN jsonb_to_recordset(CAST(:calls AS jsonb))
                        AS c (position int, output_index int, turn int, finished bool)
                    ON CONFLICT DO NOTHING),
         recorded AS (UPDATE attempts a SET turns_ended_at = a.turns_ended_at || clock_timestamp() FROM updated
                      WHERE a.response_id = updated.id AND a.attempt = CAST(:attempt AS int)
                        AND CAST(:turns AS int) > 0)
    SELECT steers FROM updated
    """,
    int,
)
"""Stores a finished turn that another follows: its items, those calls among them that this server
runs, and the log up to them. The log has the items up to the first call that is not finished.
`turns` is 0 for calls that run before the model's first turn. Returns how many steers were accepted. No row:
see OWNERSHIP_STATE."""

START_CALL = column(
    f"""
    WITH {FENCE},
         updated AS (SELECT r.id FROM responses r, me WHERE {OWNED} AND r.cancel_requested_at IS NULL
                     FOR NO KEY UPDATE OF r),
         started AS (UPDATE tool_calls c SET started_attempt = CAST(:attempt AS int) FROM updated
                     WHERE c.response_id = updated.id AND c.position = CAST(:position AS int) AND NOT c.finished)
    SELECT id FROM updated
    """,
    UUID,
)
"""Records that a tool call is about to run: from now until FINISH_CALL its outcome is unknown. No
row: a cancel is recorded, so the call must not run; or see OWNERSHIP_STATE."""

FINISH_CALL = column(
    f"""
    WITH {FENCE},
         updated AS (UPDATE responses r SET checkpoint_number = greatest(r.checkpoint_number, CAST(:last AS int))
                     FROM me WHERE {OWNED} RETURNING r.id, r.steers),
         {INSERT_TAIL},
         replaced_item AS (UPDATE items i SET payload = CAST(:item AS jsonb), size = CAST(:size AS bigint) FROM updated
                           WHERE i.response_id = updated.id AND i.direction = 'output'
                             AND i.position = CAST(:position AS int)),
         finished AS (UPDATE tool_calls c SET finished = true, answer = CAST(:result AS jsonb) FROM updated
                      WHERE c.response_id = updated.id AND c.position = CAST(:position AS int))
    SELECT steers FROM updated
    """,
    int,
)
"""Stores the result of a tool call: its item, what the model receives, and the log up to the item's
done event. Returns how many steers were accepted. No row: see OWNERSHIP_STATE."""

RELEASE = column(
    f"""
    WITH {FENCE},
         given AS MATERIALIZED (SELECT *
                                FROM unnest(CAST(:ids AS uuid[]), CAST(:attempts AS int[]), CAST(:firsts AS int[]),
                                            CAST(:lasts AS int[]),
                                                     CAST(:frames AS bytea[]), CAST(:outcomes AS text[]),
                                                     CAST(:pauses AS interval[]), CAST(:failures AS text[]))
                                AS t (id, attempt, first, last, frames, outcome, pause, failures)),
         owned AS MATERIALIZED (SELECT r.id FROM me CROSS JOIN given JOIN responses r ON r.id = given.id
                                WHERE r.id = ANY(CAST(:ids AS uuid[])) AND r.worker = me.id
                                  AND r.attempt = given.attempt AND r.status = 'in_progress'
                                ORDER BY r.id FOR NO KEY UPDATE OF r),
         updated AS (UPDATE responses r SET worker = NULL, enqueue_count = 0, enqueued_at = clock_timestamp(),
                            requeue_requested_at = NULL,
                            crashes = r.crashes + (given.outcome = 'error')::int,
                            resume_at = clock_timestamp() + given.pause,
                            reason = CAST(given.failures AS jsonb) #>> '{{-1,reason}}',
                            failed_upstream = coalesce(CAST(given.failures AS jsonb) #>> '{{-1,upstream}}',
                                                       r.failed_upstream),
                            retrying_since = CASE WHEN given.failures IS NULL THEN r.retrying_since
                                ELSE coalesce(r.retrying_since, clock_timestamp()) END,
                            failed_tries = r.failed_tries + (given.failures IS NOT NULL)::int
                     FROM owned JOIN given USING (id) WHERE r.id = owned.id RETURNING given.*),
         logged AS ({INSERT_INTO_LOG}
                    SELECT id, first, last, attempt, frames FROM updated WHERE first <= last ON CONFLICT DO NOTHING),
         recorded AS (UPDATE attempts a SET outcome = updated.outcome, ended_at = clock_timestamp(),
                             failures = CAST(updated.failures AS jsonb) FROM updated
                      WHERE a.response_id = updated.id AND a.attempt = updated.attempt),
         dropped AS (DELETE FROM attempts a USING updated
                     WHERE updated.outcome = 'deferred' AND a.response_id = updated.id
                     AND a.attempt < updated.attempt AND a.outcome = 'deferred' AND a.turns_ended_at = '{{}}'
                     AND (SELECT b.outcome FROM attempts b WHERE b.response_id = a.response_id
                          AND b.attempt < a.attempt ORDER BY b.attempt DESC LIMIT 1) = 'deferred'),
         notified AS MATERIALIZED (SELECT pg_notify('backburner_orphans', '') FROM updated
                                   WHERE outcome = 'handed_over' LIMIT 1)
    SELECT id FROM updated WHERE (SELECT count(*) FROM notified) >= 0
    """,
    UUID,
)
"""Releases those of these responses that run in this process as these attempts, each with its log
complete. `outcomes`: why, as in `attempts`; only `error` counts as a crash. `pauses`: for how long
no worker may claim them, or null. `failures`: of a deferred response, the failed calls of upstreams
as a JSON array; the last one gives the row's `reason`, and the response is `retrying`. Of attempts
that were deferred one after another only the first and the last are kept, because a response may
wait for a day. If any is handed over, the
sweeps of all workers are notified (leases.LISTEN_FOR_ORPHANS). A response without a row: see
RELEASED."""

RELEASED = column(
    """
    SELECT r.id FROM unnest(CAST(:ids AS uuid[]), CAST(:attempts AS int[])) AS t (id, attempt)
    JOIN responses r ON r.id = t.id AND r.attempt = t.attempt AND r.worker IS NULL
    """,
    UUID,
)
"""Selects those of these attempts that an earlier try of RELEASE has released. This process does
not own the other ones any more."""


RECORD_ANSWER = column(
    f"""
    WITH {FENCE},
         updated AS (UPDATE responses r SET failed_upstream = NULL, retrying_since = NULL, failed_tries = 0
                     FROM me WHERE {OWNED} RETURNING r.id)
    SELECT id FROM updated
    """,
    UUID,
)
"""Records that an upstream answers a response that was `retrying`. No row: this process does not own
it."""

RECORD_FAILURES = Statement(f"""
    WITH {FENCE}
    UPDATE attempts a SET failures = CAST(:failures AS jsonb) FROM me
    WHERE a.response_id = :id AND a.attempt = CAST(:attempt AS int) AND a.worker = me.id
""")
"""Stores which calls of upstreams failed in an attempt that has ended its response, for operators."""

FORGET_CRASHES = column(
    f"""
    WITH {FENCE},
         updated AS (UPDATE responses r SET crashes = least(r.crashes, {QUARANTINE_THRESHOLD}) FROM me WHERE {OWNED}
                     RETURNING r.id)
    SELECT id FROM updated
    """,
    UUID,
)
"""Forgets all crashes of a suspect but those that made it one: it has run alone for long enough. No
row: this process does not own it."""


@dataclass(frozen=True, slots=True)
class StoredLog:
    """How much of a running response's log is in the event log."""

    id: UUID
    attempt: int
    log_end: int
    """the number of the last event, -1 if there is none"""


STORED_LOGS = Query(
    """
    SELECT r.id, r.attempt,
           coalesce((SELECT max(e.last_number) FROM event_log e WHERE e.response_id = r.id), -1) AS log_end
    FROM responses r WHERE r.worker = :me AND r.status = 'in_progress'
    """,
    StoredLog,
)
"""Selects the responses of this worker with the ends of their logs, after a failover."""

RELEASE_INCOMPLETE = column(
    f"""
    WITH {FENCE},
         updated AS (UPDATE responses r SET worker = NULL, enqueue_count = 0, enqueued_at = clock_timestamp(),
                            requeue_requested_at = NULL
                     FROM me WHERE r.id = ANY(CAST(:ids AS uuid[])) AND r.worker = me.id AND r.status = 'in_progress'
                     RETURNING r.id, r.attempt),
         recorded AS (UPDATE attempts a SET outcome = 'returned', ended_at = clock_timestamp() FROM updated
                      WHERE a.response_id = updated.id AND a.attempt = updated.attempt)
    SELECT id FROM updated
    """,
    UUID,
)
"""Releases responses of this worker as they are stored: no crash is counted. No row: none of them
is this worker's, or it was declared dead."""


@dataclass(frozen=True, slots=True)
class OwnershipState:
    """Who owns a response, and how far it is."""

    status: str
    worker: UUID | None
    attempt: int
    cancelled: bool
    checkpoint_number: int
    steers: int
    """how many were accepted"""


OWNERSHIP_STATE = Query(
    """
    SELECT status, worker, attempt, cancel_requested_at IS NOT NULL AS cancelled, checkpoint_number, steers
    FROM responses
    WHERE id = :id
    """,
    OwnershipState,
)
"""Selects why a fenced write changed nothing: an earlier try has done it, a cancel was recorded
first, or this process does not own the response any more. No row: it was deleted."""
