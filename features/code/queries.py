"""The statements of containers, their files, cells and sessions (docs/code.md). The content of a
container's file is that of a file (models/db/queries/file_contents.py): one that the client names,
or one with the purpose `container`, which only the container has. What a project uses is in
models/db/queries/quotas.py."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from features.code.containers import Container, ContainerFile
from models.db.queries.audit import recorded
from models.db.queries.common import pages_of
from models.db.queries.file_contents import IS_VISIBLE, OF_CONTAINER
from models.db.statement import Query, Statement, column
from models.wire.token_counts import UsageKind

IS_LIVE = "c.deleted_at IS NULL AND c.last_active_at + c.idle_time > statement_timestamp()"
"""Container `c` is there, and has not expired."""
IS_BUSY = """EXISTS (SELECT FROM container_cells x
    WHERE x.container_id = c.id AND x.session = c.session AND x.ended_at IS NULL
      AND x.began_at > statement_timestamp() - interval '10 minutes')"""
"""Code runs in the session of container `c`, as far as is known."""
_COLUMNS = """c.id, c.project_id, c.memory_limit,
    CASE WHEN c.stop_requested_at IS NULL THEN c.sandbox END AS sandbox, c.session, c.allowed_domains"""
"""A session that is being stopped is none: the next call gets another one."""

INSERT_CONTAINER = column(
    """
    INSERT INTO containers (id, project_id, api_key_id, name, memory_limit, idle_time, allowed_domains)
    SELECT :id, :project, :api_key, :name, :memory_limit, CAST(:idle_time AS interval), CAST(:allowed_domains AS text[])
    ON CONFLICT (id) DO NOTHING RETURNING id
    """,
    UUID,
)
"""No row: it is there."""

TAKE_CONTAINER = Query(
    f"""
    UPDATE containers c SET last_active_at = clock_timestamp()
    WHERE c.id = :id AND c.project_id = :project AND {IS_LIVE} RETURNING {_COLUMNS}
    """,
    Container,
)
"""The container is used now. No row: the project has none, or it has expired."""

GET_CONTAINER = Query(
    f"SELECT {_COLUMNS} FROM containers c WHERE c.id = :id AND c.deleted_at IS NULL", Container
)

PLACE_CONTAINER = Query(
    f"""
    UPDATE containers c SET sandbox = :sandbox, session = :session, opening_until = NULL,
                            stop_requested_at = NULL, ending_until = NULL
    WHERE c.id = :id AND c.session IS NOT DISTINCT FROM CAST(:before AS text) AND c.deleted_at IS NULL
    RETURNING {_COLUMNS}
    """,
    Container,
)
"""No row: another worker has opened a session, or the container was deleted."""


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """A container as its client sees it. Times in seconds since the epoch."""

    id: UUID
    name: str
    memory_limit: str | None
    created_at: int
    last_active_at: int
    idle_minutes: int
    is_live: bool
    allowed_domains: list[str]


_SHOWN = f"""c.id, c.name, c.memory_limit, floor(extract(epoch FROM c.created_at))::bigint AS created_at,
    floor(extract(epoch FROM c.last_active_at))::bigint AS last_active_at,
    greatest(1, extract(epoch FROM c.idle_time)::bigint / 60) AS idle_minutes, {IS_LIVE} AS is_live,
    c.allowed_domains"""

FIND_CONTAINER = Query(
    f"""
    WITH used AS (UPDATE containers c SET last_active_at = clock_timestamp()
                  WHERE c.id = :id AND c.project_id = :project AND CAST(:is_used AS boolean) AND {IS_LIVE}
                  RETURNING c.*)
    SELECT {_SHOWN} FROM used c
    UNION ALL
    SELECT {_SHOWN} FROM containers c
    WHERE c.id = :id AND c.project_id = :project AND c.deleted_at IS NULL AND NOT EXISTS (SELECT FROM used)
    """,
    ContainerRow,
)
"""`is_used`: it is in use now, if it has not expired."""

LIST_CONTAINERS = pages_of(
    f"""
    SELECT {_SHOWN} FROM containers c
    WHERE c.project_id = :project AND c.deleted_at IS NULL AND (CAST(:name AS text) IS NULL OR c.name = :name)
    """,
    "c.id",
    ContainerRow,
)

FORGET_CONTENTS = column(
    f"""
    UPDATE files f SET delete_requested_at = clock_timestamp() FROM container_files cf
    WHERE cf.container_id = ANY(CAST(:ids AS uuid[])) AND f.id = cf.file_id AND f.purpose = '{OF_CONTAINER}'
      AND f.delete_requested_at IS NULL RETURNING f.id
    """,
    UUID,
)
"""Before the rows of containers are deleted."""

DELETE_CONTAINER = column(
    f"""
    WITH deleted AS (UPDATE containers SET deleted_at = clock_timestamp()
                     WHERE id = :id AND project_id = :project AND deleted_at IS NULL RETURNING id),
         audited AS ({recorded("deleted")})
    SELECT id FROM deleted
    """,
    UUID,
)
"""A worker ends its session, and then the purge deletes the row. No row: it is deleted."""

_GONE = """(SELECT c.id FROM containers c WHERE c.deleted_at IS NOT NULL AND c.sandbox IS NULL LIMIT :rows)
    UNION ALL
    (SELECT c.id FROM containers c
     WHERE c.last_active_at < statement_timestamp() - interval '1 hour' AND c.sandbox IS NULL
       AND c.last_active_at + c.idle_time < statement_timestamp() - interval '1 hour'
     ORDER BY c.last_active_at LIMIT :rows)"""
GONE_CONTAINERS = column(f"SELECT id FROM ({_GONE}) g LIMIT :rows", UUID)
"""Without a session: those that are deleted, and those that expired an hour ago."""

DROP_CONTAINERS = column(
    "DELETE FROM containers WHERE id = ANY(CAST(:ids AS uuid[])) AND sandbox IS NULL RETURNING id",
    UUID,
)

DELETE_OLD_CELLS = column(
    """
    DELETE FROM container_cells WHERE id = ANY(ARRAY(
        SELECT x.id FROM container_cells x WHERE x.began_at < statement_timestamp() - interval '2 days'
          AND NOT EXISTS (SELECT FROM containers c WHERE c.id = x.container_id) LIMIT :rows)) RETURNING 1
    """,
    int,
)
"""Cells count until their day has ended."""

_FILE_COLUMNS = "cf.id, cf.path, cf.bytes, cf.file_id"
_STORED = """container_files cf JOIN files f ON f.id = cf.file_id AND f.completed_at IS NOT NULL
    AND f.delete_requested_at IS NULL AND (f.expires_at IS NULL OR f.expires_at > statement_timestamp())"""
"""Files of containers whose contents are there: a client may have deleted one of its own."""

LINK_FILES = column(
    f"""
    INSERT INTO container_files (id, container_id, path, file_id, bytes, source)
    SELECT given.id, :container,
           CASE WHEN octet_length(f.filename) <= 200 THEN f.filename ELSE right(f.filename, 50) END, f.id, f.bytes, 'user'
    FROM unnest(CAST(:ids AS uuid[]), CAST(:files AS uuid[])) AS given (id, file_id)
    JOIN files f ON f.id = given.file_id AND f.project_id = :project AND {IS_VISIBLE}
    ON CONFLICT (container_id, path) DO NOTHING RETURNING id
    """,
    UUID,
)
"""Gives a container files of its project. What has the name of one of its files is left out."""

LINKED_FILE = Query(
    f"""
    SELECT {_FILE_COLUMNS} FROM container_files cf
    WHERE cf.container_id = :container AND cf.file_id = ANY(CAST(:files AS uuid[]))
    """,
    ContainerFile,
)

STORE_FILE = Query(
    f"""
    WITH before AS (
        SELECT file_id FROM container_files WHERE container_id = :container AND path = :path AND file_id <> :file),
         forgotten AS (
        UPDATE files f SET delete_requested_at = clock_timestamp() FROM before
        WHERE f.id = before.file_id AND f.purpose = '{OF_CONTAINER}' AND f.delete_requested_at IS NULL)
    INSERT INTO container_files AS cf (id, container_id, path, file_id, bytes, source, session)
    SELECT :id, c.id, :path, :file, :bytes, :source, :session FROM containers c
    WHERE c.id = :container AND c.deleted_at IS NULL
    ON CONFLICT (container_id, path) DO UPDATE
        SET file_id = excluded.file_id, bytes = excluded.bytes, session = excluded.session
    RETURNING {_FILE_COLUMNS}
    """,
    ContainerFile,
)
"""Of the same path only the content changes; the one before is forgotten. No row: the container was
deleted. Writers of one container take turns (LOCK_CONTAINER)."""

LOCK_CONTAINER = column("SELECT id FROM containers WHERE id = :container FOR NO KEY UPDATE", UUID)

FORGET_CONTENT = Statement(
    f"""
    UPDATE files SET delete_requested_at = clock_timestamp()
    WHERE id = :file AND purpose = '{OF_CONTAINER}' AND delete_requested_at IS NULL
    """
)

DELETE_PATH = column(
    "DELETE FROM container_files WHERE container_id = :container AND path = :path RETURNING file_id",
    UUID,
)

MISSING_FILES = Query(
    f"""
    SELECT {_FILE_COLUMNS} FROM {_STORED}
    WHERE cf.container_id = :container AND cf.session IS DISTINCT FROM CAST(:session AS text)
    """,
    ContainerFile,
)

MARK_PRESENT = Statement(
    "UPDATE container_files SET session = :session WHERE id = ANY(CAST(:ids AS uuid[]))"
)


@dataclass(frozen=True, slots=True)
class FileShown:
    """A container's file as its client sees it."""

    id: UUID
    path: str
    bytes: int
    file_id: UUID
    source: str
    created_at: int


