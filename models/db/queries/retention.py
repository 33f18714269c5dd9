"""How long rows are kept, and how they are deleted."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from models.db.queries.common import ENDED, LATEST, OPEN
from models.db.statement import Query, Statement, column
from models.lifecycle import BACKLOG, IN_LINE, PLACE_IN_LINE

EXTEND_UNSTORED = column(
    """
    UPDATE responses SET expires_at = clock_timestamp() + CAST(:lifetime AS interval)
    WHERE id = ANY(:ids) AND NOT store AND kept_for IS NULL RETURNING id
    """,
    UUID,
)
"""Sets how long the unstored responses `ids` are kept: for as long as the connection that made them
may continue them, and once it is closed, for no time at all."""

_DETACH_ITEMS = """
    conversation_items AS MATERIALIZED (
        SELECT i.id, c.turn, c.answer FROM old JOIN items i ON i.response_id = old.id AND i.conversation_id IS NOT NULL
        LEFT JOIN tool_calls c ON c.response_id = i.response_id AND i.direction = 'output' AND c.position = i.position
        ORDER BY i.id FOR UPDATE OF i
    ),
    detached AS (UPDATE items i SET response_id = NULL, turn = conversation_items.turn,
                        answer = conversation_items.answer
                 FROM conversation_items WHERE i.id = conversation_items.id)"""
"""Before the responses in `old` are deleted: items that are part of a conversation stay in it. The
others are deleted with their response."""

DELETE_ENDED = column(
    f"""
    WITH old AS MATERIALIZED (SELECT id FROM responses WHERE id = :id AND project_id = :project AND status IN {ENDED}
                              AND (SELECT count(*) FROM (SELECT 1 FROM event_log e
                                                         WHERE e.response_id = :id LIMIT 1001) e) <= 1000
                                                         FOR UPDATE), {_DETACH_ITEMS}
    DELETE FROM responses USING old WHERE responses.id = old.id RETURNING responses.id
    """,
    UUID,
)
"""Deletes a response with its items and its log, while a client waits. No row: it has not ended, or
its log has more than a thousand rows; then the purge deletes it."""

# --- the purge (worker/process/purge.py) ---
#
# Each step is one transaction. `statement_timestamp()` instead of `clock_timestamp()`: only a stable
# function can bound the range that an index scan reads.

LOCK_PURGE = column(
    """
    SELECT held FROM (SELECT pg_try_advisory_lock(CAST(:key AS bigint)) AS held,
                             set_config('lock_timeout', '1s', false),
                             set_config('statement_timeout', '30s', false)) AS locked WHERE held
    """,
    bool,
)
"""Takes the lock of the purge, and sets the limits of the session, which holds it until it ends. No
row: another worker purges. The watch ends the sessions of a process that stands still."""
READ_ONE_SNAPSHOT = Statement("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
"""For HIDE_EXPIRED: if a client changes one of the rows meanwhile, nothing is hidden."""


@dataclass(frozen=True, slots=True)
class HiddenResponses:
    """What one HIDE_EXPIRED did."""

    examined: int
    """expired responses that were looked at"""
    hidden: int
    """responses that are to be deleted now"""
    expires_at: datetime | None
    """with `id` the position of the last response that was looked at; null: there was none"""
    id: UUID | None


_IS_COLLECTED = "NOT EXISTS (SELECT 1 FROM batch_lines l WHERE l.response_id = r.id OFFSET 0)"
"""No batch has still to write the result of `r`."""
_IS_EXPIRED = f"""r.status IN {ENDED} AND r.expires_at < statement_timestamp() AND r.delete_requested_at IS NULL
    AND {_IS_COLLECTED}"""


def _is_continued(but: str = "") -> str:
    """Whether a response that is kept continues `r`. OFFSET 0: looked up in the index for each row;
    the planner cannot know how few there are."""
    return f"""EXISTS (SELECT 1 FROM responses c
                       WHERE c.previous_response_id = r.id
                         AND (c.delete_requested_at IS NULL OR c.status IN {OPEN}) {but} OFFSET 0)"""


HIDE_EXPIRED = Query(
    f"""
    WITH RECURSIVE examined AS MATERIALIZED (
        SELECT r.id, r.previous_response_id, r.expires_at, r.status, r.delete_requested_at FROM responses r
        WHERE r.expires_at < statement_timestamp()
          AND (r.expires_at, r.id) > (CAST(:expires_at AS timestamptz), CAST(:id AS uuid))
        ORDER BY r.expires_at, r.id LIMIT :rows
    ),
    chain AS (
        SELECT r.id, r.previous_response_id FROM examined r WHERE {_IS_EXPIRED} AND NOT {_is_continued()}
        UNION ALL
        SELECT previous.id, previous.previous_response_id
        FROM chain CROSS JOIN LATERAL (
            SELECT r.id, r.previous_response_id
            FROM (SELECT * FROM responses WHERE id = chain.previous_response_id OFFSET 0) r
            WHERE {_IS_EXPIRED} AND NOT {_is_continued("AND c.id <> chain.id")} OFFSET 0
        ) previous
    ),
    hidden AS (
        UPDATE responses r SET delete_requested_at = clock_timestamp() FROM (SELECT id FROM chain LIMIT :rows) expired
        WHERE r.id = expired.id RETURNING r.id
    )
    SELECT (SELECT count(*) FROM examined) AS examined, (SELECT count(*) FROM hidden) AS hidden,
           last.expires_at, last.id
    FROM (SELECT 1) AS one LEFT JOIN (SELECT expires_at, id FROM examined
                                      ORDER BY expires_at DESC, id DESC LIMIT 1) last ON true
    """,
    HiddenResponses,
)
"""Hides expired responses from the API, so that the next steps can delete them piece by piece.
Looks at up to `rows` that expired behind the position (`expires_at`, `id`), and hides up to `rows`
of those that no kept response continues, and of the expired ones before them in their chains. An
expired response that a kept one continues is kept: it is part of that one's history. So is one
whose result a batch has not written yet.

