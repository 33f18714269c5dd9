"""Files of projects: storing, showing, listing, reading and deleting them. Always within one
project (I11)."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from starlette.requests import Request

from features.files import queries as files
from features.files import service
from features.files.form import FORM_BYTES, FormPart, MultipartForm
from features.files.objects import (
    FilePurpose,
    check_kind,
    clean_name,
    file_object,
    parse_expires_after,
    parse_purpose,
    shorter_lifetime,
)
from features.quotas.refusal import too_much_stored
from models.config.settings import Settings
from models.db.database import (
    DATABASE_UNAVAILABLE,
    Pool,
    fetch,
    fetch_idempotent,
    require_by_id,
)
from models.db.queries.api_keys import ApiKey
from models.db.queries.audit import Actor
from models.db.queries.file_contents import FileRow, PartRow
from models.errors import (
    InvalidRequest,
    NotFound,
    RequestTimeout,
    RequestTooLarge,
    Unavailable,
)
from models.files.content import FileGone, read_content, write_part
from models.files.kinds import Examination
from models.files.storage import CHUNK, FileStorage, StorageError
from models.ids import file_id, new_uuid, parse_file_id
from models.wire.checks.faults import missing, shorten
from web.http.params import Paging
from web.idempotency.creates import Once, note_made

logger = structlog.get_logger()

_FIELDS = frozenset(("purpose", "expires_after[anchor]", "expires_after[seconds]"))
"""The fields of the form, besides the file."""


@dataclass(slots=True)
class _Draft:
    """A file that is being uploaded."""

    fields: dict[str, str] = field(default_factory=dict)
    id: UUID | None = None
    """None: the file has not begun."""
    filename: str = ""
    reserved: int = 0
    """bytes that count against the quota"""
    examination: Examination = field(default_factory=Examination)
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def hashable(self) -> dict[str, Any]:
        """By which equal files are recognised."""
        return {"fields": self.fields, "name": self.filename, "sha256": self.digest.hexdigest()}


class FileStore:
    """The files of all projects."""

    def __init__(self, settings: Settings, pool: Pool, storage: FileStorage | None) -> None:
        """`storage` None: this server stores no files."""
        self._limits = settings.files
        self._quotas = settings.quotas
        self._pool = pool
        self._storage = storage

    def require_storage(self, key: ApiKey) -> FileStorage:
        """Where files are stored. Raises InvalidRequest if there is none, or if the project keeps
        nothing."""
        if self._storage is None:
            raise InvalidRequest(
                "This server stores no files: its operator has set neither "
                "BACKBURNER_FILES__FOLDER nor BACKBURNER_S3__BUCKET.",
                code="files_not_stored",
            )
        if key.policy.zero_retention:
            raise InvalidRequest(
                "This project has zero retention: it has no files. Send the file as 'file_data'.",
                code="unsupported_parameter",
            )
        return self._storage

    # --- create ---

    async def create(self, key: ApiKey, request: Request, once: Once) -> dict[str, Any]:
        """Stores the file of a multipart form while it arrives; returns the File object, or that of
        an earlier try. Raises ApiError, with nothing stored."""
        storage = self.require_storage(key)
        form = MultipartForm(request, self._limits.bytes + FORM_BYTES)
        draft = _Draft()
        try:
            async for part in form.parts():
                await self._read_part(key, storage, draft, part, form.announced)
            shown = await once(draft.hashable(), partial(self._complete, key, draft))
        except BaseException:
            if draft.id is not None:
                await asyncio.shield(self.abandon(draft.id))
            raise
        if draft.id is not None and shown["id"] != file_id(draft.id):
            await self.abandon(draft.id)
        return shown

    async def _read_part(
        self, key: ApiKey, storage: FileStorage, draft: _Draft, part: FormPart, announced: int
    ) -> None:
        if part.name == "file" and part.filename is not None and draft.id is None:
            await self._store(key, storage, draft, part, announced)
        elif part.name in _FIELDS and part.filename is None and part.name not in draft.fields:
            draft.fields[part.name] = part.text()
        elif part.name == "file" and part.filename is None:
            raise InvalidRequest(
                "Invalid type for 'file': expected a file, but got a text instead.",
                param="file",
                code="invalid_type",
            )
        else:
            raise InvalidRequest(
                f"Unknown or repeated parameter: '{shorten(part.name)}'.",
                param=part.name,
                code="unknown_parameter",
            )

    async def _store(
        self, key: ApiKey, storage: FileStorage, draft: _Draft, part: FormPart, announced: int
    ) -> None:
        given = draft.fields.get("purpose")
        purpose = FilePurpose.USER_DATA if given is None else parse_purpose(given)
        draft.filename = clean_name(part.filename or "")
        draft.reserved = announced
        new_id = new_uuid()
        await self.insert(key, new_id, filename=draft.filename, purpose=purpose, reserved=announced)
        draft.id = new_id
        chunks = examined(part, draft.examination, draft.digest, self.limit(purpose))
        await self.write(storage, draft.id, chunks, 0, "The file did not arrive in time.")

    async def write(
        self,
        storage: FileStorage,
        file: UUID,
        chunks: AsyncIterator[bytes],
        number: int | None,
        late: str,
    ) -> PartRow:
        """Stores a part of a file while it arrives. `number`: its place in the content, if it has
        one. Raises Unavailable, and RequestTimeout with the message `late`."""
        upload_time = self._limits.upload_time
        try:
            return await write_part(
                self._pool, storage, file, chunks, number=number, upload_time=upload_time
            )
        except (TimeoutError, FileGone):
            raise RequestTimeout(late) from None
        except StorageError as error:
            raise storage_unavailable(error) from error

    async def insert(
        self,
        key: ApiKey,
        new_id: UUID,
        *,
        filename: str,
        purpose: str,
        reserved: int,
        lifetime: timedelta | None = None,
        noted: str | None = None,
    ) -> None:
        """Begins a file. `reserved`: the bytes that count against the quota until it is complete.
        `noted`: the id of the upload, if that is what the client makes. Raises QuotaExceeded."""
        values: dict[str, object] = {
            "id": new_id,
            "project": key.project_id,
            "filename": filename,
            "purpose": purpose,
            "bytes": reserved,
            "media_type": None,
            "lifetime": lifetime,
            "upload_time": self._limits.upload_time,
        }
        async with self._pool.connection() as connection, connection.transaction():
            await self.require_quota(connection, key, new_id, reserved)
            await fetch(connection, files.INSERT_FILE, values)
            if noted is not None:
                await note_made(connection, noted)

    async def _complete(self, key: ApiKey, draft: _Draft) -> dict[str, Any]:
        if draft.id is None:
            raise missing("file")
        purpose = parse_purpose(draft.fields.get("purpose"))
        expiry = {name: draft.fields.get(f"expires_after[{name}]") for name in _EXPIRY}
        wanted = parse_expires_after(expiry) if any(expiry.values()) else None
        lifetime = self.lifetime(key, purpose, wanted)
        size = draft.examination.size
        if size > self.limit(purpose):
            raise RequestTooLarge(f"{self.limit(purpose)} bytes")
        values = {
            "id": draft.id,
            "bytes": size,
            "media_type": check_kind(draft.filename, purpose, draft.examination),
            "purpose": purpose,
            "lifetime": lifetime,
        }
        async with self._pool.connection() as connection, connection.transaction():
            if size > draft.reserved:
                await self.require_quota(connection, key, draft.id, size)
            rows = await fetch(connection, files.COMPLETE_FILE, values)
            if not rows:
                raise RequestTimeout("The file did not arrive in time.")
            await note_made(connection, file_id(draft.id))
        return file_object(rows[0])

    def limit(self, purpose: str) -> int:
        """Most bytes of a file of this purpose."""
        limits = self._limits
        return (
            min(limits.bytes, limits.batch_bytes) if purpose == FilePurpose.BATCH else limits.bytes
        )

    def lifetime(self, key: ApiKey, purpose: str, wanted: timedelta | None) -> timedelta | None:
        """How long a file is kept after its creation: as long as the client wants, but not longer
        than its project keeps anything. None: until it is deleted."""
        if wanted is None and purpose in (FilePurpose.BATCH, FilePurpose.BATCH_OUTPUT):
            wanted = self._limits.batch_retention
        return shorter_lifetime(wanted, key.policy.retention)

    async def require_quota(self, connection: Any, key: ApiKey, new_id: UUID, size: int) -> None:
        """In the transaction that stores the file. Raises QuotaExceeded."""
        exceeded = await service.exceeded_quota(
            connection, key.policy.quotas, self._quotas, key.project_id, new_id, size
        )
        if exceeded is not None:
            raise too_much_stored(exceeded)

    async def abandon(self, new_id: UUID) -> None:
        """The purge deletes what is left of it."""
        with suppress(*DATABASE_UNAVAILABLE):
            await fetch(self._pool, files.ABANDON_FILE, {"id": new_id})

    # --- stored files ---

    async def show(self, project: UUID, public_id: str) -> dict[str, Any]:
        """The File object. Raises NotFound."""
        return file_object(await self.find(project, public_id))

    async def find(self, project: UUID, public_id: str) -> FileRow:
        """A complete file of the project. Raises NotFound."""
        found, absent = parse_file_id(public_id), file_not_found(public_id)
        return await require_by_id(self._pool, files.FIND_FILE, found, absent, project=project)

    async def page(self, project: UUID, purpose: str | None, query: Paging) -> dict[str, Any]:
        """A page of the project's files, as a list object."""
        after = None if query.after is None else parse_file_id(query.after)
        if after is None and query.after is not None:
            raise InvalidRequest(
                f"Invalid 'after': '{shorten(query.after)}' is no id of a file.",
                param="after",
                code="invalid_value",
            )
        values = {"project": project, "purpose": purpose, "after": after, "limit": query.row_limit}
        rows = await fetch_idempotent(self._pool, files.LIST_FILES[query.order], values)
        return query.page_of([file_object(row) for row in rows])

    async def delete(self, project: UUID, public_id: str, actor: Actor) -> None:
        """Deletes a file: nobody sees it from now on, and the purge deletes its bytes. Raises
        NotFound."""
        parsed = parse_file_id(public_id)
        if parsed is None or not await service.delete(self._pool, project, parsed, actor):
            raise file_not_found(public_id)

    async def parts(self, row: FileRow) -> list[PartRow]:
        """The content of a file, for `read`."""
        return await fetch_idempotent(self._pool, files.FILE_PARTS, {"id": row.id})

    def read(self, parts: list[PartRow], start: int, length: int) -> AsyncGenerator[bytes, None]:
        """`length` bytes of a content from `start` on. Raises StorageError."""
        if self._storage is None:
            raise StorageError("no storage is configured any more")
        return read_content(self._storage, parts, start, length)


_EXPIRY = ("anchor", "seconds")


async def examined(
    part: FormPart, examination: Examination, digest: "hashlib._Hash", limit: int
) -> AsyncIterator[bytes]:
    """The bytes of a file in chunks for the storage."""
    gathered = bytearray()
    async for chunk in part.chunks():
        examination.feed(chunk)
        digest.update(chunk)
        if examination.size > limit:
            raise RequestTooLarge(f"{limit} bytes")
        gathered += chunk
        if len(gathered) >= CHUNK:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


def file_not_found(public_id: str, param: str = "id") -> NotFound:
    """The error for a file that the project does not have. `param`: its place in the request."""
    return NotFound(f"No such File object: {shorten(public_id)}", param=param)


def storage_unavailable(error: StorageError) -> Unavailable:
    """The error of a client while the storage fails. The operator's is logged."""
    logger.error("file_storage_failed", error=str(error))
    return Unavailable("The server cannot store or read files right now. Please retry.")
