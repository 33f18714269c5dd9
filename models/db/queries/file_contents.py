"""The statements of files (docs/files.md).

The content of a file is the list of its parts, each of which is one stored object. The row of a
part is committed before its object is written, so that no object exists without a row: what a
killed process has begun to write is found here, and the purge deletes it. A part that has no number
belongs to no content yet. Files are seen once they are complete, until they expire or are deleted.
"""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.common import OF_ITEM
from models.db.statement import Query, column


@dataclass(frozen=True, slots=True)
class FileRow:
    """A complete file."""

    id: UUID
    filename: str
    purpose: str
    bytes: int
    media_type: str | None
    """what its bytes were found to be (models/files/kinds.py); None: it was not examined"""
    created_at: int
    """whole seconds since the epoch, as `expires_at`"""
    expires_at: int | None
    """None: it is kept until it is deleted"""


@dataclass(frozen=True, slots=True)
class PartRow:
    """A part of a file's content."""

    id: UUID
    """names the stored object (models/files/storage.py)"""
    bytes: int


FILE_COLUMNS = """f.id, f.filename, f.purpose, f.bytes, f.media_type,
    floor(extract(epoch FROM f.created_at))::bigint AS created_at,
           floor(extract(epoch FROM f.expires_at))::bigint AS expires_at"""

IS_OPEN = """f.completed_at IS NULL AND f.delete_requested_at IS NULL
    AND (f.expires_at IS NULL OR f.expires_at > statement_timestamp())"""
"""File `f` is being written."""

OF_CONTAINER = "container"
"""The purpose of files that only a container has (docs/code.md)."""
IS_OWN = f"f.purpose NOT IN ('{OF_CONTAINER}', '{OF_ITEM}')"
"""File `f` belongs to nothing else."""
IS_VISIBLE = f"""f.completed_at IS NOT NULL AND f.delete_requested_at IS NULL AND {IS_OWN}
    AND (f.expires_at IS NULL OR f.expires_at > statement_timestamp())"""
"""File `f` is complete, and is seen."""


@dataclass(frozen=True, slots=True)
class StorageUse:
    """What a project stores, with what is being uploaded."""

    count: int
    bytes: int


STORED_FILES = Query(
    f"""
    SELECT count(*) AS count, coalesce(sum(f.bytes), 0)::bigint AS bytes FROM files f
    WHERE f.project_id = :project AND f.delete_requested_at IS NULL
      AND (f.expires_at IS NULL OR f.expires_at > statement_timestamp()) AND f.id <> :id
      AND f.purpose <> '{OF_ITEM}'
    """,
    StorageUse,
)
"""Counts the files of a project, without the file `id`. Images of items count with their responses
(quotas.STORED_WITH_RESPONSES)."""

INSERT_PART = column(
    f"""
    INSERT INTO file_parts (id, file_id) SELECT :part, f.id FROM files f WHERE f.id = :id AND {IS_OPEN}
    RETURNING file_parts.id
    """,
    UUID,
)
"""Before the object of a part is written. No row: the file is gone, so nothing may be written."""

FINISH_PART = column(
    """
    UPDATE file_parts SET bytes = :bytes, number = :number WHERE id = :part AND bytes IS NULL AND NOT abandoned
    RETURNING id
    """,
    UUID,
)
"""After the object of a part is durable. `number` null: the part has no place in the content yet.
No row: the purge has given the part up, so its writer deletes the object. Raises UniqueViolation if
the content has a part of this number."""

FORGET_PART = column("DELETE FROM file_parts WHERE id = :part AND bytes IS NULL RETURNING id", UUID)
"""After a writer has failed, and has deleted the object."""

FIND_FILES = Query(
    f"""
    SELECT {FILE_COLUMNS} FROM files f
    WHERE f.id = ANY(CAST(:ids AS uuid[])) AND f.project_id = :project AND {IS_VISIBLE}
    """,
    FileRow,
)
"""Those of the files `ids` that the project has."""


@dataclass(frozen=True, slots=True)
class StoredContent:
    """A file with its parts."""

    id: UUID
    filename: str
    media_type: str | None
    bytes: int
    parts: list[UUID]
    """in order"""
    sizes: list[int]
    """of the parts, in bytes"""


STORED_CONTENTS = Query(
    """
    SELECT f.id, f.filename, f.media_type, f.bytes, content.parts, content.sizes
    FROM files f CROSS JOIN LATERAL (
        SELECT array_agg(p.id ORDER BY p.number) AS parts, array_agg(p.bytes ORDER BY p.number) AS sizes
        FROM file_parts p WHERE p.file_id = f.id AND p.number IS NOT NULL AND p.bytes IS NOT NULL) content
    WHERE f.id = ANY(CAST(:ids AS uuid[])) AND f.project_id = :project AND f.completed_at IS NOT NULL
      AND content.parts IS NOT NULL
      AND (f.expires_at IS NULL OR f.expires_at > to_timestamp(CAST(:response_created_at AS bigint)))
      AND (f.delete_requested_at IS NULL OR f.delete_requested_at > to_timestamp(CAST(:response_created_at AS bigint)))
    """,
    StoredContent,
)
"""Those of the files `ids` that the project had when a response was created, at
`response_created_at` in seconds since the epoch. It may use them until it has ended
(DELETABLE_PARTS), also if they were deleted meanwhile."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """The image of an item: its only part."""

    id: UUID
    part: UUID
    bytes: int


STORED_IMAGES = Query(
    f"""
    SELECT f.id, p.id AS part, p.bytes FROM files f JOIN file_parts p ON p.file_id = f.id AND p.number = 0
    WHERE f.id = ANY(CAST(:ids AS uuid[])) AND f.project_id = :project AND f.purpose = '{OF_ITEM}'
      AND f.completed_at IS NOT NULL AND p.bytes IS NOT NULL
    """,
    StoredImage,
)
"""Those of these images that the project has, also of an item that is just being deleted."""
