"""What operators ask and request, as statements: `backburner explain`, `stuck`, `workers`, `requeue`, `fail`, `drain`, and the gauges.

Operators change nothing themselves (design §4.2): requests are columns, and who acts on them is the owner's heartbeat, or the sweep
where nobody runs the response. Times come back as Postgres has them, durations in seconds.
"""

from sqlalchemy import text

from models.db.database import compile_statement
from models.lifecycle import TRANSITIONS

_OPEN = "(" + ", ".join(f"'{status}'" for status in sorted(TRANSITIONS)) + ")"

_STATE = """
    SELECT r.id, r.status, r.background, r.model, r.attempt, r.turns, r.rings, r.created_at, r.started_at, r.enqueued_at, r.deadline,
           r.resume_at, r.upstream, r.previous_response_id, r.conversation_id,
           r.cancel_requested_at, r.fail_requested_at, r.requeue_requested_at, r.delete_requested_at, r.completed_at, r.reason, r.error,
           r.deaths + (w.dead IS TRUE)::int AS deaths, r.worker, w.kind, w.host, w.pid, w.dead, w.drain_requested_at,
           w.expires_at, clock_timestamp() AS now, progress.at AS progressed_at
    FROM responses r LEFT JOIN workers w ON w.id = r.worker
    CROSS JOIN LATERAL (
        SELECT greatest(r.created_at,
                        (SELECT e.stored_at FROM event_log e WHERE e.response_id = r.id ORDER BY e.first_number DESC LIMIT 1),
                        (SELECT greatest(a.claimed_at, a.ended_at) FROM attempts a WHERE a.response_id = r.id ORDER BY a.attempt DESC LIMIT 1)) AS at
    ) progress
"""
"""How a response stands. `deaths` counts a dead owner that nobody has succeeded yet; `progressed_at`: created, claimed, given back, or
something it said was stored, whichever was last."""

STATE = compile_statement(text(f"{_STATE} WHERE r.id = :id"))

STUCK = compile_statement(
    text(f"""
    SELECT * FROM ({_STATE} WHERE r.status IN {_OPEN}) open
    WHERE progressed_at < now - CAST(:idle AS interval) ORDER BY progressed_at, id LIMIT :most
""")
)
"""Open responses without progress for longer than `idle`, the longest first."""

ATTEMPTS = compile_statement(
    text("SELECT * FROM attempts WHERE response_id = :id ORDER BY attempt")
)

LOG_SUMMARY = compile_statement(
    text("""
    SELECT attempt, count(*) AS blocks, min(first_number) AS first, max(last_number) AS last, sum(size)::bigint AS bytes,
           min(stored_at) AS first_at, max(stored_at) AS last_at, extract(epoch FROM max(pause))::float AS longest_pause
    FROM (SELECT attempt, first_number, last_number, octet_length(frames) AS size, stored_at,
                 stored_at - lag(stored_at) OVER (PARTITION BY attempt ORDER BY first_number) AS pause
          FROM event_log WHERE response_id = :id) block
    GROUP BY attempt ORDER BY attempt
""")
)
"""What each attempt has put into the event log, and its longest pause between two flushes, in seconds."""

LAST_JOURNALLED = compile_statement(
    text("""
    SELECT max(j.last_numbers[array_position(j.response_ids, r.id)]) AS last
    FROM responses r JOIN workers w ON w.id = r.worker JOIN journal j ON j.worker = w.id AND j.batch > w.flushed_batch
    WHERE r.id = :id
""")
)
"""The last event that readers have been shown and no flush holds yet; null when there is none."""

WORKERS = compile_statement(
    text("""
    SELECT w.id, w.kind, w.host, w.pid, w.started_at, w.expires_at, w.dead, w.ended, w.drain_requested_at, clock_timestamp() AS now,
           (SELECT count(*) FROM responses r WHERE r.worker = w.id) AS running
    FROM workers w
    WHERE NOT w.dead OR w.expires_at > clock_timestamp() - CAST(:since AS interval)
          OR EXISTS (SELECT 1 FROM responses r WHERE r.worker = w.id)
    ORDER BY w.dead, w.kind, w.started_at
""")
)
"""The living, and the dead whose lease would have ended within `since` or who still hold responses."""

REQUEST_REQUEUE = compile_statement(
    text(f"""
    UPDATE responses SET requeue_requested_at = coalesce(requeue_requested_at, clock_timestamp())
    WHERE id = :id AND status IN {_OPEN} AND cancel_requested_at IS NULL AND fail_requested_at IS NULL RETURNING id, attempt
""")
)
"""Another worker is to go on with it. Its owner gives it back at its next heartbeat; without an owner it is rung by the next sweep."""

REQUEST_FAIL = compile_statement(
    text(f"""
    UPDATE responses SET fail_requested_at = coalesce(fail_requested_at, clock_timestamp())
    WHERE id = :id AND status IN {_OPEN} AND cancel_requested_at IS NULL RETURNING id, attempt
""")
)
"""It is to end as failed. Its owner ends it at its next heartbeat; without an owner the next sweep does. A recorded cancel goes before."""

FIND_WORKERS = compile_statement(
    text("""
    SELECT w.id, w.kind, w.host, w.pid, w.dead, w.expires_at < clock_timestamp() AS expired FROM workers w
    WHERE w.host = :name OR replace(w.id::text, '-', '') LIKE CAST(:prefix AS text) || '%' ORDER BY w.dead, w.started_at
""")
)
"""Who is meant by a worker's id, the beginning of one, or a host's name."""

REQUEST_DRAIN = compile_statement(
    text("""
    UPDATE workers SET drain_requested_at = coalesce(drain_requested_at, clock_timestamp()) WHERE id = ANY(:ids) AND NOT dead RETURNING id
""")
)
"""These processes are to hand over and go, as on SIGTERM; their heartbeats see it."""

STILL_RUNNING = compile_statement(text("SELECT id FROM workers WHERE id = ANY(:ids) AND NOT dead"))
"""Which of these are not gone yet."""

GAUGES = compile_statement(
    text(f"""
    SELECT CASE WHEN r.deaths + (w.dead IS TRUE)::int >= 2 THEN 'quarantine' WHEN r.background THEN 'background' ELSE 'interactive' END AS queue,
           r.status, r.status = 'queued' OR r.worker IS NULL OR w.dead IS TRUE AS waiting, count(*) AS responses,
           extract(epoch FROM clock_timestamp() - min(r.created_at))::float AS oldest
    FROM responses r LEFT JOIN workers w ON w.id = r.worker WHERE r.status IN {_OPEN} GROUP BY 1, 2, 3
""")
)
"""The open responses by queue and status, from the partial index of open rows: what has ended is not counted. `oldest` in seconds."""

SCHEMA_REVISION = "SELECT version_num FROM alembic_version"
"""The migration that the database is at. Raises an error in a database without migrations."""
