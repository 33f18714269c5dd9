"""Whether the bucket of files can be used."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing

from models.config.settings import Settings
from models.files.opening import open_storage
from models.files.storage import FileStorage, StorageError

_CONTENT = b"backburner config check"


def storage_warnings(settings: Settings) -> list[str]:
    """A sentence if an object cannot be written, read and deleted there. None for a folder: the
    processes may run as another user."""
    storage = None if settings.s3.bucket is None else open_storage(settings)
    if storage is None:
        return []
    try:
        asyncio.run(_try_out(storage))
    except StorageError as error:
        return [f"files cannot be stored: {error}"]
    return []


async def _try_out(storage: FileStorage) -> None:
    key = f"check/{uuid.uuid4().hex}"
    try:
        await storage.check()
        await storage.write(key, _content())
        async with aclosing(storage.read(key, 0, len(_CONTENT))) as chunks:
            async for _ in chunks:
                pass
        await storage.discard(key)
    finally:
        await storage.close()


async def _content() -> AsyncIterator[bytes]:
    yield _CONTENT