_FILE_SHOWN = (
    f"{_FILE_COLUMNS}, cf.source, floor(extract(epoch FROM cf.created_at))::bigint AS created_at"
)

FIND_FILE = Query(
    f"SELECT {_FILE_SHOWN} FROM {_STORED} WHERE cf.id = :id AND cf.container_id = :container",
    FileShown,
)

LIST_FILES = pages_of(
    f"SELECT {_FILE_SHOWN} FROM {_STORED} WHERE cf.container_id = :container", "cf.id", FileShown
)

BEGIN_CELL = column(
    """
    WITH begun AS (INSERT INTO container_cells (id, container_id, project_id, session)
                   SELECT :id, c.id, c.project_id, :session FROM containers c WHERE c.id = :container
                   ON CONFLICT (id) DO NOTHING RETURNING session)
    SELECT session FROM begun UNION ALL SELECT session FROM container_cells WHERE id = :id LIMIT 1
    """,
    str,
)
"""Returns the session in which the cell begins, or has begun. No row: the container was purged."""

_COUNT_CELL = f"""
    INSERT INTO usage_entries (project_id, api_key_id, model, kind, requests, input_tokens, cached_tokens,
                               output_tokens, reasoning_tokens, units, cost)
    SELECT ended.project_id, (SELECT api_key_id FROM used), 'code', '{UsageKind.CODE}',
           CASE WHEN EXISTS (SELECT FROM container_cells x WHERE x.container_id = ended.container_id
                             AND x.session = ended.session AND x.id <> ended.id AND x.ended_at IS NOT NULL)
               THEN 0 ELSE 1 END, 0, 0, 0, 0, ended.cpu_ms, 0
    FROM ended"""
