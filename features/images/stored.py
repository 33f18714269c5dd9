"""Images in the file storage: the item of a call has a mark of its image
(models/wire/image_marks.py)."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog

from features.files.queries import COMPLETE_FILE, FILE_PARTS
from features.images.queries import INSERT_IMAGE
from models.db.database import fetch, retry_while_unavailable
from models.db.queries.file_contents import STORED_IMAGES
from models.files.content import FileGone, write_part
from models.files.response_images import image_file
from models.files.storage import CHUNK, FileStorage, StorageError
from models.wire.image_marks import image_mark
from worker.run.resources import Resources

logger = structlog.get_logger()

_WRITE_TIME = timedelta(seconds=30)
"""For an image: a storage that hangs must not take the time of the call."""


async def store_image(
    resources: Resources, project: UUID, item_id: str, content: bytes, media_type: str
) -> dict[str, Any] | None:
    """Stores the image of an item that is stored, once, before its result is. Returns the mark.
    None: the image stays in the item. Waits while PostgreSQL is away."""
    storage, file = resources.storage, image_file(item_id)
    if storage is None or file is None:
        return None
    if (await resources.policies.policy(project)).zero_retention:
        return None  # A deleted file stays for a while (docs/files.md).
    values: dict[str, object] = {
        "id": file,
        "project": project,
        "item": item_id,
        "bytes": len(content),
        "media_type": media_type,
        "upload_time": _WRITE_TIME,
    }
    try:
        await retry_while_unavailable(lambda: _write(resources, storage, values, content))
    except (StorageError, FileGone, TimeoutError) as error:
        # It was paid for: PostgreSQL has it, as without a storage.
        logger.warning("image_stored_in_item", item=item_id, error=str(error) or "took too long")
        return None
    return image_mark(content)


async def _write(
    resources: Resources, storage: FileStorage, values: dict[str, object], content: bytes
) -> None:
    """May be repeated. Raises FileGone, StorageError and TimeoutError."""
    pool, file = resources.pool, values["id"]
    assert isinstance(file, UUID)
    await fetch(pool, INSERT_IMAGE, values)
    if not await fetch(pool, FILE_PARTS, {"id": file}):
        await write_part(pool, storage, file, _chunks(content), number=0, upload_time=_WRITE_TIME)
    completed = {"id": file, "bytes": values["bytes"], "media_type": values["media_type"]}
    if not await fetch(pool, COMPLETE_FILE, {**completed, "purpose": None, "lifetime": None}):
        stored = {"ids": [file], "project": values["project"]}
        if not await fetch(pool, STORED_IMAGES, stored):
            raise FileGone


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), CHUNK):
        yield content[start : start + CHUNK]
