"""The failed requests of a batch again: a new batch whose input file has only their lines."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from features.batches.failed_lines import failed_input
from features.batches.queries import FIND_INPUT, RETRY_BATCH, ListedBatch
from features.files.objects import FilePurpose, shorter_lifetime
from features.files.queries import ABANDON_FILE, FILE_PARTS, INSERT_FILE
from models.config.feature_groups import FileSettings
from models.db.database import (
    DATABASE_UNAVAILABLE,
    Connection,
    Pool,
    execute,
    fetch,
    fetch_idempotent,
)
from models.db.queries.api_keys import FIND_API_KEY_BY_ID, ApiKey
from models.db.queries.audit import Actor, AuditEntry
from models.files.content import FileGone, write_part
from models.files.kinds import TEXT
from models.files.storage import FileStorage
from models.ids import batch_id, new_uuid


class BatchNotRetried(Exception):
    """The failed requests of a batch are not run again; the text says why."""


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """Where files are stored, and for how long."""

    storage: FileStorage
    settings: FileSettings


def refusal(batch: ListedBatch) -> str | None:
    """Why the failed requests of a batch are not run again, as far as its row shows; None: they can
    be."""
    if not batch.has_ended:
        return "it has not ended"
    if not batch.failed or batch.error_file_id is None:
        return "no request of it has failed"
    return None


async def retry_failed(
    on: Pool | Connection, files: BatchFiles, batch: ListedBatch, actor: Actor
) -> UUID:
    """Makes a new batch of the requests of `batch` that have failed, or were not executed before
    its end. It has the same window, metadata and key. Returns its id. Quotas do not refuse it.

    Raises BatchNotRetried, StorageError, TimeoutError after the time of an upload, and what
    DATABASE_UNAVAILABLE names.
    """
    if (reason := refusal(batch)) is not None:
        raise BatchNotRetried(reason)
    keys = await fetch_idempotent(on, FIND_API_KEY_BY_ID, {"id": batch.api_key_id})
    if not keys:
        raise BatchNotRetried("the key that made it is not valid any more")
    file, made = new_uuid(), new_uuid()
    size = await _write_input(on, files, batch, keys[0], file)
    entry = AuditEntry(
        actor,
        "batch.retry",
        batch_id(batch.id),
        project=batch.project,
        details={"retry": batch_id(made)},
    )
    values = {"id": made, "retried": batch.id, "file": file, "bytes": size, **entry.values()}
    if not await fetch(on, RETRY_BATCH, values):
        await _abandon(on, file)
        raise BatchNotRetried("it was deleted, its project is archived, or its new file is gone")
    return made


async def _write_input(
    on: Pool | Connection, files: BatchFiles, batch: ListedBatch, key: ApiKey, file: UUID
) -> int:
    """Writes the new input file, and returns its bytes. It is not complete yet: if this process
    dies, the purge deletes it."""
    errors, given = batch.error_file_id, batch.input_file_id
    for name, identifier in (("error", errors), ("input", given)):
        wanted = {"id": identifier, "project": batch.project_id}
        if not await fetch_idempotent(on, FIND_INPUT, wanted):
            raise BatchNotRetried(f"its {name} file was deleted")
    parts = [await fetch_idempotent(on, FILE_PARTS, {"id": each}) for each in (errors, given)]
    settings = files.settings
    values = {
        "id": file,
        "project": batch.project_id,
        "filename": f"{batch_id(batch.id)}_failed.jsonl",
        "purpose": FilePurpose.BATCH.value,
        "bytes": 0,
        "media_type": TEXT,
        "lifetime": shorter_lifetime(settings.batch_retention, key.policy.retention),
        "upload_time": settings.upload_time,
    }
    await fetch(on, INSERT_FILE, values)
    chunks = failed_input(files.storage, *parts)
    try:
        part = await write_part(
            on, files.storage, file, chunks, number=0, upload_time=settings.upload_time
        )
    except FileGone:
        raise BatchNotRetried("its new input file was deleted") from None
    except BaseException:
        await asyncio.shield(_abandon(on, file))
        raise
    if part.bytes == 0:
        await _abandon(on, file)
        raise BatchNotRetried("no line of its input file is one of those that have failed")
    return part.bytes


async def _abandon(on: Pool | Connection, file: UUID) -> None:
    with suppress(*DATABASE_UNAVAILABLE):
        await execute(on, ABANDON_FILE, {"id": file})
