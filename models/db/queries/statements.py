"""Every statement that a promise hangs on, written once (design §5.1); web, workers, sweeper and command line share them.

Each write of a worker begins with the fence: its own row in `workers`, not dead, locked FOR KEY SHARE. A reaper locks that row
FOR UPDATE, which conflicts; a heartbeat is a plain UPDATE of non-key columns, which does not (FOR SHARE would starve it). Then
responses are locked, in id order where there are several. Everything is READ COMMITTED and, where it can be, one autocommitted
statement.

Rules behind the shapes:
- claim asks EXISTS (a dead owner), never NOT EXISTS (a live one): the latter let two live owners through.
- reap locks FOR UPDATE first: a bare UPDATE … SET dead would fence nothing.
- flush needs only the fence: nobody but a live worker itself gives up its responses.
- a move names the states it may leave (models/lifecycle.py); nobody reads a status, decides, and then writes.
"""

from typing import LiteralString

from sqlalchemy import text

from models.db.database import compile_statement
from models.lifecycle import TERMINAL, TRANSITIONS, Status, sources_of


def _sql(statement: str) -> LiteralString:
    return compile_statement(text(statement))


def _sql_list(statuses: frozenset[Status] | list[str]) -> str:
    return "(" + ", ".join(f"'{status}'" for status in sorted(statuses)) + ")"


_OPEN = _sql_list(frozenset(TRANSITIONS))
_ENDED = _sql_list(TERMINAL)
_FENCE = "me AS MATERIALIZED (SELECT id FROM workers WHERE id = :me AND NOT dead FOR KEY SHARE)"
_FENCE_NAMED = _FENCE.replace("SELECT id", "SELECT id, kind, host, pid")
_ABANDONED = "(NOT r.background AND EXISTS (SELECT 1 FROM workers w WHERE w.id = r.web AND w.dead))"
"""A foreground response whose waiting web process is dead: nobody will ever read it."""
_WEB_HAS_RENEWED = """(r.attempt > 0 OR r.rings > 0 OR NOT EXISTS (
            SELECT 1 FROM workers c WHERE c.id = r.web AND NOT c.dead
            AND c.expires_at - CAST(:lease AS interval) < r.enqueued_at + interval '3 seconds'))"""
"""A fresh response that a sweep may take or ring for: the web process that stored it has renewed its lease since, and before it renews
it voids what it has answered 503 (models/ownership/lease.py). So an unclear create does not run before it is clear (I9)."""
_ORPHAN = "(r.worker IS NULL OR EXISTS (SELECT 1 FROM workers w WHERE w.id = r.worker AND w.dead))"
_NOT_DEFERRED = "(r.resume_at IS NULL OR r.resume_at <= clock_timestamp())"
"""Not put off, or not any more."""

# --- who is alive ------------------------------------------------------------------------------------------------------------

REGISTER = _sql("""
    INSERT INTO workers (id, kind, host, pid, expires_at) VALUES (:me, :kind, :host, :pid, clock_timestamp() + CAST(:lease AS interval))
""")
"""A process announces itself, with a new id at every start."""

MARK_JOURNAL = _sql(f"""
    WITH {_FENCE}
    INSERT INTO journal (worker, batch, response_ids, attempts, first_numbers, last_numbers, frames)
    SELECT id, 0, '{{}}', '{{}}', '{{}}', '{{}}', '{{}}' FROM me ON CONFLICT DO NOTHING
""")
"""Batch 0: while it is there, the unlogged journal has not been emptied by a crash of Postgres."""

RENEW = _sql("""
    UPDATE workers SET expires_at = clock_timestamp() + CAST(:lease AS interval) WHERE id = :me AND NOT dead
    RETURNING drain_requested_at IS NOT NULL AS draining
""")
"""The heartbeat. No row: we have been declared dead. `draining`: an operator wants us to hand over and go."""

OWNED_RESPONSES = _sql(f"""
    SELECT r.id, r.attempt, r.cancel_requested_at IS NOT NULL AS cancelled, r.fail_requested_at IS NOT NULL AS failed,
           r.requeue_requested_at IS NOT NULL AS requeued,
           {_ABANDONED} AS abandoned
    FROM responses r WHERE r.worker = :me AND r.status = 'in_progress'
""")
"""What the database counts as a worker's, to be compared with what it runs. `abandoned`: the waiting web process is dead; `failed` and
`requeued`: an operator wants that."""

EXPIRED_LEASES = _sql(
    "SELECT id, expires_at FROM workers WHERE NOT dead AND expires_at < clock_timestamp() ORDER BY id"
)
REAP_LOCK = _sql("""
    SELECT id FROM workers WHERE id = :id AND NOT dead AND expires_at = :seen AND expires_at < clock_timestamp() FOR UPDATE
""")
REAP = _sql("UPDATE workers SET dead = true, ended = :ended WHERE id = :id")
END_SESSIONS = _sql(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name AND pid <> pg_backend_pid()"
)
"""Ends the sessions of a dead process: a stopped one with half a transaction in its socket holds locks that no timeout ends."""
DEREGISTER = _sql("UPDATE workers SET dead = true, ended = 'stopped' WHERE id = :me AND NOT dead")
"""A process says goodbye after giving everything back."""
LIVE_WORKERS = _sql(
    "SELECT kind, count(*) AS live FROM workers WHERE NOT dead AND expires_at > clock_timestamp() GROUP BY kind"
)
DELETE_OLD_WORKERS = _sql(f"""
    WITH gone AS (DELETE FROM workers w WHERE w.dead AND w.expires_at < clock_timestamp() - interval '1 hour'
                  AND NOT EXISTS (SELECT 1 FROM responses r WHERE r.worker = w.id)
                  AND NOT EXISTS (SELECT 1 FROM responses r WHERE r.web = w.id AND r.status IN {_OPEN}) RETURNING w.id)
    DELETE FROM journal j USING gone WHERE j.worker = gone.id
""")
"""A dead worker's row and journal go only when no response names it any more."""

