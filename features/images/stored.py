"""Images in the file storage: the item of a call has a mark of its image
(models/wire/image_marks.py)."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import structlog

from features.files.queries import COMPLETE_FILE, FILE_PARTS
from features.images.queries import FIND_IMAGE, INSERT_IMAGE, ImageFile
from models.db.database import fetch, fetch_when_available, retry_while_unavailable
from models.files.content import FileGone, write_part
from models.files.response_images import image_file
from models.files.storage import CHUNK, FileStorage, StorageError
from worker.run.resources import Resources

logger = structlog.get_logger()

_WRITE_TIME = timedelta(seconds=30)
"""For an image: a storage that hangs must not take the time of the call."""


async def find_image(resources: Resources, project: UUID, item_id: str) -> ImageFile | None:
    """The image of an item, as `store_image` has stored it; None: it has not."""
    values = {"id": image_file(item_id), "project": project}
    rows = await fetch_when_available(resources.pool, FIND_IMAGE, values)
    return rows[0] if rows else None


async def store_image(
    resources: Resources, project: UUID, item_id: str, content: bytes, media_type: str
) -> ImageFile | None:
    """Stores the image of an item that is stored, once, before its result is. None: the image stays
    in the item. Waits while PostgreSQL is away."""
    storage, file = resources.storage, image_file(item_id)
    if storage is None or file is None:
        return None
    if (await resources.policies.policy(project)).zero_retention:
        return None  # A deleted file may stay for a while (docs/files.md).
    digest = (await asyncio.to_thread(hashlib.sha256, content)).hexdigest()
    values: dict[str, object] = {
        "id": file,
        "project": project,
        "item": item_id,
        "digest": digest,
        "bytes": len(content),
        "media_type": media_type,
        "upload_time": _WRITE_TIME,
    }
    try:
        await retry_while_unavailable(lambda: _write(resources, storage, values, content))
    except (StorageError, FileGone, TimeoutError) as error:
        # It was paid for: PostgreSQL has it, as without a storage.
        logger.warning("image_stored_in_item", item=item_id, error=str(error) or "it took too long")
        return None
    return ImageFile(digest, len(content), media_type)


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
    if await fetch(pool, COMPLETE_FILE, {**completed, "purpose": None, "lifetime": None}):
        return
    if not await fetch(pool, FIND_IMAGE, {"id": file, "project": values["project"]}):
        raise FileGone("its response was deleted")


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), CHUNK):
        yield content[start : start + CHUNK]
