"""The console: its sessions and one-time links, and what its overview counts.

Every statement reads a bounded number of rows, whatever is stored.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from models.db.queries.common import IS_VALID, RETRYING, UNTRIED, bounded_sum
from models.db.statement import Query, Statement, column
from models.projects.scopes import Scope

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
    INSERT INTO console_sessions (hash, role, name, api_key_id, expires_at)
    VALUES (:hash, :role, :name, CAST(:api_key AS uuid), clock_timestamp() + CAST(:lifetime AS interval))
    """
)


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session of the console."""

    role: str
    name: str
    """who it is, for the audit log"""
    key_id: UUID | None
    """the key of a session of a project; it and what follows is null for others"""
    prefix: str | None
    project_id: UUID | None
    project: str | None
    """its name"""


FIND_SESSION = Query(
    f"""
    SELECT s.role, s.name, k.id AS key_id, k.prefix, p.id AS project_id, p.name AS project
    FROM console_sessions s LEFT JOIN (api_keys k JOIN projects p ON p.id = k.project_id) ON k.id = s.api_key_id
    WHERE s.hash = :hash AND s.expires_at > clock_timestamp()
      AND (s.role <> 'project' OR ('{Scope.CONSOLE}' = ANY(k.scopes) AND {IS_VALID}))
    """,
    StoredSession,
)
"""Selects a session by the SHA-256 of its token. No row: it ended, has expired, or never was; that of
a project also if its key is not valid any more."""
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
    """The responses that are `retrying` because one upstream has failed."""

    upstream: str
    responses: int
    since: datetime
    """the first of these failures"""
    next_try_at: datetime | None
    """null: all of them are tried now, or their time has come"""
    projects: list[str]
    """names of some of their projects"""
    project_count: int
    reason: str | None
    """of the last failure that says something about the upstream, else of the last one"""
    message: str | None


_MAX_UPSTREAMS = 50
_MAX_PROJECTS = 3
_SAMPLES = 3
"""Responses at either end whose failures are read."""
_NEXT_UPSTREAM = f"SELECT r.failed_upstream FROM responses r WHERE {RETRYING}"
UPSTREAM_WAITS = Query(
    f"""
    WITH RECURSIVE upstream (name) AS (
        ({_NEXT_UPSTREAM} ORDER BY r.failed_upstream LIMIT 1)
        UNION ALL
        SELECT ({_NEXT_UPSTREAM} AND r.failed_upstream > u.name ORDER BY r.failed_upstream LIMIT 1) FROM upstream u
        WHERE u.name IS NOT NULL)
    SELECT u.name AS upstream, w.responses, w.since, w.next_try_at,
           ARRAY(SELECT p.name FROM projects p WHERE p.id = ANY(w.project_ids[1 : {_MAX_PROJECTS}]) ORDER BY p.name)
               AS projects, cardinality(w.project_ids) AS project_count, f.reason, f.message
    FROM (SELECT name FROM upstream WHERE name IS NOT NULL LIMIT {_MAX_UPSTREAMS}) u
    CROSS JOIN LATERAL (
        SELECT count(*) AS responses, min(o.retrying_since) AS since,
               min(o.resume_at) FILTER (WHERE o.resume_at > clock_timestamp()) AS next_try_at,
               array_agg(DISTINCT o.project_id) AS project_ids,
               (array_agg(o.id ORDER BY o.retrying_since))[1 : {_SAMPLES}]
                   || (array_agg(o.id ORDER BY o.enqueued_at DESC))[1 : {_SAMPLES}] AS samples
        FROM (SELECT r.id, r.project_id, r.retrying_since, r.resume_at, r.enqueued_at FROM responses r
              WHERE r.failed_upstream = u.name AND {RETRYING} LIMIT :max_rows) o) w
    LEFT JOIN LATERAL (
        SELECT c.call ->> 'reason' AS reason, c.call ->> 'message' AS message
        FROM attempts a CROSS JOIN LATERAL jsonb_array_elements(a.failures) AS c (call)
        WHERE a.response_id = ANY(w.samples) AND c.call ->> 'upstream' = u.name
        ORDER BY c.call ->> 'reason' IN {UNTRIED}, a.ended_at DESC LIMIT 1) f ON true
    WHERE w.responses > 0
    ORDER BY w.responses DESC, u.name
    """,
    UpstreamWait,
)
"""Counts what waits for each upstream that has failed, at most `max_rows` responses of each."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of the live workers of a kind, and the responses that they run."""

    kind: str
    workers: int
    running: int
    retrying: int
    """of these responses: an upstream that has failed is tried for them now"""
    slots: int | None
    """null: none of them states it"""


SLOTS = Query(
    """
    SELECT w.kind, count(*) AS workers,
           sum(owned.running)::bigint AS running, sum(owned.retrying)::bigint AS retrying,
           sum(w.slots)::bigint AS slots
    FROM workers w CROSS JOIN LATERAL (SELECT count(*) AS running, count(r.failed_upstream) AS retrying
                                       FROM responses r WHERE r.worker = w.id) owned
    WHERE NOT w.dead AND w.expires_at > clock_timestamp() AND w.kind <> 'web' GROUP BY w.kind
    """,
    Slots,
)
"""Counts slots and running responses of the live workers. At most as many responses are read as
there are slots."""


@dataclass(frozen=True, slots=True)
class ProjectName:
    """A project and its name."""

    id: UUID
    name: str


PROJECT_NAMES = Query(
    "SELECT id, name FROM projects WHERE id = ANY(CAST(:ids AS uuid[]))", ProjectName
)
"""Selects the names of these projects; those that do not exist are left out."""

LIVE_WORKER_IDS = column(
    "SELECT id FROM workers WHERE NOT dead AND expires_at > clock_timestamp() AND kind <> 'web' LIMIT 1000",
    UUID,
)
"""Selects the live workers."""


@dataclass(frozen=True, slots=True)
class SavedFilter:
    """A filter of the list of responses that somebody has saved."""

    name: str
    query: str
    """the parameters of the page, as in its address"""


SAVED_FILTERS = Query(
    "SELECT name, query FROM console_filters WHERE login = :login ORDER BY name LIMIT :max_rows",
    SavedFilter,
)
SAVE_FILTER = column(
    """
    INSERT INTO console_filters (login, name, query)
    SELECT CAST(:login AS text), CAST(:name AS text), CAST(:query AS text)
    WHERE (SELECT count(*) FROM console_filters WHERE login = CAST(:login AS text) AND name <> CAST(:name AS text))
          < :max_rows
    ON CONFLICT (login, name) DO UPDATE SET query = excluded.query RETURNING name
    """,
    str,
)
"""Saves a filter, in place of one with the same name. No row: the login has `max_rows` others."""
DELETE_FILTER = Statement("DELETE FROM console_filters WHERE login = :login AND name = :name")