# --- intake ------------------------------------------------------------------------------------------------------------------

FIND_API_KEY = _sql(
    "SELECT id, project_id, hash FROM api_keys WHERE hash = :hash AND revoked_at IS NULL"
)
TOUCH_API_KEY = _sql("UPDATE api_keys SET last_used_at = clock_timestamp() WHERE id = :id")

_KEY_IS_STALE = """(k.expires_at < clock_timestamp() OR EXISTS (
                SELECT 1 FROM responses r WHERE r.id = k.response_id AND (r.delete_requested_at IS NOT NULL OR r.reason = 'create_refused'
                OR (NOT r.background AND (r.status = 'cancelled' OR r.cancel_requested_at IS NOT NULL)))))"""
"""A key whose response satisfies no retry: a departed client cancelled it, it was deleted, or it was answered 503."""


def _insert_key(source: str = "") -> str:
    return f"""
    key AS (INSERT INTO idempotency_keys AS k (project_id, key, body_hash, response_id, expires_at)
            SELECT :project, :key, CAST(:body_hash AS bytea), :id, clock_timestamp() + CAST(:kept AS interval) {source}
            ON CONFLICT (project_id, key) DO UPDATE
            SET body_hash = excluded.body_hash, response_id = excluded.response_id, expires_at = excluded.expires_at
            WHERE :replaces OR {_KEY_IS_STALE}
            RETURNING 1),"""


_BUMP_REVISION = """
    joined AS (UPDATE conversations SET revision = revision + 1
               WHERE id = :conversation AND project_id = :project AND revision = CAST(:revision AS bigint) RETURNING id),"""


def _insert(first: str = "", source: str = "") -> str:
    return f"""
    WITH {first}
         row AS (INSERT INTO responses (id, project_id, status, background, store, streamed, model, parameters, previous_response_id,
                                        conversation_id, created_at, expires_at, deadline, enqueued_at, web, traceparent, cache_key, cache_ttl)
                 SELECT :id, :project, 'queued', :background, :store, :streamed, :model, :parameters, :previous,
                        CAST(:conversation AS uuid), to_timestamp(:created_at), to_timestamp(:created_at) + CAST(:retention AS interval),
                        to_timestamp(:created_at) + CAST(:queue_wait AS interval), clock_timestamp(), :web, :traceparent, CAST(:cache_key AS bytea),
                        CAST(:cache_ttl AS int) {source}
                 RETURNING id),
         kept AS (INSERT INTO items (response_id, direction, position, item_id, type, payload)
                  SELECT row.id, 'input', e.nr - 1, e.value ->> 'id', e.value ->> 'type', e.value
                  FROM row CROSS JOIN jsonb_array_elements(CAST(:items AS jsonb)) WITH ORDINALITY AS e (value, nr) ORDER BY e.nr),
         opened AS (INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)
                    SELECT row.id, 0, :last, 0, CAST(:frames AS bytea) FROM row),
         sealed AS (INSERT INTO job_secrets (response_id, key_id, sealed)
                    SELECT row.id, CAST(:key_id AS text), CAST(:sealed AS bytea) FROM row WHERE CAST(:key_id AS text) IS NOT NULL)
    SELECT id FROM row
"""


INSERT = _sql(_insert())
"""A response, its input, its secrets and its opening events, in one statement; `deadline` is the queue's until a claim sets the run's."""
INSERT_WITH_KEY = _sql(_insert(_insert_key(), "FROM key"))
"""The same for a request that may come again: the key and the response are one write. No row: somebody else holds the key (KEY_HOLDER)."""
IDEMPOTENCY_KEY_HOLDER = _sql(
    "SELECT response_id, body_hash FROM idempotency_keys WHERE project_id = :project AND key = :key"
)
FIND_IDEMPOTENCY_KEY = _sql(
    f"SELECT response_id, body_hash FROM idempotency_keys k WHERE project_id = :project AND key = :key AND NOT {_KEY_IS_STALE}"
)
"""The same, unless its response satisfies no retry."""

INSERT_IN_CONVERSATION = _sql(_insert(_BUMP_REVISION, "FROM joined"))
"""INSERT into a conversation that is as it was when the request was checked against it. No row: it is not (models/db/queries/conversations.py)."""
INSERT_IN_CONVERSATION_WITH_KEY = _sql(
    _insert(_BUMP_REVISION + _insert_key("FROM joined"), "FROM key")
)
"""The same for a request that may come again. No row: the conversation has moved on, or somebody else holds the key (KEY_STANDS)."""

DELETE_UNCLEAR_CREATE = _sql("""
    INSERT INTO responses (id, project_id, status, background, store, streamed, model, parameters, created_at, completed_at, expires_at, deadline,
                           enqueued_at, reason, delete_requested_at)
    VALUES (:id, :project, 'cancelled', true, true, false, '', '{}', clock_timestamp(), clock_timestamp(), clock_timestamp() + interval '1 hour',
            clock_timestamp(), clock_timestamp(), 'create_refused', clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET status = 'cancelled', completed_at = clock_timestamp(), reason = 'create_refused',
                                   delete_requested_at = clock_timestamp(), expires_at = clock_timestamp() + interval '1 hour'
        WHERE responses.worker IS NULL AND responses.status = 'queued'
    RETURNING id
""")
"""Resolves an unclear create before its 503: waits for the old transaction, and whatever that did, nothing of it will run (I9)."""

DELETE_UNCLEAR_SECRETS = _sql("""
    DELETE FROM job_secrets s USING responses r WHERE s.response_id = :id AND r.id = s.response_id AND r.reason = 'create_refused'
""")
"""After VOID, in a statement of its own: VOID began before the old transaction's rows could be seen."""

