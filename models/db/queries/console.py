"""The console: its sessions and one-time links, and what its overview counts.

Every statement reads a bounded number of rows, whatever is stored.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from models.db.queries.common import OPEN, bounded_sum
from models.db.statement import Query, Statement, column

INSERT_LINK = Statement(
    "INSERT INTO console_links (hash, expires_at) VALUES (:hash, clock_timestamp() + CAST(:lifetime AS interval))"
)
"""Stores a link that logs an operator in once."""
USE_LINK = column(
    """
    WITH used AS (DELETE FROM console_links WHERE hash = :hash OR expires_at < clock_timestamp()
                  RETURNING hash, expires_at)
    SELECT hash FROM used WHERE hash = :hash AND expires_at >= clock_timestamp()
    """,
    bytes,
)
"""Deletes a link, and all that have expired. No row: it was used, has expired, or never was."""

INSERT_SESSION = Statement(
    """
    INSERT INTO console_sessions (hash, role, name, expires_at)
    VALUES (:hash, :role, :name, clock_timestamp() + CAST(:lifetime AS interval))
    """
)


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session of the console."""

    role: str
    name: str
    """who it is, for the audit log"""


FIND_SESSION = Query(
    "SELECT role, name FROM console_sessions WHERE hash = :hash AND expires_at > clock_timestamp()",
    StoredSession,
)
"""Selects a session by the SHA-256 of its token. No row: it ended, has expired, or never was."""
DELETE_SESSION = Statement(
    "DELETE FROM console_sessions WHERE hash = :hash OR expires_at < clock_timestamp()"
)
"""Ends a session, and deletes those that have expired."""


@dataclass(frozen=True, slots=True)
class RecentEnds:
    """What ended within the last hour, of the responses that were looked at."""

    looked_at: int
    oldest: datetime | None
    """when the oldest of them was created; null: there is none"""
    completed: int
    failed: int


RECENT_ENDS = Query(
    """
    SELECT count(*) AS looked_at, min(r.created_at) AS oldest,
           count(*) FILTER (WHERE r.status IN ('completed', 'incomplete')
                              AND r.completed_at > clock_timestamp() - interval '1 hour') AS completed,
           count(*) FILTER (WHERE r.status = 'failed'
                              AND r.completed_at > clock_timestamp() - interval '1 hour') AS failed
    FROM (SELECT created_at, status, completed_at FROM responses ORDER BY id DESC LIMIT :max_rows) r
    """,
    RecentEnds,
)
"""Counts what ended within the last hour among the newest `max_rows` responses. Always one row."""


@dataclass(frozen=True, slots=True)
class UsedTokens:
    """Tokens of responses that ended within the last five minutes."""

    input_tokens: int
    output_tokens: int


RECENT_TOKENS = Query(
    f"""
    SELECT {bounded_sum("input_tokens")} AS input_tokens, {bounded_sum("output_tokens")} AS output_tokens
    FROM usage_entries WHERE ended_at > clock_timestamp() - interval '5 minutes'
    """,
    UsedTokens,
)
"""Sums up what was used within the last five minutes. Always one row."""


@dataclass(frozen=True, slots=True)
class UpstreamWait:
    """The responses that wait because an upstream failed."""

    upstream: str
    reason: str
    message: str
    """of one of the failures"""
    responses: int
    since: datetime
    """the first claim of the one that was claimed first"""


UPSTREAM_WAITS = Query(
    f"""
    SELECT f.last ->> 'upstream' AS upstream, f.last ->> 'reason' AS reason, min(f.last ->> 'message') AS message,
           count(*) AS responses,
           min(coalesce(r.started_at, r.created_at)) AS since
    FROM (SELECT o.id, o.started_at, o.created_at
          FROM (SELECT * FROM responses WHERE status IN {OPEN} ORDER BY deadline LIMIT :max_rows) o
          WHERE o.worker IS NULL AND o.resume_at > clock_timestamp() LIMIT 1000) r
    CROSS JOIN LATERAL (SELECT a.failures -> -1 AS last FROM attempts a WHERE a.response_id = r.id
                        ORDER BY a.attempt DESC LIMIT 1) f
    WHERE f.last IS NOT NULL GROUP BY 1, 2 ORDER BY 4 DESC LIMIT 20
    """,
    UpstreamWait,
)
"""Counts the deferred among the oldest `max_rows` open responses by the failure that they wait for."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of the live workers of a kind, and the responses that they run."""

    kind: str
    workers: int
    running: int
    slots: int | None
    """null: none of them states it"""


SLOTS = Query(
    """
    SELECT w.kind, count(*) AS workers,
           sum((SELECT count(*) FROM responses r WHERE r.worker = w.id))::bigint AS running,
           sum(w.slots)::bigint AS slots
    FROM workers w WHERE NOT w.dead AND w.expires_at > clock_timestamp() AND w.kind <> 'web' GROUP BY w.kind
    """,
    Slots,
)
"""Counts slots and running responses of the live workers. At most as many responses are read as
there are slots."""

LIVE_WORKER_IDS = column(
    "SELECT id FROM workers WHERE NOT dead AND expires_at > clock_timestamp() AND kind <> 'web' LIMIT 1000",
    UUID,
)
"""Selects the live workers."""
