"""The statement that begins the file of an image."""

from uuid import UUID

from models.db.queries.common import OF_ITEM
from models.db.statement import column

INSERT_IMAGE = column(
    f"""
    WITH item AS MATERIALIZED (
        SELECT i.id FROM items i JOIN responses r ON r.id = i.response_id AND r.project_id = :project
        WHERE i.item_id = :item AND i.direction = 'output' LIMIT 1 FOR KEY SHARE OF i)
    INSERT INTO files (id, project_id, filename, purpose, bytes, media_type, expires_at)
    SELECT :id, :project, :item, '{OF_ITEM}', :bytes, :media_type, clock_timestamp() + CAST(:upload_time AS interval)
    FROM item ON CONFLICT (id) DO NOTHING RETURNING id
    """,
    UUID,
)
"""Inserts the file of an item's image, which is not complete. No row: it is there, or the item was
deleted. An item is deleted before, or its trigger finds the file."""