PREVIOUS_RESPONSE = _sql(
    """
    SELECT id, status, unanswered_calls FROM responses
    WHERE id = :id AND project_id = :project AND (store OR CAST(:remembered AS boolean)) AND delete_requested_at IS NULL
      AND (background OR status NOT IN """
    + _OPEN
    + """)
"""
)
"""What a create must know about its previous_response_id; unfinished foreground ones do not exist outside, and unstored ones only for the
connection that made them (`remembered`)."""

EXTEND_UNSTORED = _sql(
    "UPDATE responses SET expires_at = clock_timestamp() + CAST(:kept AS interval) WHERE id = ANY(:ids) AND NOT store"
)
"""Keeps unstored responses for as long as the connection that made them may go on from them; once it is closed, for no time at all."""

REFERENCED_ITEMS = _sql(
    """
    SELECT wanted.id, CASE WHEN sum(octet_length(kept.payload::text)) OVER (ORDER BY wanted.nr) <= CAST(:most AS bigint) THEN kept.payload END AS payload
    FROM unnest(CAST(:ids AS text[])) WITH ORDINALITY AS wanted (id, nr)
    CROSS JOIN LATERAL (
        SELECT i.payload FROM items i LEFT JOIN responses r ON r.id = i.response_id LEFT JOIN conversations c ON c.id = i.conversation_id
        WHERE i.item_id = wanted.id AND (c.project_id = :project OR (r.project_id = :project AND r.store AND r.delete_requested_at IS NULL
          AND (r.background OR r.status NOT IN """
    + _OPEN
    + """)))
        ORDER BY i.id DESC LIMIT 1
    ) kept
"""
)
"""What item references mean: the project's newest item of that id, input or output. Clients choose ids, so one may stand for several;
`payload` is null once all together are larger than `most` bytes."""

_CHAIN = """
    WITH RECURSIVE chain AS (
        SELECT r.id, r.previous_response_id, r.conversation_id, 0 AS depth FROM responses r WHERE r.id = :id
        UNION ALL
        SELECT r.id, r.previous_response_id, r.conversation_id, chain.depth + 1
        FROM chain JOIN responses r ON r.id = chain.previous_response_id WHERE chain.depth < 10000
    ),
    before AS (
        SELECT conversation_id, (SELECT min(i.id) FROM items i WHERE i.response_id = chain.id) AS first_item
        FROM chain WHERE previous_response_id IS NULL AND conversation_id IS NOT NULL
    )"""
"""A response and those before it; and of the first of them, where its conversation stood when it was made."""
_BROKEN = """broken AS (
        SELECT EXISTS (SELECT 1 FROM chain WHERE chain.previous_response_id IS NOT NULL
                       AND NOT EXISTS (SELECT 1 FROM responses p WHERE p.id = chain.previous_response_id))
            OR EXISTS (SELECT 1 FROM before WHERE NOT EXISTS (SELECT 1 FROM conversations v WHERE v.id = before.conversation_id)) AS broken
    )"""
_ITEMS_BEFORE = "items i ON i.conversation_id = before.conversation_id AND (before.first_item IS NULL OR i.id < before.first_item)"

APPROVAL_REQUESTS = _sql(f"""{_CHAIN}
    SELECT i.item_id AS id, i.payload ->> 'server_label' AS server_label
    FROM chain JOIN items i ON i.response_id = chain.id
    WHERE i.type = 'mcp_approval_request' AND i.item_id = ANY(CAST(:ids AS text[]))
    UNION ALL
    SELECT i.item_id, i.payload ->> 'server_label' FROM before JOIN {_ITEMS_BEFORE}
    WHERE i.type = 'mcp_approval_request' AND i.item_id = ANY(CAST(:ids AS text[]))
""")
"""Those of the approval requests that a response or what is before it has made or was given."""

HISTORY_DIGEST = _sql(f"""{_CHAIN},
    place AS (
        SELECT conversation_id, first_item FROM before UNION ALL SELECT CAST(:conversation AS uuid), NULL WHERE CAST(:conversation AS uuid) IS NOT NULL
    ),
    said AS (
        SELECT 10001 AS depth, '' AS direction, i.id AS position, i.payload, concat(coalesce(c.turn, i.turn), ' ', coalesce(c.answer, i.answer)) AS told
        FROM place JOIN items i ON i.conversation_id = place.conversation_id AND (place.first_item IS NULL OR i.id < place.first_item)
        LEFT JOIN tool_calls c ON c.response_id = i.response_id AND i.direction = 'output' AND c.position = i.position
        UNION ALL
        SELECT chain.depth, i.direction, i.position, i.payload, concat(c.turn, ' ', c.answer) AS told
        FROM chain JOIN items i ON i.response_id = chain.id
        LEFT JOIN tool_calls c ON c.response_id = i.response_id AND i.direction = 'output' AND c.position = i.position
        UNION ALL
        SELECT -1, 'input', e.nr, e.value, ' ' FROM jsonb_array_elements(CAST(:items AS jsonb)) WITH ORDINALITY AS e (value, nr)
    ),
    {_BROKEN}
    SELECT sha256(coalesce(string_agg(sha256(convert_to((payload - 'id')::text || told, 'UTF8')), ''::bytea
                                      ORDER BY depth DESC, direction, position), ''::bytea)) AS digest,
           (SELECT broken FROM broken) AS broken
    FROM said
""")
"""What was said before and is said now, as one SHA-256: item by item without their ids, with what the model was told of calls we ran.
`broken`: a part of the history is deleted."""

SECRETS = _sql("SELECT key_id, sealed FROM job_secrets WHERE response_id = :id")

