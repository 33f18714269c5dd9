"""The statements of files that only features use (docs/files.md): what clients and operators do with
them, and the purge. The others are in models/db/queries/file_contents.py."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from models.db.queries import file_contents
from models.db.queries.audit import recorded
from models.db.queries.common import OPEN, pages_of
from models.db.queries.quotas import OPEN_BATCH
from models.db.statement import Query, column

LOCK_PROJECT = column("SELECT id FROM projects WHERE id = :project FOR NO KEY UPDATE", UUID)
"""For a project with quotas: its files are counted and inserted by one transaction at a time."""

INSERT_FILE = column(
    """
    INSERT INTO files (id, project_id, filename, purpose, bytes, media_type, lifetime, expires_at)
    VALUES (:id, :project, :filename, :purpose, :bytes, :media_type, CAST(:lifetime AS interval),
            clock_timestamp() + CAST(:upload_time AS interval)) RETURNING id
    """,
    UUID,
)
"""Inserts a file that is not complete. `bytes`: as many as are reserved for it. `upload_time`: after
this it is deleted, if it is not complete then. `lifetime`: of the complete file, from now on; null:
until it is deleted."""

ABANDON_PART = column(
    "UPDATE file_parts SET abandoned = true WHERE id = :part AND number IS NULL RETURNING id", UUID
)
"""A part that has no place in the content is not needed: the purge deletes it."""

FIND_PART = column(
    "SELECT id FROM file_parts WHERE id = :part AND bytes IS NOT NULL AND NOT abandoned", UUID
)

COMPLETE_FILE = Query(
    f"""
    UPDATE files f SET bytes = :bytes, media_type = :media_type, purpose = coalesce(CAST(:purpose AS text), f.purpose),
                       completed_at = clock_timestamp(),
                       expires_at = f.created_at + coalesce(CAST(:lifetime AS interval), f.lifetime)
    WHERE f.id = :id AND {file_contents.IS_OPEN} RETURNING {file_contents.FILE_COLUMNS}
    """,
    file_contents.FileRow,
)
"""Makes the file visible: its content is the parts that have a number, and does not change any more.
`purpose` and `lifetime` null: as they were inserted. No row: the file is gone, or was complete."""

FIND_FILE = Query(
    f"SELECT {file_contents.FILE_COLUMNS} FROM files f WHERE f.id = :id AND f.project_id = :project AND {file_contents.IS_VISIBLE}",
    file_contents.FileRow,
)
"""No row: the project has no such file."""

_IS_READ = f"""EXISTS (SELECT 1 FROM batches b
                       WHERE b.project_id = f.project_id AND b.input_file_id = f.id AND {OPEN_BATCH})"""
"""File `f` is the input of a batch that has not ended."""

FILE_PARTS = Query(
    """
    SELECT p.id, p.bytes FROM file_parts p WHERE p.file_id = :id AND p.number IS NOT NULL AND p.bytes IS NOT NULL
    ORDER BY p.number
    """,
    file_contents.PartRow,
)
"""The content of a file: its parts, in order."""


@dataclass(frozen=True, slots=True)
class UploadRow:
    """A file that a client uploads in parts, or has uploaded."""

    id: UUID
    filename: str
    purpose: str
    bytes: int
    """as the client has announced them"""
    created_at: int
    """whole seconds since the epoch, as `ends_at`"""
    ends_at: int
    """the end of the upload, while it is open"""
    status: str
    """`pending`, `completed`, `cancelled` or `expired`"""


FIND_UPLOAD = Query(
    f"""
    SELECT f.id, f.filename, f.purpose, f.bytes, floor(extract(epoch FROM f.created_at))::bigint AS created_at,
           floor(extract(epoch FROM f.created_at + CAST(:upload_time AS interval)))::bigint AS ends_at,
           CASE WHEN f.completed_at IS NOT NULL THEN 'completed'
               WHEN f.expires_at <= statement_timestamp() THEN 'expired'
                WHEN f.delete_requested_at IS NOT NULL THEN 'cancelled' ELSE 'pending' END AS status
    FROM files f WHERE f.id = :id AND f.project_id = :project AND f.purpose <> 'batch_output' AND {file_contents.IS_OWN}
    """,
    UploadRow,
)
"""No row: the project has no such upload (the files that a batch writes are none), or the purge has deleted it."""


@dataclass(frozen=True, slots=True)
class UploadedSoFar:
    """What an upload has received."""

    parts: int
    """also those that are being written"""
    bytes: int
    """of those that are stored"""


UPLOADED_SO_FAR = Query(
    """
    SELECT count(*) AS parts, coalesce(sum(p.bytes), 0)::bigint AS bytes FROM file_parts p
    WHERE p.file_id = :id AND NOT p.abandoned
    """,
    UploadedSoFar,
)

UPLOADED_PARTS = Query(
    """
    SELECT p.id, p.bytes FROM unnest(CAST(:ids AS uuid[])) WITH ORDINALITY AS given (id, nr)
    JOIN file_parts p ON p.id = given.id AND p.file_id = :id AND p.number IS NULL AND p.bytes IS NOT NULL
      AND NOT p.abandoned ORDER BY given.nr
    """,
    file_contents.PartRow,
)
"""Those of the parts `ids` that are stored and have no place yet, in the order of `ids`."""

ORDER_PARTS = column(
    """
    UPDATE file_parts p SET number = given.nr - 1 FROM unnest(CAST(:ids AS uuid[])) WITH ORDINALITY AS given (id, nr)
    WHERE p.id = given.id AND p.file_id = :id AND p.number IS NULL AND p.bytes IS NOT NULL AND NOT p.abandoned
    RETURNING p.id
    """,
    UUID,
)
"""Makes the parts `ids` the content of the file, in this order. Fewer rows: some are gone."""

LIST_FILES = pages_of(
    f"""
    SELECT {file_contents.FILE_COLUMNS} FROM files f
    WHERE f.project_id = :project AND {file_contents.IS_VISIBLE} AND (CAST(:purpose AS text) IS NULL OR f.purpose = :purpose)
    """,
    "f.id",
    file_contents.FileRow,
)
"""The files behind `after`, by `order` of their creation; null: from the start."""

DELETE_FILE = column(
    f"""
    WITH hidden AS (UPDATE files f SET delete_requested_at = clock_timestamp()
                    WHERE f.id = :id AND f.project_id = :project AND {file_contents.IS_VISIBLE} RETURNING f.id),
         removed AS (UPDATE vector_store_files e SET delete_requested_at = clock_timestamp() FROM hidden
                     WHERE e.file_id = hidden.id AND e.delete_requested_at IS NULL),
         audited AS ({recorded("hidden")})
    SELECT id FROM hidden
    """,
    UUID,
)
"""Hides a file, so that the purge deletes it, removes it from vector stores, and adds the entry to
the audit log. No row: the project has no such file."""

ABANDON_FILE = column(
    """
    UPDATE files f SET delete_requested_at = clock_timestamp()
    WHERE f.id = :id AND f.completed_at IS NULL AND f.delete_requested_at IS NULL RETURNING f.id
    """,
    UUID,
)
"""Hides a file that was not completed, so that the purge deletes what was written of it."""


# --- operators ---


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as operators see it."""

    id: UUID
    project_id: UUID
    project: str
    """its name"""
    filename: str
    purpose: str
    bytes: int
    media_type: str | None
    created_at: datetime
    completed_at: datetime | None
    expires_at: datetime | None
    delete_requested_at: datetime | None
    parts: int
    """stored objects"""
    now: datetime

    @property
    def state(self) -> str:
        """`uploading`, `stored` or `deleted`: its bytes are deleted by the purge."""
        has_expired = self.expires_at is not None and self.expires_at <= self.now
        if self.delete_requested_at is not None or has_expired:
            return "deleted"
        return "uploading" if self.completed_at is None else "stored"


