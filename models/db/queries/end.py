"""How a response ends, and the requests to cancel it."""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.audit import recorded
from models.db.queries.common import (
    EXPIRES_AT_END,
    FENCE,
    INSERT_INTO_LOG,
    OPEN,
    array,
    insert_items,
    locked_responses,
    sql_list,
)
from models.db.queries.run import INSERT_TAIL, OWNED, insert_output
from models.db.queries.usage import INSERT_USED, USED_COLUMNS
from models.db.statement import Query, column
from models.lifecycle import TERMINAL, Status, sources_of


@dataclass(frozen=True, slots=True)
class EndedRow:
    """A response that was ended."""

    id: UUID
    awaited: bool | None
    """another one may have waited for it (models/db/queries/chains.py)"""


_JOINS_CONVERSATION = frozenset((Status.COMPLETED, Status.INCOMPLETE))
"""A response with such an end becomes part of its conversation, unless it only read it
(`store: false`)."""

MAY_BE_FOLLOWED = frozenset((Status.COMPLETED, Status.INCOMPLETE))
"""After such an end the steers of the response are committed to a successor, or wait for outputs of
the client's tools (ADR 0075)."""

_CHANGED_ITEMS = "jsonb_array_elements(CAST(:changed AS jsonb)) AS e (value)"

_UPDATE_CONVERSATION = """updated_conversation AS (
             UPDATE conversations c SET revision = c.revision + 1, unanswered_calls = :unanswered_calls,
                    size = coalesce(CAST(:history_size AS bigint), c.size) FROM updated
             WHERE c.id = updated.conversation_id)"""
"""For the response in `updated`, which becomes part of its conversation."""


def _end(status: Status) -> str:
    condition = "" if status is Status.CANCELLED else "AND r.cancel_requested_at IS NULL"
    if status in MAY_BE_FOLLOWED:
        condition += " AND r.steers = CAST(:steers AS int)"
    failed_upstream = ""
    if status is Status.FAILED:
        failed_upstream = (
            "failed_upstream = coalesce(:failed_upstream, r.failed_upstream, r.upstream),"
        )
    conversation = (
        "CASE WHEN r.store THEN r.conversation_id END"
        if status in _JOINS_CONVERSATION
        else "CAST(NULL AS uuid)"
    )
    return f"""
        WITH {FENCE},
             updated AS (UPDATE responses r SET status = '{status}', worker = NULL,
                                turns = r.turns + CAST(:turns AS int), usage = :usage, cost = CAST(:cost AS bigint),
                                error = :error,
                                upstream = coalesce(:upstream, r.upstream), service_tier = :service_tier,
                                {failed_upstream}
                                upstream_fields = CAST(:upstream_fields AS json), reason = :reason, failure = :failure,
                                unanswered_calls = :unanswered_calls, completed_at = to_timestamp(:completed_at),
                                expires_at = {EXPIRES_AT_END},
                                history_size = CAST(:history_size AS bigint)
                         FROM me WHERE {OWNED} AND r.status IN {sql_list(sources_of(status))} {condition}
                         RETURNING r.id, r.awaited, {conversation} AS conversation_id, {USED_COLUMNS}),
             used AS ({INSERT_USED}),
             {INSERT_TAIL}, {insert_output("updated.conversation_id")},
             changed AS (UPDATE items i SET payload = e.value -> 'item', conversation_id = updated.conversation_id
                         FROM updated CROSS JOIN {_CHANGED_ITEMS}
                         WHERE i.response_id = updated.id AND i.direction = 'output'
                           AND i.position = CAST(e.value ->> 'position' AS int)),
             joined_items AS (UPDATE items i SET conversation_id = updated.conversation_id FROM updated
                              WHERE updated.conversation_id IS NOT NULL AND i.response_id = updated.id
                                AND (i.direction = 'input'
                                     OR i.position NOT IN (SELECT CAST(e.value ->> 'position' AS int)
                                                           FROM {_CHANGED_ITEMS}))),
             {_UPDATE_CONVERSATION},
             deleted_secrets AS (DELETE FROM job_secrets s USING updated WHERE s.response_id = updated.id)
        SELECT id, awaited FROM updated
    """


END = {status: Query(_end(status), EndedRow) for status in sorted(TERMINAL)}
"""The ending of a response that this worker runs, by terminal status, in one transaction: the last
items, the items of calls that were still running (`changed`), the tail of the log with the terminal
event, status and usage. The secrets are deleted; input and output become part of the conversation.
No row: see OWNERSHIP_STATE. A recorded cancel permits only the ending `cancelled` (I10). `steers`: how
many the owner knows of."""