HISTORY = _sql(f"""{_CHAIN},
    told AS (
        SELECT 10001 AS depth, i.id, '' AS direction, 0 AS position, i.payload, coalesce(c.turn, i.turn) AS turn, coalesce(c.answer, i.answer) AS answer
        FROM before JOIN {_ITEMS_BEFORE} LEFT JOIN tool_calls c ON c.response_id = i.response_id AND i.direction = 'output' AND c.position = i.position
        UNION ALL
        SELECT chain.depth, i.id, i.direction, i.position, i.payload, c.turn, c.answer
        FROM chain JOIN items i ON i.response_id = chain.id AND (chain.depth > 0 OR i.direction = 'input')
        LEFT JOIN tool_calls c ON c.response_id = i.response_id AND i.direction = 'output' AND c.position = i.position
    ),
    {_BROKEN}
    SELECT told.depth, told.payload, told.turn, told.answer, broken.broken FROM broken LEFT JOIN told ON true
    ORDER BY told.depth DESC, told.direction, told.position, told.id
""")
"""The history of a response: its conversation up to it, or every ancestor's input and output, then its own input ('input' sorts before
'output'). `broken`: something of that has been deleted."""

# --- claim and take ----------------------------------------------------------------------------------------------------------


def _claim(conditions: str) -> str:
    return f"""
        WITH {_FENCE_NAMED},
             claimed AS (UPDATE responses r SET worker = me.id, attempt = r.attempt + 1, status = 'in_progress',
                                deaths = r.deaths + (r.worker IS NOT NULL)::int, requeue_requested_at = NULL, resume_at = NULL,
                                deadline = CASE WHEN r.started_at IS NULL THEN clock_timestamp() + CAST(:wall_clock AS interval) ELSE r.deadline END,
                                started_at = coalesce(r.started_at, clock_timestamp())
                         FROM me WHERE r.id = :id AND r.status IN {_OPEN} AND {conditions} RETURNING r.*),
             noted AS (INSERT INTO attempts (response_id, attempt, worker, kind, host, pid)
                       SELECT claimed.id, claimed.attempt, me.id, me.kind, me.host, me.pid FROM claimed, me)
        SELECT id, project_id, attempt, deaths, background, store, model, parameters, previous_response_id, conversation_id,
               extract(epoch FROM created_at)::bigint AS created_at, extract(epoch FROM deadline - clock_timestamp())::float AS seconds_left,
               extract(epoch FROM clock_timestamp() - CASE WHEN rings = 0 THEN enqueued_at ELSE created_at END)::float AS seconds_queued, checkpoint_number, next_output_index, turns, usage, traceparent, cache_key, cache_ttl
        FROM claimed
    """


_MAY_RUN = "r.cancel_requested_at IS NULL AND r.fail_requested_at IS NULL AND r.deadline > clock_timestamp()"

CLAIM_FRESH = _sql(
    _claim(f"r.worker IS NULL AND r.attempt = 0 AND NOT {_ABANDONED} AND {_MAY_RUN}")
)
"""The common case: nobody has ever run it. Its log is the opening events, so there is nothing to adopt."""

FENCE = _sql(f"WITH {_FENCE} SELECT id FROM me")
"""The fence alone, first in a longer transaction."""

LOCK_ORPHAN = _sql(f"""
    SELECT r.id, r.worker, r.deaths + (r.worker IS NOT NULL)::int AS deaths, r.cancel_requested_at IS NOT NULL AS cancelled,
           r.fail_requested_at IS NOT NULL AS failed, r.deadline <= clock_timestamp() AS late, r.started_at IS NOT NULL AS started, {_ABANDONED} AS abandoned
    FROM responses r WHERE r.id = :id AND r.status IN {_OPEN} AND {_ORPHAN} FOR UPDATE OF r SKIP LOCKED
""")
"""The row before its claim: who had it (`take` must adopt that worker's journal)."""

CLAIM = _sql(
    _claim(f"{_ORPHAN} AND {_MAY_RUN} AND ({_NOT_DEFERRED} OR r.requeue_requested_at IS NOT NULL)")
)
"""Claims a response that nobody runs, or whose owner is dead, to go on with it; one that was put off only when it is due."""
CLAIM_TO_END = _sql(_claim(_ORPHAN))
"""The same where the end is already decided: cancelled, failed by an operator, past its deadline, or too many deaths."""

RECORD_OWNER_DEATH = _sql("""
    UPDATE attempts a SET outcome = 'died', ended_at = w.expires_at FROM workers w
    WHERE a.response_id = :id AND a.attempt = CAST(:attempt AS int) - 1 AND w.id = a.worker
    RETURNING extract(epoch FROM clock_timestamp() - w.expires_at)::float AS seconds_lost
""")
"""Beside a claim back from a dead worker: that worker's attempt ended when its lease ran out, `seconds_lost` ago."""

LOG_END = _sql(
    "SELECT coalesce(max(last_number), -1) AS last FROM event_log WHERE response_id = :id"
)
UNFLUSHED_JOURNAL = _sql("""
    SELECT j.attempts[p.n] AS attempt, j.first_numbers[p.n] AS first, j.last_numbers[p.n] AS last, j.frames[p.n] AS frames
    FROM workers w JOIN journal j ON j.worker = w.id AND j.batch > w.flushed_batch
    CROSS JOIN LATERAL (SELECT array_position(j.response_ids, CAST(:id AS uuid)) AS n) p
    WHERE w.id = :previous AND p.n IS NOT NULL AND j.last_numbers[p.n] > :after
    ORDER BY first
""")
"""What a previous owner had shown of a response beyond its event log."""
RECOVER_JOURNAL = _sql("""
    INSERT INTO event_log (response_id, first_number, last_number, attempt, frames) VALUES (:id, :first, :last, :attempt, :frames)
    ON CONFLICT DO NOTHING
""")
LOG_SINCE = _sql("""
    SELECT first_number AS first, last_number AS last, attempt, frames FROM event_log
    WHERE response_id = :id AND last_number > :after ORDER BY first_number
""")
OUTPUT_ITEMS = _sql(
    "SELECT payload FROM items WHERE response_id = :id AND direction = 'output' ORDER BY position"
)

