"""Uploads: files that clients send in parts, and put together without another copy. An upload is a
file that is not complete; both have the same number in their ids."""

import asyncio
import hashlib
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from starlette.requests import Request

from features.files import queries as files
from features.files.form import FORM_BYTES, MultipartForm
from features.files.objects import (
    check_kind,
    clean_name,
    file_object,
    parse_expires_after,
    parse_purpose,
)
from features.files.queries import UploadRow
from features.files.store import FileStore, examined, storage_unavailable
from models.config.feature_groups import FileSettings
from models.db.arrays import Uuids
from models.db.database import Pool, execute, fetch, fetch_idempotent, require_by_id
from models.db.queries.api_keys import ApiKey
from models.db.queries.audit import RECORD, Actor, AuditEntry
from models.db.queries.file_contents import FileRow, PartRow
from models.errors import InvalidRequest, NotFound, RequestTooLarge
from models.files.content import read_content
from models.files.kinds import Examination
from models.files.storage import FileStorage, StorageError
from models.ids import UPLOAD, UPLOAD_PART, file_id, new_uuid, parse_file_id, unix_seconds
from models.load.fair_queue import FairQueue
from models.wire.checks.faults import missing, shorten
from web.http.body import json_object
from web.idempotency.creates import Once, note_made

T = TypeVar("T")

MAX_PARTS = 1000
_EXAMINATIONS = 2
"""Uploads that are read at a time to complete them, of two projects."""
_MOST_OF_ANNOUNCED = 2
"""The parts of an upload may be so many times as large as the file, so that a client can send some
again. More would be stored beside the project's quota, which counts the file."""