_LISTED = """f.id, f.project_id, p.name AS project, f.filename, f.purpose, f.bytes, f.media_type, f.created_at,
    f.completed_at, f.expires_at, f.delete_requested_at,
           (SELECT count(*) FROM file_parts o WHERE o.file_id = f.id) AS parts, clock_timestamp() AS now"""

LIST_ALL_FILES = Query(
    f"""
    SELECT {_LISTED} FROM files f JOIN projects p ON p.id = f.project_id
    WHERE (CAST(:project AS text) IS NULL OR p.name = :project)
      AND (CAST(:purpose AS text) IS NULL OR f.purpose = :purpose) AND {file_contents.IS_VISIBLE}
      AND f.id < CAST(:before AS uuid) ORDER BY f.id DESC LIMIT :max_rows
    """,
    ListedFile,
)
"""The newest files that clients see, behind the one with the id `before`."""

LIST_FILES_OF_PROJECT = Query(
    f"""
    SELECT {_LISTED} FROM files f JOIN projects p ON p.id = f.project_id
    WHERE f.project_id = :project AND {file_contents.IS_VISIBLE} AND f.id < CAST(:before AS uuid) ORDER BY f.id DESC LIMIT :max_rows
    """,
    ListedFile,
)
"""The same of one project."""

SHOW_FILE = Query(
    f"SELECT {_LISTED} FROM files f JOIN projects p ON p.id = f.project_id WHERE f.id = :id",
    ListedFile,
)
"""Any file, also one that is being uploaded or was deleted. No row: there is none."""


@dataclass(frozen=True, slots=True)
class PurposeTotal:
    """What is stored of one purpose."""

    purpose: str
    files: int
    bytes: int


FILE_TOTALS = Query(
    """
    SELECT f.purpose, count(*) AS files, coalesce(sum(f.bytes), 0)::bigint AS bytes FROM files f
    WHERE f.completed_at IS NOT NULL GROUP BY f.purpose
    """,
    PurposeTotal,
)
"""Counts all complete files, also deleted ones that are not purged yet. It reads all of them."""