_USE_CONTAINER = """
    UPDATE containers c SET last_active_at = clock_timestamp() FROM ended
    WHERE c.id = ended.container_id AND c.deleted_at IS NULL RETURNING c.api_key_id"""
END_CELL = Statement(
    f"""
    WITH ended AS (UPDATE container_cells SET ended_at = clock_timestamp(), cpu_ms = :cpu_ms, wall_ms = :wall_ms
                   WHERE id = :id AND ended_at IS NULL RETURNING *),
         used AS ({_USE_CONTAINER})
    {_COUNT_CELL}
    """
)
"""Counts it as usage, its session with the first cell that ended there."""


@dataclass(frozen=True, slots=True)
class CellPlace:
    """Where a cell is."""

    sandbox: str
    session: str


FIND_CELL = Query(
    f"""
    WITH ended AS (UPDATE container_cells x SET ended_at = clock_timestamp(), cpu_ms = spent.ms, wall_ms = spent.ms
                   FROM (SELECT id, (extract(epoch FROM clock_timestamp() - began_at) * 1000)::bigint AS ms
                         FROM container_cells WHERE id = :id AND ended_at IS NULL FOR UPDATE) spent
                   WHERE x.id = spent.id RETURNING x.*),
         used AS ({_USE_CONTAINER}),
         counted AS ({_COUNT_CELL})
    SELECT c.sandbox, c.session FROM container_cells cell JOIN containers c ON c.id = cell.container_id
    WHERE cell.id = :id AND c.session = cell.session AND c.sandbox IS NOT NULL
    """,
    CellPlace,
)
"""Nobody waits for the cell any more: if its result is not known, it has used CPU as long as it was.
No row: the cell has not begun, or its session is lost."""


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


_SHOWN_SESSION = f"""
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

ANY_CONTAINER = Query(f"{_SHOWN_SESSION} AND c.id = :id", ContainerShown)

NEWEST_CONTAINERS = Query(
    f"""{_SHOWN_SESSION} AND (CAST(:project AS text) IS NULL OR p.name = :project)
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
