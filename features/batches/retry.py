"""The failed requests of a batch again: a new batch whose input file has only their lines. They are
read from its error file."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from features.batches.lines import InputLine, group_lines, read_lines
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
from models.db.queries.file_contents import PartRow
from models.files.content import FileGone, read_content, write_part
from models.files.kinds import TEXT
from models.files.storage import FileStorage
from models.ids import batch_id, new_uuid

MAX_SHOWN = 100
"""Failed requests that are shown."""
_MAX_READ = 512 * 1024
"""Bytes of an error file that are read to show them."""
_LONGEST_LINE = 64 * 1024 * 1024
"""Bytes: longer than a line of any file of a batch."""
_MAX_MESSAGE = 500


class _Named(msgspec.Struct):
    """What names a line, of a file of any kind."""

    custom_id: str


class _Answer(msgspec.Struct):
    status_code: int
    body: Any = None


class _ErrorLine(msgspec.Struct):
    """A line of an error file (features/batches/collection.py)."""

    id: str
    custom_id: str
    response: _Answer | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FailedLine:
    """A request of a batch that has failed."""

    custom_id: str
    status: int | None
    """of HTTP; None: it has no answer"""
    code: str
    message: str
    named: UUID
    """the response to it, if there is one of this id"""


@dataclass(frozen=True, slots=True)
class FailedLines:
    """The first failed requests of a batch."""

    lines: list[FailedLine]
    is_cut: bool
    """There are more."""


async def read_failed(storage: FileStorage, parts: Sequence[PartRow]) -> FailedLines:
    """The first lines of an error file, which may still be written. `parts`: its content. Raises
    StorageError."""
    size = sum(part.bytes for part in parts)
    shown: list[FailedLine] = []
    async with aclosing(read_content(storage, list(parts), 0, _MAX_READ)) as chunks:
        async for line in read_lines(chunks, 0, 0, _MAX_READ):
            if len(shown) == MAX_SHOWN:
                return FailedLines(shown, is_cut=True)
            if (found := _parse(line.text or b"")) is not None:
                shown.append(found)
    return FailedLines(shown, is_cut=size > _MAX_READ)


def _parse(text: bytes) -> FailedLine | None:
    """None: the line is cut off."""
    try:
        line = msgspec.json.decode(text, type=_ErrorLine)
        named = UUID(hex=line.id.removeprefix("batch_req_"))
    except (msgspec.DecodeError, ValueError):
        return None
    body = line.response.body if line.response is not None else None
    error = body.get("error") if isinstance(body, dict) else line.error
    facts = error if isinstance(error, dict) else {}
    return FailedLine(
        line.custom_id,
        None if line.response is None else line.response.status_code,
        str(facts.get("code") or facts.get("type") or ""),
        str(facts.get("message") or "")[:_MAX_MESSAGE],
        named,
    )


async def failed_input(
    storage: FileStorage, errors: Sequence[PartRow], given: Sequence[PartRow]
) -> AsyncIterator[bytes]:
    """The lines of an input whose `custom_id` a line of the error file has, in the order of the
    input. `errors`, `given`: the contents of the two files. Raises StorageError."""
    failed = set[bytes]()
    async with aclosing(read_content(storage, list(errors))) as chunks:
        async for group in _groups(chunks):
            failed.update(key for key, _ in await asyncio.to_thread(_keyed, group))
    async with aclosing(read_content(storage, list(given))) as chunks:
        async for group in _groups(chunks):
            keyed = await asyncio.to_thread(_keyed, group)
            wanted = b"".join(text + b"\n" for key, text in keyed if key in failed)
            if wanted:
                yield wanted


def _groups(chunks: AsyncGenerator[bytes, None]) -> AsyncIterator[list[InputLine]]:
    return group_lines(read_lines(chunks, 0, 0, _LONGEST_LINE))


def _keyed(lines: Sequence[InputLine]) -> list[tuple[bytes, bytes]]:
    """Each line that has a `custom_id`, behind a hash of it: there may be many long ones."""
    keyed = []
    for line in lines:
        try:
            name = msgspec.json.decode(line.text or b"", type=_Named).custom_id
        except (msgspec.DecodeError, ValueError):
            continue
        keyed.append((hashlib.blake2b(name.encode(), digest_size=16).digest(), line.text or b""))
    return keyed


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
