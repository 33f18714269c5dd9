"""The statements of images that are stored as files."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.db.queries.common import OF_ITEM
from models.db.statement import Query, column
from models.wire.image_marks import image_mark

INSERT_IMAGE = column(
    f"""
    WITH item AS MATERIALIZED (
        SELECT i.id FROM items i JOIN responses r ON r.id = i.response_id AND r.project_id = :project
        WHERE i.item_id = :item AND i.direction = 'output' LIMIT 1 FOR KEY SHARE OF i)
    INSERT INTO files (id, project_id, filename, purpose, bytes, media_type, expires_at)
    SELECT :id, :project, :digest, '{OF_ITEM}', :bytes, :media_type, clock_timestamp() + CAST(:upload_time AS interval)
    FROM item ON CONFLICT (id) DO NOTHING RETURNING id
    """,
    UUID,
)
"""Inserts the file of an item's image, which is not complete. No row: it is there, or the item was
deleted. An item is deleted before, or its trigger finds the file."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image that is stored."""

    digest: str
    """SHA-256, in hex: the name of the file"""
    bytes: int
    media_type: str

    @property
    def mark(self) -> dict[str, Any]:
        """The `result` of its item."""
        return image_mark(self.digest, self.bytes)


FIND_IMAGE = Query(
    f"""
    SELECT filename AS digest, bytes, media_type FROM files
    WHERE id = :id AND project_id = :project AND purpose = '{OF_ITEM}' AND completed_at IS NOT NULL
      AND delete_requested_at IS NULL
    """,
    ImageFile,
)
"""No row: the item has no image."""