class Uploads:
    """The uploads of all projects."""

    def __init__(self, settings: FileSettings, pool: Pool, store: FileStore) -> None:
        self._settings = settings
        self._pool = pool
        self._store = store
        self._examinations = FairQueue(_EXAMINATIONS)

    async def create(self, key: ApiKey, body: Any) -> dict[str, Any]:
        """Begins an upload; returns the Upload object. Raises ApiError."""
        self._store.require_storage(key)
        fields = json_object(body)
        purpose = parse_purpose(fields.get("purpose"))
        filename = _required(fields, "filename", str)
        _required(fields, "mime_type", str)
        size = _required(fields, "bytes", int)
        limit = self._store.limit(purpose)
        if size < 1:
            raise InvalidRequest(
                "Invalid 'bytes': expected a value >= 1.",
                param="bytes",
                code="integer_below_min_value",
            )
        if size > limit:
            raise RequestTooLarge(f"{limit} bytes")
        expiry = fields.get("expires_after")
        wanted = None if expiry is None else parse_expires_after(json_object(expiry))
        new_id = new_uuid()
        public_id = file_id(new_id, UPLOAD)
        await self._store.insert(
            key,
            new_id,
            filename=clean_name(filename),
            purpose=purpose,
            reserved=size,
            lifetime=self._store.lifetime(key, purpose, wanted),
            noted=public_id,
        )
        return await self.show(key, public_id)

    async def show(self, key: ApiKey, public_id: str) -> dict[str, Any]:
        """The Upload object. Raises NotFound."""
        upload = await self._find(key, public_id)
        file = None
        if upload.status == "completed":
            file = await self._store.find(key.project_id, file_id(upload.id))
        return upload_object(upload, file)

    async def show_unused(self, key: ApiKey, public_id: str) -> dict[str, Any]:
        """The Upload object. Raises NotFound if it has parts: a retry gets no upload that somebody
        uses."""
        upload = await self._find(key, public_id)
        [so_far] = await fetch_idempotent(self._pool, files.UPLOADED_SO_FAR, {"id": upload.id})
        if upload.status != "pending" or so_far.parts:
            raise NotFound("The upload was used.")
        return upload_object(upload, None)

    async def add_part(
        self, key: ApiKey, public_id: str, request: Request, once: Once
    ) -> dict[str, Any]:
        """Stores a part while it arrives; returns the UploadPart object, or that of an earlier try.
        Raises ApiError."""
        storage = self._store.require_storage(key)
        upload = await self._find_pending(key, public_id)
        most = await self._require_room(upload)
        form = MultipartForm(request, most + FORM_BYTES)
        part_id: UUID | None = None
        digest = hashlib.sha256()
        async for part in form.parts():
            if part.name != "data" or part.filename is None or part_id is not None:
                raise InvalidRequest(
                    "The form of a part has one file, 'data', and nothing else.",
                    param="data",
                    code="invalid_value",
                )
            chunks = examined(part, Examination(), digest, most)
            late = "The part did not arrive in time."
            part_id = (await self._store.write(storage, upload.id, chunks, None, late)).id
        if part_id is None:
            raise missing("data")
        note = partial(self._note_part, part_id, public_id)
        shown = await once({"sha256": digest.hexdigest()}, note)
        if shown["id"] != file_id(part_id, UPLOAD_PART):
            await fetch(self._pool, files.ABANDON_PART, {"part": part_id})
        return shown

    async def _note_part(self, part_id: UUID, upload: str) -> dict[str, Any]:
        """A part that was stored without this is in no file: the purge deletes it."""
        made = file_id(part_id, UPLOAD_PART)
        async with self._pool.connection() as connection, connection.transaction():
            await note_made(connection, made)
        return part_object(made, upload)

    async def show_part(self, upload: str, public_id: str) -> dict[str, Any]:
        """The UploadPart object. Raises NotFound."""
        values = {"part": parse_file_id(public_id, UPLOAD_PART)}
        if not await fetch_idempotent(self._pool, files.FIND_PART, values):
            raise NotFound(f"No such UploadPart object: {shorten(public_id)}", param="id")
        return part_object(public_id, upload)

    async def _require_room(self, upload: UploadRow) -> int:
        """How many bytes the next part may have. Raises InvalidRequest if there is no room for
        one."""
        [so_far] = await fetch_idempotent(self._pool, files.UPLOADED_SO_FAR, {"id": upload.id})
        room = _MOST_OF_ANNOUNCED * upload.bytes - so_far.bytes
        if room <= 0 or so_far.parts >= MAX_PARTS:
            raise InvalidRequest(
                f"The upload has received {so_far.bytes} bytes in {so_far.parts} parts, and was "
                f"created for {upload.bytes} bytes and at most {MAX_PARTS} parts. Cancel it, and "
                "create a new one.",
                param="data",
                code="too_many_parts",
            )
        return min(self._settings.part_bytes, room)

    async def complete(self, key: ApiKey, public_id: str, body: Any) -> dict[str, Any]:
        """Makes a file of the parts, in the order of `part_ids`; returns the Upload object with it.
        Raises ApiError, and the upload stays as it is."""
        storage = self._store.require_storage(key)
        fields = json_object(body)
        ids, md5 = _part_ids(fields), fields.get("md5")
        upload = await self._find_pending(key, public_id)
        values: dict[str, object] = {"id": upload.id, "ids": Uuids(ids)}
        parts = await fetch_idempotent(self._pool, files.UPLOADED_PARTS, values)
        if len(parts) < len(ids):
            raise _invalid_parts("it names a part that this upload does not have")
        size = sum(part.bytes for part in parts)
        if size != upload.bytes:
            raise InvalidRequest(
                f"The parts have {size} bytes together, but the upload was created for "
                f"{upload.bytes}.",
                param="part_ids",
                code="invalid_value",
            )
        async with self._examinations.permit(key.project_id):
            examination, found = await _examine(storage, parts)
        if md5 is not None and md5 != found:
            raise InvalidRequest(
                "The MD5 of the parts is not the one in 'md5'.", param="md5", code="invalid_value"
            )
        row = await self._complete(upload, values, len(ids), examination)
        return upload_object(await self._find(key, public_id), row)

    async def _complete(
        self, upload: UploadRow, values: dict[str, object], count: int, examination: Examination
    ) -> FileRow:
        completion: dict[str, object] = {
            "id": upload.id,
            "bytes": upload.bytes,
            "media_type": check_kind(upload.filename, upload.purpose, examination),
            "purpose": None,
            "lifetime": None,
        }
        async with self._pool.connection() as connection, connection.transaction():
            ordered = await fetch(connection, files.ORDER_PARTS, values)
            rows = await fetch(connection, files.COMPLETE_FILE, completion)
            if not rows or len(ordered) < count:
                raise InvalidRequest(
                    "The upload was completed, cancelled or has expired meanwhile.",
                    code="upload_not_pending",
                )
            await note_made(connection, file_id(upload.id, UPLOAD))
        return rows[0]

    async def cancel(self, key: ApiKey, public_id: str, actor: Actor) -> dict[str, Any]:
        """Ends an upload without a file; returns the Upload object. Raises ApiError."""
        upload = await self._find_pending(key, public_id)
        entry = AuditEntry(actor, "upload.cancel", public_id)
        async with self._pool.connection() as connection, connection.transaction():
            if await fetch(connection, files.ABANDON_FILE, {"id": upload.id}):
                await execute(connection, RECORD, entry.values())
        return upload_object(await self._find(key, public_id), None)

    async def _find(self, key: ApiKey, public_id: str) -> UploadRow:
        values = {"project": key.project_id, "upload_time": self._settings.upload_time}
        absent = NotFound(f"No such Upload object: {shorten(public_id)}", param="id")
        found = parse_file_id(public_id, UPLOAD)
        return await require_by_id(self._pool, files.FIND_UPLOAD, found, absent, **values)

    async def _find_pending(self, key: ApiKey, public_id: str) -> UploadRow:
        row = await self._find(key, public_id)
        if row.status != "pending":
            raise InvalidRequest(f"The upload is {row.status}.", code="upload_not_pending")
        return row