# --- a worker's writes -------------------------------------------------------------------------------------------------------

JOURNAL = _sql(f"""
    WITH {_FENCE},
         mark AS (SELECT 1 FROM journal, me WHERE worker = me.id AND batch = 0),
         ins AS (INSERT INTO journal (worker, batch, response_ids, attempts, first_numbers, last_numbers, frames)
                 SELECT me.id, CAST(:batch AS bigint), CAST(:ids AS uuid[]), CAST(:attempts AS int[]), CAST(:firsts AS int[]),
                        CAST(:lasts AS int[]), CAST(:frames AS bytea[]) FROM me, mark
                 ON CONFLICT DO NOTHING RETURNING 1)
    SELECT (SELECT count(*) FROM me) AS me, (SELECT count(*) FROM mark) AS mark, (SELECT count(*) FROM ins) AS ins
""")
"""me = 0: refused, exit. mark = 0: Postgres has crashed, flush all tails first. Else stored now (ins = 1) or before (ins = 0): publish."""

FLUSH = _sql(f"""
    WITH {_FENCE},
         logged AS (INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)
                    SELECT t.id, t.first, t.last, t.attempt, t.frames
                    FROM me CROSS JOIN unnest(CAST(:ids AS uuid[]), CAST(:firsts AS int[]), CAST(:lasts AS int[]), CAST(:attempts AS int[]),
                                              CAST(:frames AS bytea[])) AS t (id, first, last, attempt, frames)
                    JOIN responses r ON r.id = t.id AND r.worker = me.id AND r.attempt = t.attempt
                    ORDER BY t.id
                    ON CONFLICT DO NOTHING),
         trimmed AS (DELETE FROM journal USING me WHERE journal.worker = me.id AND batch > 0 AND batch <= CAST(:answered AS bigint)),
         marked AS (UPDATE workers SET flushed_batch = :answered FROM me WHERE workers.id = me.id AND workers.flushed_batch < CAST(:answered AS bigint))
    SELECT id FROM me
""")
"""The tails of many responses into the event log; the journal loses the batches that *answered* transactions cover."""

_OWNED = "r.id = :id AND r.worker = me.id AND r.attempt = :attempt AND r.status = 'in_progress'"
_INSERT_LOG = """logged AS (INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)
                   SELECT id, CAST(:first AS int), CAST(:last AS int), CAST(:attempt AS int), CAST(:frames AS bytea) FROM moved
                   WHERE CAST(:first AS int) <= CAST(:last AS int) ON CONFLICT DO NOTHING)"""


def _insert_output(conversation: str) -> str:
    return f"""stored AS (INSERT INTO items (response_id, conversation_id, direction, position, item_id, type, payload)
                   SELECT moved.id, {conversation}, 'output', CAST(:position AS int) + e.nr - 1, e.value ->> 'id', e.value ->> 'type', e.value
                   FROM moved CROSS JOIN jsonb_array_elements(CAST(:items AS jsonb)) WITH ORDINALITY AS e (value, nr)
                   ORDER BY e.nr ON CONFLICT DO NOTHING)"""


CHECKPOINT = _sql(f"""
    WITH {_FENCE},
         moved AS (UPDATE responses r SET turns = r.turns + CAST(:turns AS int), deaths = 0, usage = :usage, upstream = coalesce(:upstream, r.upstream), checkpoint_number = :last, next_output_index = :next_output_index
                   FROM me WHERE {_OWNED} AND r.checkpoint_number < CAST(:last AS int) RETURNING r.id),
         {_INSERT_LOG}, {_insert_output("CAST(NULL AS uuid)")},
         called AS (INSERT INTO tool_calls (response_id, position, output_index, turn, finished)
                    SELECT moved.id, c.position, c.output_index, c.turn, c.finished
                    FROM moved CROSS JOIN jsonb_to_recordset(CAST(:calls AS jsonb)) AS c (position int, output_index int, turn int, finished bool)
                    ON CONFLICT DO NOTHING),
         noted AS (UPDATE attempts a SET turns_ended_at = a.turns_ended_at || clock_timestamp() FROM moved
                   WHERE a.response_id = moved.id AND a.attempt = CAST(:attempt AS int) AND CAST(:turns AS int) > 0)
    SELECT id FROM moved
""")
"""The end of a turn that another follows: its items, those calls among them that we run, and the log up to them. No row: see STANDING.

`turns` is 0 for what is run before the model's first turn."""

START_CALL = _sql(f"""
    WITH {_FENCE},
         moved AS (SELECT r.id FROM responses r, me WHERE {_OWNED} AND r.cancel_requested_at IS NULL FOR NO KEY UPDATE OF r),
         started AS (UPDATE tool_calls c SET started_attempt = CAST(:attempt AS int) FROM moved
                     WHERE c.response_id = moved.id AND c.position = CAST(:position AS int) AND NOT c.finished)
    SELECT id FROM moved
""")
"""A call of a tool is about to be made: from here on, its outcome is unknown until FINISH_CALL. None begins after a cancel."""

FINISH_CALL = _sql(f"""
    WITH {_FENCE},
         moved AS (UPDATE responses r SET checkpoint_number = greatest(r.checkpoint_number, CAST(:last AS int)) FROM me WHERE {_OWNED} RETURNING r.id),
         {_INSERT_LOG},
         told AS (UPDATE items i SET payload = CAST(:item AS jsonb) FROM moved
                  WHERE i.response_id = moved.id AND i.direction = 'output' AND i.position = CAST(:position AS int)),
         finished AS (UPDATE tool_calls c SET finished = true, answer = CAST(:answer AS jsonb) FROM moved
                      WHERE c.response_id = moved.id AND c.position = CAST(:position AS int))
    SELECT id FROM moved
""")
"""A call has been answered: its item, what the model is told, and the log up to its done event."""