_MAY_BECOME_ANY = sql_list(set.intersection(*(set(sources_of(status)) for status in TERMINAL)))
"""The statuses that every terminal status may follow."""
_OWNED_BY_ATTEMPT = (
    f"r.worker = me.id AND r.attempt = given.attempt AND r.status IN {_MAY_BECOME_ANY}"
)
_NOT_CANCELLED = f"(r.cancel_requested_at IS NULL OR given.status = '{Status.CANCELLED}')"
_NOT_STEERED = f"(r.steers = 0 OR given.status NOT IN {sql_list(MAY_BE_FOLLOWED)})"
_INSERT_OUTPUTS = insert_items(
    "updated",
    response="updated.id",
    direction="output",
    items="updated.items",
    position="updated.position",
    origins="updated.origins",
    on_conflict="ON CONFLICT DO NOTHING",
)

END_TOGETHER = Query(
    f"""
    WITH {FENCE},
         given AS (
             SELECT * FROM ROWS FROM (
                 jsonb_to_recordset(CAST(:endings AS jsonb)) AS (
                     id uuid, attempt int, status text, turns int, usage jsonb, cost bigint, error jsonb, upstream text,
                     failed_upstream text, service_tier text, upstream_fields json, reason text, failure jsonb,
                     unanswered_calls text[], completed_at bigint, history_size bigint, position int, items jsonb,
                     origins jsonb, first int, last int),
                 unnest({array("frames", "bytea")})
             ) AS t (id, attempt, status, turns, usage, cost, error, upstream, failed_upstream, service_tier,
                     upstream_fields, reason, failure, unanswered_calls, completed_at, history_size, position, items,
                     origins, first, last, frames)),
         owned AS MATERIALIZED (SELECT given.* FROM me CROSS JOIN {locked_responses("given")}
                                WHERE {_OWNED_BY_ATTEMPT} AND {_NOT_CANCELLED} AND {_NOT_STEERED}
                                  AND r.conversation_id IS NULL),
         updated AS (UPDATE responses r SET status = owned.status, worker = NULL, turns = r.turns + owned.turns,
                            usage = owned.usage, cost = owned.cost, error = owned.error,
                            upstream = coalesce(owned.upstream, r.upstream), service_tier = owned.service_tier,
                            failed_upstream = coalesce(owned.failed_upstream, r.failed_upstream,
                                CASE owned.status WHEN '{Status.FAILED}' THEN r.upstream END),
                            upstream_fields = owned.upstream_fields, reason = owned.reason, failure = owned.failure,
                            unanswered_calls = owned.unanswered_calls, completed_at = to_timestamp(owned.completed_at),
                            expires_at = {EXPIRES_AT_END},
                            history_size = owned.history_size
                     FROM owned WHERE r.id = owned.id
                     RETURNING r.id, r.awaited, owned.attempt, owned.first, owned.last, owned.frames, owned.position,
                         owned.items, owned.origins, {USED_COLUMNS}),
         used AS ({INSERT_USED}),
         logged AS ({INSERT_INTO_LOG} SELECT id, first, last, attempt, frames FROM updated
                    WHERE first <= last ON CONFLICT DO NOTHING),
         stored AS ({_INSERT_OUTPUTS}),
         deleted_secrets AS (DELETE FROM job_secrets s USING updated WHERE s.response_id = updated.id)
    SELECT id, awaited FROM updated
    """,
    EndedRow,
)
"""The endings of several responses that this worker runs, in one transaction: END for those that
are in no conversation, whose stored items have not changed and that have no steer. `frames`: the tail of each ending.
A response without a row has not ended by this: another transaction has locked it, or what END says.
Its ending is then sent alone."""

COMPLETE_PRECOMPUTED = column(
    f"""
    WITH updated AS (UPDATE responses r SET status = 'completed', started_at = clock_timestamp(),
                            completed_at = to_timestamp(:completed_at), usage = :usage, cost = 0,
                            service_tier = :service_tier, unanswered_calls = :unanswered_calls,
                            history_size = CAST(:history_size AS bigint), expires_at = {
        EXPIRES_AT_END
    }
                     WHERE r.id = :id RETURNING r.id, CASE WHEN r.store THEN r.conversation_id END AS conversation_id),
         logged AS ({INSERT_INTO_LOG}
                    SELECT updated.id, b.first, b.last, 0, b.frames
                    FROM updated
                    CROSS JOIN unnest(CAST(:firsts AS int[]), CAST(:lasts AS int[]), CAST(:frames AS bytea[]))
                        AS b (first, last, frames)),
         stored AS ({
        insert_items(
            "updated",
            response="updated.id",
            conversation="updated.conversation_id",
            direction="output",
            items=":output",
        )
    }),
         joined_items AS (UPDATE items i SET conversation_id = updated.conversation_id FROM updated
                          WHERE updated.conversation_id IS NOT NULL AND i.response_id = updated.id),
         {_UPDATE_CONVERSATION}
    SELECT id FROM updated
    """,
    UUID,
)
"""Ends a response that no worker has to run, in the transaction that inserts it: no other session
sees it queued."""