async def _examine(storage: FileStorage, parts: list[PartRow]) -> tuple[Examination, str]:
    """What the bytes are, and their MD5 in hexadecimal digits."""
    examination, md5 = Examination(), hashlib.md5(usedforsecurity=False)
    try:
        async with aclosing(read_content(storage, parts)) as chunks:
            async for chunk in chunks:
                # In a thread: the event loop serves others while hundreds of megabytes are read.
                await asyncio.to_thread(_examine_chunk, chunk, examination, md5)
    except StorageError as error:
        raise storage_unavailable(error) from error
    return examination, md5.hexdigest()


def _examine_chunk(chunk: bytes, examination: Examination, md5: "hashlib._Hash") -> None:
    examination.feed(chunk)
    md5.update(chunk)


def _required(fields: dict[str, Any], name: str, kind: type[T]) -> T:
    value = fields.get(name)
    if value is None:
        raise missing(name)
    if type(value) is not kind:
        raise InvalidRequest(f"Invalid type for '{name}'.", param=name, code="invalid_type")
    return value


def _part_ids(fields: dict[str, Any]) -> list[UUID]:
    given: list[Any] = _required(fields, "part_ids", list)
    ids = [parse_file_id(each, UPLOAD_PART) if type(each) is str else None for each in given]
    known = [each for each in ids if each is not None]
    if not known or len(set(known)) < len(ids):
        raise _invalid_parts("it is empty, or names a part twice, or has something that is no part")
    if len(known) > MAX_PARTS:
        raise _invalid_parts(f"it has more than {MAX_PARTS} parts")
    return known


def _invalid_parts(why: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid 'part_ids': {why}.", param="part_ids", code="invalid_value")


def part_object(public_id: str, upload: str) -> dict[str, Any]:
    """The UploadPart object. Both ids are public ones."""
    made = parse_file_id(public_id, UPLOAD_PART)
    return {
        "id": public_id,
        "object": "upload.part",
        "created_at": None if made is None else int(unix_seconds(made)),
        "upload_id": upload,
    }


def upload_object(row: UploadRow, file: FileRow | None) -> dict[str, Any]:
    """The Upload object. `file`: once it is completed."""
    return {
        "id": file_id(row.id, UPLOAD),
        "object": "upload",
        "bytes": row.bytes,
        "created_at": row.created_at,
        "expires_at": row.ends_at,
        "filename": row.filename,
        "purpose": row.purpose,
        "status": row.status,
        "file": None if file is None else file_object(file),
    }
