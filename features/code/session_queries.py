"""The statements of the sessions of containers: whose end is due, and what operators see of them.
What a project uses is in models/db/queries/quotas.py."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from features.code.queries import IS_BUSY, IS_LIVE
from models.db.queries.audit import recorded
from models.db.statement import Query, Statement, column

HAS_OPEN_CELL = column(
    f"SELECT EXISTS (SELECT FROM containers c WHERE c.id = :id AND {IS_BUSY})", bool
)

RESERVE_SESSION = Statement(
    "UPDATE containers SET opening_until = clock_timestamp() + interval '1 minute' WHERE id = :id"
)

STOP_IDLE = column(
    f"""
    UPDATE containers SET stop_requested_at = clock_timestamp() WHERE id = (
        SELECT c.id FROM containers c
        WHERE c.project_id = :project AND c.sandbox IS NOT NULL AND c.stop_requested_at IS NULL
          AND c.deleted_at IS NULL AND c.id <> CAST(:id AS uuid)
          AND c.last_active_at < statement_timestamp() - interval '2 seconds' AND NOT {IS_BUSY}
        ORDER BY c.last_active_at LIMIT 1)
    RETURNING id
    """,
    UUID,
)
"""Ends the session of a project that was not used for longest. No row: all are in use."""

_IS_OVER = f"""c.sandbox IS NOT NULL AND (c.ending_until IS NULL OR c.ending_until < statement_timestamp())
    AND (c.stop_requested_at IS NOT NULL OR c.deleted_at IS NOT NULL OR (NOT ({IS_LIVE}) AND NOT {IS_BUSY}))"""
"""The session of container `c` is to end: it was stopped, or the container is deleted or expired."""

SESSION_IS_OVER = column(f"SELECT EXISTS (SELECT FROM containers c WHERE {_IS_OVER})", bool)


@dataclass(frozen=True, slots=True)
class OverSession:
    """A session that is to end."""

    id: UUID
    """of its container"""
    sandbox: str
    session: str
    is_old: bool
    """It is so long over that its sandbox has ended it, or is gone."""


TAKE_OVER_SESSIONS = Query(
    f"""
    UPDATE containers c SET ending_until = clock_timestamp() + CAST(:lease AS interval)
    WHERE c.id = ANY(ARRAY(SELECT c.id FROM containers c WHERE {_IS_OVER} LIMIT :free FOR UPDATE SKIP LOCKED))
    RETURNING c.id, c.sandbox, c.session,
        least(c.stop_requested_at, c.deleted_at, c.last_active_at + c.idle_time)
            < statement_timestamp() - interval '30 minutes' AS is_old
    """,
    OverSession,
)

SESSION_ENDED = Statement(
    """
    UPDATE containers SET sandbox = NULL, stop_requested_at = NULL, ending_until = NULL
    WHERE id = :id AND session = :session
    """
)
"""The container keeps the id of the session: the next one is then opened as its replacement."""


@dataclass(frozen=True, slots=True)
class ContainerShown:
    """A container as operators see it."""

    id: UUID
    project_id: UUID
    project: str
    name: str
    key: str | None
    """the first characters of the key that made it"""
    memory_limit: str
    status: str
    """`running`: it has a session; `stopping`; `idle`: it has none; `expired`"""
    is_busy: bool
    """Code runs now."""
    sandbox: str | None
    created_at: datetime
    last_active_at: datetime
    files: int
    bytes: int
    """of its files"""
    calls: int
    cpu_ms: int


_SHOWN = f"""
    SELECT c.id, c.project_id, p.name AS project, c.name, k.prefix AS key,
           coalesce(c.memory_limit, '1g') AS memory_limit,
           CASE WHEN c.sandbox IS NOT NULL AND c.stop_requested_at IS NOT NULL THEN 'stopping'
                WHEN NOT ({IS_LIVE}) THEN 'expired'
                WHEN c.sandbox IS NOT NULL THEN 'running' ELSE 'idle' END AS status,
           c.sandbox IS NOT NULL AND {IS_BUSY} AS is_busy, c.sandbox, c.created_at, c.last_active_at,
           stored.files, stored.bytes, used.calls, used.cpu_ms
    FROM containers c JOIN projects p ON p.id = c.project_id LEFT JOIN api_keys k ON k.id = c.api_key_id
    CROSS JOIN LATERAL (SELECT count(*) AS files, coalesce(sum(cf.bytes), 0)::bigint AS bytes
                        FROM container_files cf WHERE cf.container_id = c.id) stored
    CROSS JOIN LATERAL (SELECT count(*) AS calls, coalesce(sum(x.cpu_ms), 0)::bigint AS cpu_ms
                        FROM container_cells x WHERE x.container_id = c.id) used
    WHERE c.deleted_at IS NULL"""

ANY_CONTAINER = Query(f"{_SHOWN} AND c.id = :id", ContainerShown)

NEWEST_CONTAINERS = Query(
    f"""{_SHOWN} AND (CAST(:project AS text) IS NULL OR p.name = :project)
        AND (NOT CAST(:is_open AS boolean) OR c.sandbox IS NOT NULL)
        AND c.id < :before ORDER BY c.id DESC LIMIT :max_rows""",
    ContainerShown,
)
"""Containers of a project, or of all, the newest first. `is_open`: only those with a session."""

STOP_SESSION = column(
    f"""
    WITH stopped AS (UPDATE containers SET stop_requested_at = clock_timestamp()
                     WHERE id = :id AND sandbox IS NOT NULL AND stop_requested_at IS NULL RETURNING id),
         audited AS ({recorded("stopped")})
    SELECT id FROM stopped
    """,
    UUID,
)
"""A worker ends the session. No row: it has none."""