@dataclass(frozen=True, slots=True)
class ProjectTotal:
    """What a project stores, of the files that were looked at."""

    project: str
    """its name"""
    files: int
    bytes: int
    newest: datetime


FILES_BY_PROJECT = Query(
    f"""
    SELECT p.name AS project, count(*) AS files, sum(f.bytes)::bigint AS bytes, max(f.created_at) AS newest
    FROM (SELECT * FROM files f WHERE f.id < CAST(:before AS uuid) ORDER BY f.id DESC LIMIT :max_rows) f
    JOIN projects p ON p.id = f.project_id
    WHERE {file_contents.IS_VISIBLE} GROUP BY p.name ORDER BY 3 DESC LIMIT 50
    """,
    ProjectTotal,
)
"""Sums up the newest `max_rows` files by project: the 50 that store most."""

# --- the purge (worker/process/purge.py) ---

HIDE_EXPIRED_FILES = column(
    f"""
    WITH expired AS MATERIALIZED (
        SELECT f.id FROM files f WHERE f.expires_at < statement_timestamp() AND f.delete_requested_at IS NULL
          AND NOT {_IS_READ}
        ORDER BY f.expires_at LIMIT :rows),
         hidden AS (UPDATE files f SET delete_requested_at = clock_timestamp() FROM expired
                    WHERE f.id = expired.id AND f.delete_requested_at IS NULL RETURNING f.id),
         removed AS (UPDATE vector_store_files e SET delete_requested_at = clock_timestamp() FROM hidden
                     WHERE e.file_id = hidden.id AND e.delete_requested_at IS NULL)
    SELECT id FROM hidden
    """,
    UUID,
)
"""Hides up to `rows` files that have expired, and those that were not completed in time. Removes them
from vector stores. The input of a batch stays until the batch has ended: clients do not see it."""

ABANDON_PARTS = column(
    """
    WITH unused AS MATERIALIZED (
        SELECT p.id FROM file_parts p JOIN files f ON f.id = p.file_id
        WHERE p.number IS NULL AND NOT p.abandoned
          AND p.created_at < statement_timestamp() - 2 * CAST(:upload_time AS interval)
          AND (p.bytes IS NULL OR f.completed_at IS NOT NULL OR f.delete_requested_at IS NOT NULL)
        ORDER BY p.created_at LIMIT :rows)
    UPDATE file_parts p SET abandoned = true FROM unused
    WHERE p.id = unused.id AND p.number IS NULL AND NOT p.abandoned RETURNING p.id
    """,
    UUID,
)
"""Gives up to `rows` parts up that are no content: their writers have died, or an upload was
completed without them. No writer needs longer than `upload_time`."""


@dataclass(frozen=True, slots=True)
class DeletablePart:
    """A part whose object is to be deleted."""

    id: UUID
    is_whole: bool
    """False: its writer has failed, or was killed"""


DELETABLE_PARTS = Query(
    f"""
    WITH oldest AS MATERIALIZED (
        SELECT r.project_id, min(r.created_at) AS created_at FROM responses r
        WHERE r.status IN {OPEN} AND EXISTS (SELECT 1 FROM files f WHERE f.delete_requested_at IS NOT NULL)
        GROUP BY r.project_id)
    (SELECT p.id, p.bytes IS NOT NULL AS is_whole FROM files f JOIN file_parts p ON p.file_id = f.id
     LEFT JOIN oldest ON oldest.project_id = f.project_id
     WHERE f.delete_requested_at IS NOT NULL AND (p.bytes IS NOT NULL OR p.abandoned)
       AND (oldest.created_at IS NULL OR oldest.created_at > f.delete_requested_at OR f.completed_at IS NULL
            OR f.purpose IN ('batch', 'batch_output'))
     ORDER BY f.delete_requested_at LIMIT :rows)
    UNION
    (SELECT p.id, p.bytes IS NOT NULL AS is_whole FROM file_parts p WHERE p.number IS NULL AND p.abandoned
     ORDER BY p.created_at LIMIT :rows)
    """,
    DeletablePart,
)
"""Parts whose objects are to be deleted, up to `rows` of each kind: those of hidden files, without
what is still being written, and those that were given up. A file stays that responses may use: those
of its project that were created before it was hidden, and have not ended (docs/files.md)."""

DELETE_PARTS = column(
    "DELETE FROM file_parts WHERE id = ANY(CAST(:ids AS uuid[])) RETURNING id", UUID
)
"""After their objects were deleted."""

DELETE_FILES = column(
    """
    DELETE FROM files WHERE id IN (
        SELECT f.id FROM files f WHERE f.delete_requested_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM file_parts p
            WHERE p.file_id = f.id OFFSET 0)
        ORDER BY f.delete_requested_at LIMIT :rows)
    RETURNING id
    """,
    UUID,
)
"""Deletes up to `rows` hidden files of which nothing is stored any more."""