The chain goes from a response to the previous one. It stops at one that another kept response
continues too. When both branches are hidden, the next call goes on there. `OFFSET 0`: while the statistics
know of few expired responses, the planner would read all of these for each one."""

_IS_DELETABLE = (
    f"r.delete_requested_at IS NOT NULL AND r.status IN {ENDED}"
    " AND (r.reason IS DISTINCT FROM 'create_refused' OR r.expires_at < statement_timestamp())"
)

DELETABLE = column(
    f"""
    SELECT id FROM (
        SELECT r.id, r.delete_requested_at, n.items, sum(n.items) OVER (ORDER BY r.delete_requested_at, r.id) AS total
        FROM (SELECT * FROM responses r WHERE {_IS_DELETABLE} ORDER BY r.delete_requested_at, r.id LIMIT 500) r
        CROSS JOIN LATERAL (SELECT count(*) AS items FROM items i WHERE i.response_id = r.id) n
    ) counted WHERE total - items < CAST(:items AS bigint) ORDER BY delete_requested_at, id
    """,
    UUID,
)
"""Selects up to 500 hidden responses that have ended, and no more after those that have `items`
items together. The marker of a refused create is kept until it expires."""

DELETE_LOG = column(
    f"""
    WITH part AS MATERIALIZED (
        SELECT e.response_id, e.first_number FROM unnest(CAST(:ids AS uuid[])) WITH ORDINALITY AS t (id, nr)
        JOIN responses r ON r.id = t.id AND {_IS_DELETABLE}
         AND NOT (r.store AND r.expires_at < statement_timestamp() AND EXISTS (
             SELECT 1 FROM unnest(CAST(:begins AS uuid[]), CAST(:ends AS uuid[])) AS p (begins, ends)
             WHERE r.id >= p.begins AND r.id < p.ends))
        CROSS JOIN LATERAL (SELECT * FROM event_log e WHERE e.response_id = t.id ORDER BY e.first_number LIMIT :rows) e
        ORDER BY t.nr, e.first_number LIMIT :rows
    ),
    deleted AS (DELETE FROM event_log e USING part
                WHERE e.response_id = part.response_id AND e.first_number = part.first_number RETURNING 1)
    SELECT count(*) AS rows FROM deleted
    """,
    int,
)
"""Deletes up to `rows` rows of the logs of DELETABLE responses, each log from its beginning. A log
without its beginning is not read any more (read.LOG_PAGE). Returns how many; fewer than `rows`: all
these logs are empty, but those of stored responses that have expired, with ids in the ranges
`begins` to `ends`, which are left to the end of their partition."""
LEAVE_LOGS = Statement("SET LOCAL backburner.logs_are_left = 'on'")
"""What this transaction deletes of `responses` leaves its log (the trigger
`log_of_response_is_deleted`)."""

DELETE_HIDDEN = column(
    f"""
    WITH old AS MATERIALIZED (SELECT r.id FROM responses r WHERE r.id = ANY(CAST(:ids AS uuid[])) AND {_IS_DELETABLE}
                              ORDER BY r.id FOR UPDATE SKIP LOCKED),
    {_DETACH_ITEMS}
    DELETE FROM responses USING old WHERE responses.id = old.id RETURNING responses.id
    """,
    UUID,
)
"""Deletes those of the responses `ids` that are still DELETABLE, with all their rows. The items go
in the same statement, because a response that continues a deleted one would otherwise read half of
its history. Items of a conversation stay in it; a conversation does not expire."""

DELETE_OLD_WORKERS = column(
    f"""
    WITH old AS MATERIALIZED (SELECT w.id FROM workers w
                              WHERE w.dead AND w.expires_at < statement_timestamp() - interval '1 hour'),
         deleted AS (DELETE FROM workers w USING old WHERE w.id = old.id
                     AND NOT EXISTS (SELECT 1 FROM responses r WHERE r.worker = w.id)
                     AND old.id NOT IN (SELECT r.web FROM responses r WHERE r.status IN {OPEN} AND r.web IS NOT NULL)
                     RETURNING w.id),
         trimmed AS (DELETE FROM journal j USING deleted WHERE j.worker = deleted.id)
    SELECT id FROM deleted
    """,
    UUID,
)
"""Deletes the rows and journals of processes that died more than an hour ago and that no response
names any more. The open responses are read once for all of them, and only if there are some."""
DELETE_RECOVERED_JOURNALS = column(
    """
    WITH recovered AS MATERIALIZED (SELECT w.id FROM workers w
                                    WHERE w.dead AND w.kind <> 'web' AND NOT EXISTS (SELECT 1 FROM responses r
                                        WHERE r.worker = w.id OFFSET 0))
    DELETE FROM journal j USING recovered WHERE j.worker = recovered.id RETURNING 1
    """,
    int,
)
"""Deletes the journals of processes that died and own no response any more: what they published is
in the event log."""
DELETE_EXPIRED_KEYS = column(
    """
    WITH expired AS MATERIALIZED (
        SELECT k.project_id, k.key FROM idempotency_keys k WHERE k.expires_at < statement_timestamp()
        ORDER BY k.expires_at LIMIT :rows FOR UPDATE SKIP LOCKED
    )
    DELETE FROM idempotency_keys k USING expired WHERE k.project_id = expired.project_id AND k.key = expired.key
    RETURNING 1 AS key
    """,
    int,
)
"""Deletes up to `rows` idempotency keys that have expired."""

# --- the audit log ---

ALLOW_AUDIT_PURGE = column(
    """
    SELECT set_config('backburner.audit_expires_before', CAST(now() - CAST(:retention AS interval) AS text),
                      true) AS value
    """,
    str,
)
"""The triggers of the audit log let this transaction delete entries that are older than
`retention`, and none of the last day."""
DELETE_EXPIRED_AUDIT = column(
    """
    WITH old AS MATERIALIZED (SELECT id FROM audit WHERE at < now() - CAST(:retention AS interval)
                              ORDER BY at LIMIT :rows)
    DELETE FROM audit USING old WHERE audit.id = old.id RETURNING audit.id
    """,
    UUID,
)
"""Deletes up to `rows` entries of the audit log that are older than `retention`."""

REPAIR_RESPONSES = column(
    f"""
    WITH early AS MATERIALIZED (
        SELECT r.id FROM responses r WHERE {IN_LINE} AND {PLACE_IN_LINE} > {LATEST} AND r.enqueued_at > {LATEST}
          AND (r.attempt > 0 OR r.confirmed)
        UNION
        SELECT r.id FROM responses r WHERE r.worker IS NULL AND r.status IN {OPEN} AND NOT {BACKLOG}
          AND r.enqueued_at > {LATEST} AND (r.attempt > 0 OR r.confirmed)
        LIMIT :rows)
    UPDATE responses r SET enqueued_at = statement_timestamp(),
           resume_at = statement_timestamp() + (r.resume_at - r.enqueued_at),
           urgent_at = statement_timestamp() + (r.urgent_at - r.enqueued_at),
           window_ends_at = statement_timestamp() + (r.window_ends_at - r.enqueued_at),
           started_at = least(r.started_at, statement_timestamp())
    FROM early WHERE r.id = early.id AND r.worker IS NULL RETURNING 1 AS repaired
    """,
    int,
)
"""Responses that wait. A deferred one waits from now on, and a window begins again. Not those whose
wake-up no worker has read: their web process may have answered with 503, and what it knows depends
on these times (I9)."""