CHECKPOINTED_OUTPUT = _sql("""
    SELECT i.payload, c.output_index, c.turn, c.started_attempt, c.finished, c.answer
    FROM items i LEFT JOIN tool_calls c ON c.response_id = i.response_id AND c.position = i.position
    WHERE i.response_id = :id AND i.direction = 'output' ORDER BY i.position
""")
"""What a response has said up to its last checkpoint, for whoever goes on with it."""


_JOINS_CONVERSATION = frozenset((Status.COMPLETED, Status.INCOMPLETE))
"""What ends like this becomes part of its conversation (contract §5), unless it was only to read it (`store: false`)."""

_CHANGED_ITEMS = """jsonb_array_elements(CAST(:changed AS jsonb)) AS e (value)"""


_UPDATE_CONVERSATION = """told AS (UPDATE conversations c SET revision = c.revision + 1, unanswered_calls = :unanswered_calls
                  FROM moved WHERE c.id = moved.conversation_id)"""
"""What a conversation knows of itself, when a response (`moved`) has become part of it."""


def _end(status: Status) -> str:
    condition = "" if status is Status.CANCELLED else "AND r.cancel_requested_at IS NULL"
    conversation = (
        "CASE WHEN r.store THEN r.conversation_id END"
        if status in _JOINS_CONVERSATION
        else "CAST(NULL AS uuid)"
    )
    return f"""
        WITH {_FENCE},
             moved AS (UPDATE responses r SET status = '{status}', worker = NULL, turns = r.turns + CAST(:turns AS int), usage = :usage, error = :error,
                              upstream = coalesce(:upstream, r.upstream), service_tier = :service_tier, reason = :reason, failure = :failure, unanswered_calls = :unanswered_calls, completed_at = to_timestamp(:completed_at),
                              expires_at = CASE WHEN r.store THEN r.expires_at ELSE to_timestamp(:completed_at) + interval '10 minutes' END
                       FROM me WHERE {_OWNED} AND r.status IN {_sql_list(sources_of(status))} {condition} RETURNING r.id, {conversation} AS conversation_id),
             {_INSERT_LOG}, {_insert_output("moved.conversation_id")},
             changed AS (UPDATE items i SET payload = e.value -> 'item', conversation_id = moved.conversation_id FROM moved CROSS JOIN {_CHANGED_ITEMS}
                         WHERE i.response_id = moved.id AND i.direction = 'output' AND i.position = CAST(e.value ->> 'position' AS int)),
             said AS (UPDATE items i SET conversation_id = moved.conversation_id FROM moved
                      WHERE moved.conversation_id IS NOT NULL AND i.response_id = moved.id
                        AND (i.direction = 'input' OR i.position NOT IN (SELECT CAST(e.value ->> 'position' AS int) FROM {_CHANGED_ITEMS}))),
             {_UPDATE_CONVERSATION},
             wiped AS (DELETE FROM job_secrets s USING moved WHERE s.response_id = moved.id)
        SELECT id FROM moved
    """


END = {status: _sql(_end(status)) for status in TERMINAL}
"""The one ending: last items, those of calls that were still running, tail of the log with the terminal event, status, usage, secrets
wiped; input and output become part of the conversation. No row: see STANDING."""

RELEASE = _sql(f"""
    WITH {_FENCE},
         moved AS (UPDATE responses r SET worker = NULL, rings = 0, enqueued_at = clock_timestamp(), requeue_requested_at = NULL,
                          resume_at = clock_timestamp() + CAST(:pause AS interval)
                   FROM me WHERE {_OWNED} RETURNING r.id),
         {_INSERT_LOG},
         noted AS (UPDATE attempts a SET outcome = CAST(:outcome AS text), ended_at = clock_timestamp() FROM moved
                   WHERE a.response_id = moved.id AND a.attempt = CAST(:attempt AS int)),
         forgotten AS (DELETE FROM attempts a USING moved WHERE CAST(:outcome AS text) = 'put_off' AND a.response_id = moved.id
                       AND a.attempt < CAST(:attempt AS int) AND a.outcome = 'put_off' AND a.turns_ended_at = '{{}}')
    SELECT id FROM moved
""")
"""A live worker gives a response back, its log complete: a hand-over, no death. `outcome`: why, as in `attempts`; `pause`: how long nobody
is to take it, or null. Of attempts that were put off one after another only the last is kept: a response may wait for a day."""

OWNERSHIP_STATE = _sql("""
    SELECT status, worker, attempt, cancel_requested_at IS NOT NULL AS cancelled, checkpoint_number FROM responses WHERE id = :id
""")
"""Why a fenced write moved nothing: it had been done before, a cancel came first, or the response is no longer ours."""

# --- requests of others ------------------------------------------------------------------------------------------------------

COMPLETE_PRECOMPUTED = _sql(f"""
    WITH moved AS (UPDATE responses r SET status = 'completed', started_at = clock_timestamp(), completed_at = to_timestamp(:completed_at), usage = :usage,
                          service_tier = :service_tier, unanswered_calls = :unanswered_calls,
                          expires_at = CASE WHEN r.store THEN r.expires_at ELSE to_timestamp(:completed_at) + interval '10 minutes' END
                   WHERE r.id = :id RETURNING r.id, CASE WHEN r.store THEN r.conversation_id END AS conversation_id),
         logged AS (INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)
                    SELECT moved.id, b.first, b.last, 0, b.frames
                    FROM moved CROSS JOIN unnest(CAST(:firsts AS int[]), CAST(:lasts AS int[]), CAST(:frames AS bytea[])) AS b (first, last, frames)),
         stored AS (INSERT INTO items (response_id, conversation_id, direction, position, item_id, type, payload)
                    SELECT moved.id, moved.conversation_id, 'output', e.nr - 1, e.value ->> 'id', e.value ->> 'type', e.value
                    FROM moved CROSS JOIN jsonb_array_elements(CAST(:output AS jsonb)) WITH ORDINALITY AS e (value, nr) ORDER BY e.nr),
         said AS (UPDATE items i SET conversation_id = moved.conversation_id FROM moved
                  WHERE moved.conversation_id IS NOT NULL AND i.response_id = moved.id),
         {_UPDATE_CONVERSATION}
    SELECT id FROM moved
""")
"""The ending of a response that no worker has to run, in the very transaction that stores it: nobody has seen it queued."""

