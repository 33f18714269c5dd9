"""Files that clients have stored here, for the requests of one response (docs/files.md)."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from uuid import UUID

import structlog

from models.db.arrays import Uuids
from models.db.database import Pool, fetch_when_available
from models.db.queries.file_contents import STORED_CONTENTS, PartRow, StoredContent
from models.errors import UpstreamFailed
from models.files.content import read_content
from models.files.kinds import Examination, sent_type
from models.files.storage import FileStorage, StorageError
from models.ids import file_id
from worker.outbound.download import Download

logger = structlog.get_logger()

STORAGE_UNAVAILABLE = "storage_unavailable"
"""The reason of the failure while the storage does not answer."""


def storage_failure() -> UpstreamFailed:
    """The failure while the storage does not answer."""
    return UpstreamFailed(
        "The server cannot read its stored files right now.",
        reason=STORAGE_UNAVAILABLE,
        status=503,
        retry_after=1,
        is_temporary=True,
    )


class StoredFiles:
    """The files that a response may use: those that its project had when it was created."""

    def __init__(
        self, pool: Pool, storage: FileStorage | None, project: UUID, created_at: int
    ) -> None:
        """`created_at`: of the response, in seconds since the epoch. `storage` None: this server
        stores no files."""
        self._pool = pool
        self._storage = storage
        self.project = project
        self._values = {"project": project, "response_created_at": created_at}

    async def find(self, ids: Iterable[UUID]) -> "dict[UUID, StoredFile]":
        """Those of the files that there are, read with one statement."""
        wanted = list(ids)
        if self._storage is None or not wanted:
            return {}
        values = {**self._values, "ids": Uuids(wanted)}
        rows = await fetch_when_available(self._pool, STORED_CONTENTS, values)
        return {row.id: StoredFile(row, self._storage) for row in rows}


class StoredFile:
    """The content of a file in the storage."""

    def __init__(self, row: StoredContent, storage: FileStorage) -> None:
        self._row = row
        self._storage = storage
        self.size = row.bytes
        self.filename = row.filename

    async def read(self, max_bytes: int, deadline: float) -> Download:
        """The content, if it is still what was found when it was uploaded. Raises UpstreamFailed;
        one that `is_temporary` if the storage does not answer."""
        row = self._row
        assert row.bytes <= max_bytes
        try:
            async with asyncio.timeout_at(deadline):
                chunks = await self._chunks()
        except (StorageError, TimeoutError) as error:
            logger.error("file_storage_failed", file=file_id(row.id), error=str(error))  # noqa: TRY400
            raise self.failure("they do not answer") from error
        content = await asyncio.to_thread(_intact_content, chunks, row)
        if content is None:
            logger.error("file_damaged", file=file_id(row.id))
            raise UpstreamFailed(
                f"The stored file '{file_id(row.id)}' is damaged: it is not what was uploaded.",
                reason="file_unavailable",
                status=500,
            )
        return Download(content, sent_type(row.filename, row.media_type), row.filename)

    def failure(self, reason: str) -> UpstreamFailed:  # noqa: ARG002  (the operator's log has it)
        """The failure while the file cannot be read: it may be read later."""
        return storage_failure()

    async def _chunks(self) -> list[bytes]:
        row = self._row
        parts = [PartRow(*part) for part in zip(row.parts, row.sizes, strict=True)]
        async with aclosing(read_content(self._storage, parts)) as chunks:
            return [chunk async for chunk in chunks]


def _intact_content(chunks: list[bytes], row: StoredContent) -> bytes | None:
    """The content; None if its bytes are not of the kind that they were when it was uploaded."""
    examination = Examination()
    for chunk in chunks:
        examination.feed(chunk)
    if examination.size != row.bytes or examination.kind() != row.media_type:
        return None
    return b"".join(chunks)
