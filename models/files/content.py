"""The content of a file: its parts, one after another."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from uuid import UUID

import psycopg

from models.db.database import DATABASE_UNAVAILABLE, Connection, Pool, fetch
from models.db.queries.file_contents import FINISH_PART, FORGET_PART, INSERT_PART, PartRow
from models.files.storage import FileStorage, StorageError, part_key
from models.ids import new_uuid


class FileGone(Exception):
    """The file was deleted or has expired, or the part took too long: nothing is stored."""


async def write_part(
    pool: Pool | Connection,
    storage: FileStorage,
    file: UUID,
    chunks: AsyncIterator[bytes],
    *,
    number: int | None,
    upload_time: timedelta,
) -> PartRow:
    """Stores one part of a file that is not complete yet, and returns it. `number`: its place in
    the content; None: it has none yet.

    Raises FileGone, StorageError, TimeoutError after `upload_time`, what DATABASE_UNAVAILABLE
    names, UniqueViolation if there is another part of this number, and what `chunks` raises.
    Nothing is stored then, or the purge deletes it: what a process that dies here leaves behind,
    and what a storage that did not answer may have stored or will yet store.
    """
    part = new_uuid()
    key = part_key(part)
    if not await fetch(pool, INSERT_PART, {"id": file, "part": part}):
        raise FileGone
    try:
        async with asyncio.timeout(upload_time.total_seconds()):
            size = await storage.write(key, chunks)
        finished = await fetch(pool, FINISH_PART, {"part": part, "bytes": size, "number": number})
        if not finished:
            raise FileGone  # noqa: TRY301  (what was written is discarded below)
    except (*DATABASE_UNAVAILABLE, StorageError):
        # The part may be stored: only the purge can know.
        raise
    except BaseException:
        await asyncio.shield(_discard(pool, storage, part))
        raise
    return PartRow(part, size)


async def _discard(pool: Pool | Connection, storage: FileStorage, part: UUID) -> None:
    try:
        await storage.discard(part_key(part))
        await fetch(pool, FORGET_PART, {"part": part})
    except (StorageError, psycopg.Error):
        return


async def read_content(
    storage: FileStorage, parts: list[PartRow], start: int = 0, length: int | None = None
) -> AsyncGenerator[bytes, None]:
    """The bytes of a file from `start` on, at most `length`, in chunks. `parts`: FILE_PARTS. Raises
    StorageError."""
    left = sum(part.bytes for part in parts) - start
    left = left if length is None else min(left, length)
    for part in parts:
        if left <= 0:
            return
        if start >= part.bytes:
            start -= part.bytes
            continue
        count = min(part.bytes - start, left)
        async with aclosing(storage.read(part_key(part.id), start, count)) as chunks:
            async for chunk in chunks:
                yield chunk
        left -= count
        start = 0