CANCEL_QUEUED = _sql(f"""
    WITH moved AS (UPDATE responses SET status = 'cancelled', cancel_requested_at = clock_timestamp(), completed_at = to_timestamp(:completed_at),
                          reason = :reason
                   WHERE id = :id AND status IN ('queued') AND 'queued' IN {_sql_list(sources_of(Status.CANCELLED))} AND worker IS NULL AND attempt = 0
                   RETURNING id),
         logged AS (INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)
                    SELECT id, :number, :number, 0, CAST(:frames AS bytea) FROM moved),
         wiped AS (DELETE FROM job_secrets s USING moved WHERE s.response_id = moved.id)
    SELECT id FROM moved
""")
"""A response that never ran is ended by whoever cancels it; its log is the opening events and this."""

REQUEST_CANCEL = _sql("""
    UPDATE responses SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp())
    WHERE id = :id AND status = 'in_progress' RETURNING worker
""")
REQUEST_DELETE = _sql(
    "UPDATE responses SET delete_requested_at = clock_timestamp() WHERE id = :id AND project_id = :project RETURNING id"
)
_DETACH_ITEMS = """
    lasting AS MATERIALIZED (
        SELECT i.id, c.turn, c.answer FROM old JOIN items i ON i.response_id = old.id AND i.conversation_id IS NOT NULL
        LEFT JOIN tool_calls c ON c.response_id = i.response_id AND i.direction = 'output' AND c.position = i.position
        ORDER BY i.id FOR UPDATE OF i
    ),
    left_behind AS (UPDATE items i SET response_id = NULL, turn = lasting.turn, answer = lasting.answer FROM lasting WHERE i.id = lasting.id)"""
"""Before responses (`old`) are deleted: their items stay in the conversation that they are part of; the others go with them."""

DELETE_ENDED = _sql(f"""
    WITH old AS MATERIALIZED (SELECT id FROM responses WHERE id = :id AND project_id = :project AND status IN {_ENDED} FOR UPDATE), {_DETACH_ITEMS}
    DELETE FROM responses USING old WHERE responses.id = old.id RETURNING responses.id
""")

# --- reading -----------------------------------------------------------------------------------------------------------------

_SELECT_RESPONSE = """
    SELECT r.id, r.status, r.model, r.parameters, r.background, r.store, r.streamed, r.previous_response_id, r.conversation_id, r.usage, r.error, r.reason,
           r.service_tier, r.failure, r.attempt, r.worker, r.checkpoint_number, r.cache_key, r.cache_ttl, r.cancel_requested_at IS NOT NULL AS cancelled,
           extract(epoch FROM r.created_at)::bigint AS created_at, floor(extract(epoch FROM r.completed_at))::bigint AS completed_at
    FROM responses r WHERE r.id = :id"""
RESPONSE = _sql(_SELECT_RESPONSE)
VISIBLE_RESPONSE = _sql(
    _SELECT_RESPONSE
    + f" AND r.project_id = :project AND r.delete_requested_at IS NULL AND (r.background OR (r.store AND r.status IN {_ENDED}))"
    f" AND (r.store OR r.status IN {_OPEN} OR r.expires_at > clock_timestamp())"
)
"""What a project may see by id: not another's, not deleted, no foreground response before its end, none that was not to be stored."""

INPUT_ITEMS = {
    order: _sql(f"""
        SELECT i.payload FROM items i WHERE i.response_id = :id AND i.direction = 'input'
        AND (CAST(:after AS text) IS NULL OR i.position {comparison}
             (SELECT a.position FROM items a WHERE a.response_id = :id AND a.direction = 'input' AND a.item_id = :after LIMIT 1))
        ORDER BY i.position {order} LIMIT :limit
    """)
    for order, comparison in (("asc", ">"), ("desc", "<"))
}

LOG_PAGE = _sql("""
    SELECT 0 AS kind, r.attempt, CASE WHEN CAST(:attempt AS int) = 0 OR r.attempt = :attempt THEN 0 WHEN EXISTS (
               SELECT 1 FROM event_log e WHERE e.response_id = r.id AND e.attempt > :attempt AND e.first_number <= :after
           ) OR EXISTS (
               SELECT 1 FROM workers w JOIN journal j ON j.worker = w.id AND j.batch > w.flushed_batch
               CROSS JOIN LATERAL (SELECT array_position(j.response_ids, r.id) AS n) p
               WHERE w.id = r.worker AND p.n IS NOT NULL AND j.attempts[p.n] > :attempt AND j.first_numbers[p.n] <= :after
           ) THEN 1 ELSE 0 END AS first,
           0 AS last, convert_to(r.status, 'UTF8') AS frames, r.worker
    FROM responses r WHERE r.id = :id
    UNION ALL
    SELECT 1, page.attempt, page.first_number, page.last_number, page.frames, NULL
    FROM (SELECT e.*, sum(octet_length(e.frames)) OVER (ORDER BY e.first_number) - octet_length(e.frames) AS before
          FROM (SELECT * FROM event_log WHERE response_id = :id AND last_number > :after ORDER BY first_number LIMIT :page) e) page
    WHERE page.before < CAST(:bytes AS bigint)
    UNION ALL
    SELECT 2, j.attempts[p.n], j.first_numbers[p.n], j.last_numbers[p.n], j.frames[p.n], NULL
    FROM responses r JOIN workers w ON w.id = r.worker JOIN journal j ON j.worker = w.id AND j.batch > w.flushed_batch
    CROSS JOIN LATERAL (SELECT array_position(j.response_ids, r.id) AS n) p
    WHERE r.id = :id AND p.n IS NOT NULL AND j.last_numbers[p.n] > :after
    ORDER BY 1, 3, 4
""")
"""A reader's look: status, then the event log beyond `after`, then its owner's journal; one snapshot (design §5, joining).

`page` rows of the event log, and none after `bytes` are full. `attempt`: whose events the reader was shown last, 0 for nobody's;
`first` of the status row is 1 when a later attempt has told anew what number `after` or one before it was."""

