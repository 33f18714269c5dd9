"""The purge of files: those that clients have deleted or that have expired, and stored objects that
belong to no file. An object is deleted before its row, so a purge that is interrupted forgets
none."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Protocol

import structlog

from models.db.arrays import Uuids
from models.db.database import Parameters
from models.db.queries import files
from models.db.queries.files import DeletablePart
from models.db.statement import Query, RowT
from models.files.storage import FileStorage, StorageError, part_key

logger = structlog.get_logger()

_MAX_ROWS: Final = 500
"""Files and parts of one step."""
_AT_ONCE = 16
"""Objects that are deleted at a time."""


class PurgeStep(Protocol):
    """Runs a statement, unless another worker purges: then it returns no rows."""

    async def __call__(self, query: Query[RowT], values: Parameters, /) -> list[RowT]: ...


async def purge_files(step: PurgeStep, storage: FileStorage, upload_time: timedelta) -> None:
    """One round, until nothing is left. While the storage does not answer, its objects wait."""
    values: dict[str, object] = {"rows": _MAX_ROWS, "upload_time": upload_time}
    for hide in (files.HIDE_EXPIRED_FILES, files.ABANDON_PARTS):
        while len(await step(hide, values)) == _MAX_ROWS:
            pass
    try:
        while parts := await step(files.DELETABLE_PARTS, values):
            await _delete_objects(storage, parts)
            await step(files.DELETE_PARTS, {"ids": Uuids([part.id for part in parts])})
    except StorageError as error:
        logger.warning("files_not_purged", error=str(error))
    while len(await step(files.DELETE_FILES, values)) == _MAX_ROWS:
        pass


async def _delete_objects(storage: FileStorage, parts: Sequence[DeletablePart]) -> None:
    for first in range(0, len(parts), _AT_ONCE):
        together = parts[first : first + _AT_ONCE]
        await asyncio.gather(*(_delete_object(storage, part) for part in together))


async def _delete_object(storage: FileStorage, part: DeletablePart) -> None:
    delete = storage.delete if part.is_whole else storage.discard
    await delete(part_key(part.id))
