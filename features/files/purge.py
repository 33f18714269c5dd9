"""The purge of files: those that clients have deleted or that have expired, and stored objects that
belong to no file. An object is deleted before its row, so a purge that is interrupted forgets
none."""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from features.files import queries as files
from features.files.queries import DeletablePart
from models.config.settings import Settings
from models.db.arrays import Uuids
from models.files.storage import FileStorage, StorageError, part_key
from worker.process.purge import PurgeSteps

logger = structlog.get_logger()

_MAX_ROWS: Final = 500
"""Files and parts of one step."""
_AT_ONCE = 16
"""Objects that are deleted at a time."""


async def purge(steps: PurgeSteps, settings: Settings, storage: FileStorage | None) -> None:
    """One round, until nothing is left. While the storage does not answer, its objects wait."""
    if storage is None:
        return
    values: dict[str, object] = {"upload_time": settings.files.upload_time}
    for hide in (files.HIDE_EXPIRED_FILES, files.ABANDON_PARTS):
        await steps.repeat(hide, values, rows=_MAX_ROWS)
    try:
        while parts := await steps.once(files.DELETABLE_PARTS, values | {"rows": _MAX_ROWS}):
            await _delete_objects(storage, parts)
            await steps.once(files.DELETE_PARTS, {"ids": Uuids([part.id for part in parts])})
    except StorageError as error:
        logger.warning("files_not_purged", error=str(error))
    await steps.repeat(files.DELETE_FILES, values, rows=_MAX_ROWS)


async def _delete_objects(storage: FileStorage, parts: Sequence[DeletablePart]) -> None:
    for first in range(0, len(parts), _AT_ONCE):
        together = parts[first : first + _AT_ONCE]
        await asyncio.gather(*(_delete_object(storage, part) for part in together))


async def _delete_object(storage: FileStorage, part: DeletablePart) -> None:
    delete = storage.delete if part.is_whole else storage.discard
    await delete(part_key(part.id))