RUNNING_RESPONSE = _sql("""
    WITH one AS MATERIALIZED (SELECT id, status, attempt, checkpoint_number, worker FROM responses WHERE id = :id)
    SELECT 0 AS kind, one.attempt, one.checkpoint_number AS first, 0 AS last, convert_to(one.status, 'UTF8') AS frames, NULL::jsonb AS payload FROM one
    UNION ALL
    SELECT 1, e.attempt, e.first_number, e.last_number, e.frames, NULL
    FROM one JOIN event_log e ON e.response_id = one.id AND e.last_number > one.checkpoint_number
    UNION ALL
    SELECT 2, j.attempts[p.n], j.first_numbers[p.n], j.last_numbers[p.n], j.frames[p.n], NULL
    FROM one JOIN workers w ON w.id = one.worker JOIN journal j ON j.worker = w.id AND j.batch > w.flushed_batch
    CROSS JOIN LATERAL (SELECT array_position(j.response_ids, one.id) AS n) p
    WHERE p.n IS NOT NULL AND j.last_numbers[p.n] > one.checkpoint_number
    UNION ALL
    SELECT 3, 0, i.position, 0, NULL, i.payload FROM one JOIN items i ON i.response_id = one.id AND i.direction = 'output'
    ORDER BY 1, 3, 4
""")
"""What a running response is made of: status and checkpoint, the log and the journal beyond the checkpoint, the items up to it. All in
one snapshot: a turn that ends between two looks would else be shown twice, or not at all (I7)."""

OWNERS = _sql("SELECT DISTINCT worker FROM responses WHERE id = ANY(:ids) AND worker IS NOT NULL")
JOURNAL_BATCHES = _sql("""
    SELECT batch, response_ids, attempts, first_numbers, last_numbers, frames FROM journal
    WHERE worker = :worker AND batch > :last ORDER BY batch LIMIT 200
""")
"""A worker's new batches, for a web process whose bus is down: read once per process, fanned out to its readers."""
LAST_BATCH = _sql("SELECT coalesce(max(batch), 0) AS last FROM journal WHERE worker = :worker")

# --- the sweep ---------------------------------------------------------------------------------------------------------------

REENQUEUE = _sql(f"""
    WITH silent AS MATERIALIZED (
        SELECT r.id, r.background, r.deaths + (r.worker IS NOT NULL)::int AS deaths FROM responses r
        WHERE r.status IN {_OPEN} AND {_ORPHAN} AND {_WEB_HAS_RENEWED} AND (r.requeue_requested_at IS NOT NULL
          OR {_NOT_DEFERRED} AND r.enqueued_at + CAST(:interval AS interval) * power(2, least(r.rings, 6)) < clock_timestamp())
        ORDER BY r.enqueued_at LIMIT 200 FOR UPDATE OF r SKIP LOCKED
    )
    UPDATE responses SET enqueued_at = clock_timestamp(), rings = responses.rings + 1, requeue_requested_at = NULL, resume_at = NULL
    FROM silent WHERE responses.id = silent.id
    RETURNING responses.id, silent.background, silent.deaths
""")
"""Rung by predicate, not by event: every open row without a live owner whose bell was last rung too long ago."""

ORPHANS = _sql(f"""
    SELECT r.id FROM responses r
    WHERE r.status IN {_OPEN} AND {_ORPHAN} AND {_WEB_HAS_RENEWED}
      AND (r.status = 'in_progress' AND {_NOT_DEFERRED} OR r.cancel_requested_at IS NOT NULL OR r.deadline <= clock_timestamp() OR {_ABANDONED} OR {_NOT_DEFERRED} AND r.enqueued_at < clock_timestamp() - CAST(:waiting AS interval)
           OR r.fail_requested_at IS NOT NULL OR r.requeue_requested_at IS NOT NULL)
      AND (CAST(:quarantine AS boolean) = (r.deaths + (r.worker IS NOT NULL)::int >= 2) OR r.cancel_requested_at IS NOT NULL
           OR r.fail_requested_at IS NOT NULL OR r.deadline <= clock_timestamp() OR r.deaths + (r.worker IS NOT NULL)::int > 2)
    ORDER BY r.enqueued_at LIMIT :most
""")
"""What a sweeper may take itself, without a bell: the orphaned, and what has waited in the queue for longer than a ring."""

PURGE = _sql(f"""
    WITH old AS MATERIALIZED (
        SELECT r.id FROM responses r WHERE r.status IN {_ENDED} AND (r.expires_at < clock_timestamp() OR r.delete_requested_at IS NOT NULL)
          AND (r.delete_requested_at IS NOT NULL OR NOT EXISTS (SELECT 1 FROM responses c WHERE c.previous_response_id = r.id))
          AND (r.reason IS DISTINCT FROM 'create_refused' OR r.expires_at < clock_timestamp())
        ORDER BY r.expires_at LIMIT 100 FOR UPDATE OF r SKIP LOCKED
    ), {_DETACH_ITEMS}
    DELETE FROM responses USING old WHERE responses.id = old.id RETURNING responses.id
""")
"""One small batch of what has expired or was deleted, with items and event log; a response with a child stays, it is its history.
What has been said in a conversation stays there (it has no time of its own)."""
DELETE_EXPIRED_KEYS = _sql("DELETE FROM idempotency_keys WHERE expires_at < clock_timestamp()")
