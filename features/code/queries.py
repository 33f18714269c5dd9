"""The statements of containers, their files and cells (docs/code.md). The content of a container's
file is that of a file (models/db/queries/file_contents.py): one that the client names, or one with
the purpose `container`, which only the container has."""

from dataclasses import dataclass
from uuid import UUID

from features.code.containers import Container, ContainerFile
from models.db.queries.file_contents import IS_VISIBLE, OF_CONTAINER
from models.db.statement import Query, Statement, column

_IS_LIVE = "c.last_active_at + c.idle_time > statement_timestamp()"
_COLUMNS = "c.id, c.project_id, c.memory_limit, c.sandbox, c.session"

INSERT_CONTAINER = column(
    """
    INSERT INTO containers (id, project_id, api_key_id, name, memory_limit, idle_time)
    SELECT :id, :project, :api_key, :name, :memory_limit, CAST(:idle_time AS interval)
    ON CONFLICT (id) DO NOTHING RETURNING id
    """,
    UUID,
)
"""No row: it is there."""

TAKE_CONTAINER = Query(
    f"""
    UPDATE containers c SET last_active_at = clock_timestamp()
    WHERE c.id = :id AND c.project_id = :project AND {_IS_LIVE} RETURNING {_COLUMNS}
    """,
    Container,
)
"""The container is used now. No row: the project has none, or it has expired."""

GET_CONTAINER = Query(f"SELECT {_COLUMNS} FROM containers c WHERE c.id = :id", Container)

PLACE_CONTAINER = Query(
    f"""
    UPDATE containers c SET sandbox = :sandbox, session = :session
    WHERE c.id = :id AND c.session IS NOT DISTINCT FROM CAST(:before AS text) RETURNING {_COLUMNS}
    """,
    Container,
)
"""No row: another worker has opened a session."""


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


_SHOWN = f"""c.id, c.name, c.memory_limit, floor(extract(epoch FROM c.created_at))::bigint AS created_at,
    floor(extract(epoch FROM c.last_active_at))::bigint AS last_active_at,
    greatest(1, extract(epoch FROM c.idle_time)::bigint / 60) AS idle_minutes, {_IS_LIVE} AS is_live"""

FIND_CONTAINER = Query(
    f"SELECT {_SHOWN} FROM containers c WHERE c.id = :id AND c.project_id = :project", ContainerRow
)

LIST_CONTAINERS = {
    order: Query(
        f"""
        SELECT {_SHOWN} FROM containers c
        WHERE c.project_id = :project AND (CAST(:after AS uuid) IS NULL OR c.id {comparison} :after)
        ORDER BY c.id {order} LIMIT :limit
        """,
        ContainerRow,
    )
    for order, comparison in (("asc", ">"), ("desc", "<"))
}

FORGET_CONTENTS = column(
    f"""
    UPDATE files f SET delete_requested_at = clock_timestamp() FROM container_files cf
    WHERE cf.container_id = ANY(CAST(:ids AS uuid[])) AND f.id = cf.file_id AND f.purpose = '{OF_CONTAINER}'
      AND f.delete_requested_at IS NULL RETURNING f.id
    """,
    UUID,
)
"""Before the rows of containers are deleted."""

DELETE_CONTAINERS = column(
    """
    DELETE FROM containers WHERE id = ANY(CAST(:ids AS uuid[]))
      AND (CAST(:project AS uuid) IS NULL OR project_id = :project) RETURNING id
    """,
    UUID,
)

EXPIRED_CONTAINERS = column(
    f"SELECT c.id FROM containers c WHERE NOT ({_IS_LIVE}) ORDER BY c.last_active_at LIMIT :rows",
    UUID,
)

_FILE_COLUMNS = "cf.id, cf.path, cf.bytes, cf.file_id"

LINK_FILES = column(
    f"""
    INSERT INTO container_files (id, container_id, path, file_id, bytes, source)
    SELECT given.id, :container, f.filename, f.id, f.bytes, 'user'
    FROM unnest(CAST(:ids AS uuid[]), CAST(:files AS uuid[])) AS given (id, file_id)
    JOIN files f ON f.id = given.file_id AND f.project_id = :project AND {IS_VISIBLE}
    ON CONFLICT (container_id, path) DO NOTHING RETURNING id
    """,
    UUID,
)
"""Gives a container files of its project. What has the name of one of its files is left out."""

LINKED_FILE = column(
    "SELECT id FROM container_files WHERE container_id = :container AND file_id = ANY(CAST(:files AS uuid[]))",
    UUID,
)

STORE_FILE = Query(
    f"""
    INSERT INTO container_files AS cf (id, container_id, path, file_id, bytes, source, session)
    VALUES (:id, :container, :path, :file, :bytes, :source, :session)
    ON CONFLICT (container_id, path) DO UPDATE
        SET file_id = excluded.file_id, bytes = excluded.bytes, session = excluded.session
    RETURNING {_FILE_COLUMNS}
    """,
    ContainerFile,
)
"""Of the same path only the content changes."""

CONTENT_OF = column(
    "SELECT file_id FROM container_files WHERE container_id = :container AND path = :path", UUID
)

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
    SELECT {_FILE_COLUMNS} FROM container_files cf
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
    f"SELECT {_FILE_SHOWN} FROM container_files cf WHERE cf.id = :id AND cf.container_id = :container",
    FileShown,
)

LIST_FILES = {
    order: Query(
        f"""
        SELECT {_FILE_SHOWN} FROM container_files cf
        WHERE cf.container_id = :container AND (CAST(:after AS uuid) IS NULL OR cf.id {comparison} :after)
        ORDER BY cf.id {order} LIMIT :limit
        """,
        FileShown,
    )
    for order, comparison in (("asc", ">"), ("desc", "<"))
}

BEGIN_CELL = column(
    """
    WITH begun AS (INSERT INTO container_cells (id, container_id, session)
                   VALUES (:id, :container, :session) ON CONFLICT (id) DO NOTHING RETURNING session)
    SELECT session FROM begun UNION ALL SELECT session FROM container_cells WHERE id = :id LIMIT 1
    """,
    str,
)
"""Returns the session in which the cell begins, or has begun."""

END_CELL = Statement(
    """
    UPDATE container_cells SET ended_at = clock_timestamp(), cpu_ms = :cpu_ms, wall_ms = :wall_ms
    WHERE id = :id AND ended_at IS NULL
    """
)


@dataclass(frozen=True, slots=True)
class CellPlace:
    """Where a cell is."""

    sandbox: str
    session: str


FIND_CELL = Query(
    """
    SELECT c.sandbox, c.session FROM container_cells cell JOIN containers c ON c.id = cell.container_id
    WHERE cell.id = :id AND c.session = cell.session AND c.sandbox IS NOT NULL
    """,
    CellPlace,
)
"""No row: the cell has not begun, or its session is lost."""