_IS_WAITER = "AND waiter = :waiter"
"""The cancel comes from the connection that waits for the response."""


@dataclass(frozen=True, slots=True)
class CancelledResponse:
    """A response that was cancelled before any worker had claimed it."""

    request_id: str | None
    """of the request that made it, for the logs"""
    project_id: UUID
    seconds: float
    """since its creation"""


def _cancel_queued(condition: str = "", audited: str = "") -> Query[CancelledResponse]:
    return Query(
        f"""
        WITH updated AS (UPDATE responses r SET status = 'cancelled', cost = 0, cancel_requested_at = clock_timestamp(),
                                completed_at = to_timestamp(:completed_at),
                                reason = :reason, expires_at = {EXPIRES_AT_END}
                         WHERE id = :id AND status IN ('queued')
                           AND 'queued' IN {sql_list(sources_of(Status.CANCELLED))} AND worker IS NULL AND attempt = 0
                           {condition}
                         RETURNING id, request_id, project_id,
                                   extract(epoch FROM clock_timestamp() - CASE WHEN enqueue_count = 0 THEN enqueued_at
                                               ELSE created_at END)::float AS seconds),
             logged AS ({INSERT_INTO_LOG} SELECT id, :number, :number, 0, CAST(:frames AS bytea) FROM updated),
             deleted_secrets AS (DELETE FROM job_secrets s USING updated WHERE s.response_id = updated.id){audited}
        SELECT request_id, project_id, seconds FROM updated
        """,
        CancelledResponse,
    )


_AUDITED = f", audited AS ({recorded('updated')})"
CANCEL_QUEUED = _cancel_queued()
"""Ends a response that no worker has claimed yet, with its terminal event behind its first events.
No row: it has been claimed (REQUEST_CANCEL), or it has ended."""
CANCEL_QUEUED_BY_CLIENT = _cancel_queued(audited=_AUDITED)
"""CANCEL_QUEUED with an entry in the audit log."""
CANCEL_QUEUED_OF_WAITER = _cancel_queued(_IS_WAITER)
"""CANCEL_QUEUED for a connection that has ended. No row also if another connection has joined the
response."""


@dataclass(frozen=True, slots=True)
class RecordedCancel:
    """A cancel that the owner acts on. `worker`: the owner, or None for an orphan."""

    worker: UUID | None


def _request_cancel(condition: str = "", audited: str = "") -> Query[RecordedCancel]:
    return Query(
        f"""
        WITH updated AS (UPDATE responses SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp())
                         WHERE id = :id AND status = 'in_progress' {condition} RETURNING worker){audited}
        SELECT worker FROM updated
        """,
        RecordedCancel,
    )


REQUEST_CANCEL = _request_cancel()
"""Records that a running response is to be cancelled. No row: it is queued, or it has ended."""
REQUEST_CANCEL_BY_CLIENT = _request_cancel(audited=_AUDITED)
"""REQUEST_CANCEL with an entry in the audit log."""
REQUEST_CANCEL_OF_WAITER = _request_cancel(_IS_WAITER)
"""REQUEST_CANCEL for a connection that has ended. No row also if another connection has joined the
response."""
REQUEST_DELETE = column(
    f"""
    WITH hidden AS (UPDATE responses SET delete_requested_at = clock_timestamp(),
                           cancel_requested_at = CASE WHEN status IN {OPEN} THEN coalesce(cancel_requested_at,
                               clock_timestamp()) ELSE cancel_requested_at END
                    WHERE id = :id AND project_id = :project RETURNING id),
         audited AS ({recorded("hidden")})
    SELECT id FROM hidden
    """,
    UUID,
)
"""Hides a response from the API, records its cancel if it is open, and adds the entry to the audit
log: what is deleted never runs to its own end (I10). Its rows are deleted once it has ended
(retention.DELETE_ENDED, or the purge)."""
