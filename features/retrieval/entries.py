"""The files in vector stores, and the batches with which they come. Always within one project
(I11)."""

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import orjson

from features.files.store import file_not_found
from features.quotas.refusal import too_much_stored
from features.retrieval import queries as vector_stores
from features.retrieval.objects import TwoWayPaging, entry_object, file_batch_object
from features.retrieval.queries import EntryRow, FileBatchRow, LockedStore
from features.retrieval.requests import (
    NewFile,
    parse_attribute_change,
    parse_new_file,
    parse_new_files,
)
from features.retrieval.store_access import parse_store_id, store_expired, store_not_found
from models.config.feature_groups import RetrievalSettings
from models.config.groups import QuotaSettings
from models.db.arrays import Ints, Texts, Uuids
from models.db.database import (
    Connection,
    Jsonb,
    Pool,
    execute,
    fetch,
    fetch_idempotent,
    require_by_id,
)
from models.db.queries.api_keys import ApiKey
from models.db.queries.audit import Actor, AuditEntry
from models.errors import InvalidRequest, NotFound
from models.ids import (
    FILE_BATCH,
    VECTOR_STORE,
    admin_id,
    file_id,
    new_uuid,
    parse_admin_id,
    parse_file_id,
)
from models.wire.checks.faults import shorten
from web.idempotency.creates import note_made

STATUSES = ("in_progress", "completed", "failed", "cancelled")
_CHUNKS = 200
"""Chunks of a file that are read at a time."""


class EntryStore:
    """The files in the vector stores of all projects."""

    def __init__(self, settings: RetrievalSettings, quotas: QuotaSettings, pool: Pool) -> None:
        self._settings = settings
        self._quotas = quotas
        self._pool = pool

    # --- adding files ---

    async def add(self, key: ApiKey, store: str, body: Any) -> dict[str, Any]:
        """Adds a file to a store; returns the VectorStoreFile object. Raises ApiError."""
        new = parse_new_file(body)
        store_id = parse_store_id(store)
        async with self._pool.connection() as connection, connection.transaction():
            await self.insert(connection, key, store_id, [new])
            await note_made(connection, new.file_id)
        return await self.show(key.project_id, store, new.file_id)

    async def add_batch(self, key: ApiKey, store: str, body: Any) -> dict[str, Any]:
        """Adds files to a store; returns the VectorStoreFileBatch object. Raises ApiError."""
        new = parse_new_files(body)
        store_id = parse_store_id(store)
        batch = new_uuid()
        async with self._pool.connection() as connection, connection.transaction():
            await self.insert(connection, key, store_id, new, batch)
            await note_made(connection, admin_id(FILE_BATCH, batch))
        return await self.show_batch(key.project_id, store, admin_id(FILE_BATCH, batch))

    async def insert(
        self,
        connection: Connection,
        key: ApiKey,
        store: UUID,
        new: Sequence[NewFile],
        batch: UUID | None = None,
    ) -> None:
        """In a transaction. Raises ApiError."""
        project = key.project_id
        locked = await fetch(
            connection, vector_stores.LOCK_STORE, {"store": store, "project": project}
        )
        if not locked:
            raise store_not_found(admin_id(VECTOR_STORE, store))
        self._require_room(locked[0], store, len(new))
        await self._require_quota(connection, key)
        files = await _known_files(connection, project, new)
        if batch is not None:
            values: dict[str, object] = {"batch": batch, "store": store}
            await execute(connection, vector_stores.INSERT_FILE_BATCH, values)
        values = {"store": store, "files": Uuids(files)}
        await fetch(connection, vector_stores.HIDE_ENDED_ENTRIES, values)
        values |= {
            "project": project,
            "batch": batch,
            "ids": Uuids([new_uuid() for _ in new]),
            "attributes": Texts([orjson.dumps(each.attributes).decode() for each in new]),
            "max_tokens": Ints([each.chunking.max_tokens for each in new]),
            "overlaps": Ints([each.chunking.overlap_tokens for each in new]),
        }
        await fetch(connection, vector_stores.INSERT_ENTRIES, values)

    def _require_room(self, locked: LockedStore, store: UUID, count: int) -> None:
        public_id = admin_id(VECTOR_STORE, store)
        if locked.is_expired:
            raise store_expired(public_id)
        if locked.files + count > self._settings.files:
            raise InvalidRequest(
                f"Vector store '{public_id}' would have more than {self._settings.files} files.",
                param="file_id",
                code="too_many_files",
            )

    async def _require_quota(self, connection: Connection, key: ApiKey) -> None:
        """Raises QuotaExceeded if the project's stores have as many bytes as they may."""
        own, common = key.policy.quotas, self._quotas
        most = common.vector_bytes if own.vector_bytes is None else own.vector_bytes
        if not most:
            return
        values = {"project": key.project_id}
        [stored] = await fetch(connection, vector_stores.STORED_VECTORS, values)
        if stored.bytes >= most:
            raise too_much_stored(f"{most} bytes in vector stores")

    # --- files in a store ---

    async def show(self, project: UUID, store: str, file: str) -> dict[str, Any]:
        """The VectorStoreFile object. Raises NotFound."""
        return entry_object(await self._find(project, store, file))

    async def page(
        self,
        project: UUID,
        store: str,
        paging: TwoWayPaging,
        status: str | None,
        batch: str | None = None,
    ) -> dict[str, Any]:
        """A page of the files of a store, or of a batch. Raises NotFound, also if `after` or
        `before` is no file of the store."""
        store_id = await self._require_store(project, store)
        batch_id = None if batch is None else (await self._find_batch(project, store, batch)).id
        find = partial(self._find, project, store)
        values = {"store": store_id, "status": status, "batch": batch_id}
        return await paging.read(self._pool, vector_stores.LIST_ENTRIES, values, find, entry_object)

    async def update(self, project: UUID, store: str, file: str, body: Any) -> dict[str, Any]:
        """Replaces the attributes of a file; returns the VectorStoreFile object. Raises
        ApiError."""
        attributes = parse_attribute_change(body)
        row = await self._find(project, store, file)
        values = {"file": row.file_id, "store": row.store_id, "attributes": Jsonb(attributes)}
        rows = await fetch_idempotent(self._pool, vector_stores.UPDATE_ATTRIBUTES, values)
        if not rows:
            raise _not_in_store(store, file)
        return entry_object(rows[0])

    async def remove(self, project: UUID, store: str, file: str, actor: Actor) -> None:
        """Removes a file from a store; the file itself stays. Raises NotFound."""
        row = await self._find(project, store, file)
        values = {"file": row.file_id, "store": row.store_id}
        details = {"file": file_id(row.file_id)}
        entry = AuditEntry(actor, "vector_store.file.delete", store, details=details)
        await fetch_idempotent(self._pool, vector_stores.REMOVE_ENTRY, values | entry.values())

    async def content(self, project: UUID, store: str, file: str) -> AsyncGenerator[bytes, None]:
        """The chunks of a file as the JSON of a page, in pieces. Raises NotFound."""
        return self._content(await self._find(project, store, file))

    async def _content(self, row: EntryRow) -> AsyncGenerator[bytes, None]:
        yield b'{"object":"vector_store.file_content.page","data":['
        first, is_complete = 0, False
        while not is_complete:
            values = {"store": row.store_id, "entry": row.id, "first": first, "limit": _CHUNKS}
            texts = await fetch_idempotent(self._pool, vector_stores.CHUNK_TEXTS, values)
            parts = [orjson.dumps({"type": "text", "text": text}) for text in texts]
            if parts:
                yield b"," * bool(first) + b",".join(parts)
            first += len(texts)
            is_complete = len(texts) < _CHUNKS
        yield b'],"has_more":false,"next_page":null}'

    # --- batches ---

    async def show_batch(self, project: UUID, store: str, batch: str) -> dict[str, Any]:
        """The VectorStoreFileBatch object. Raises NotFound."""
        return file_batch_object(await self._find_batch(project, store, batch))

    async def cancel_batch(
        self, project: UUID, store: str, batch: str, actor: Actor
    ) -> dict[str, Any]:
        """Cancels what is not ingested yet; returns the VectorStoreFileBatch object. A batch that
        has ended stays as it is. Raises NotFound."""
        row = await self._find_batch(project, store, batch)
        values = {"id": row.id, "store": row.store_id}
        entry = AuditEntry(actor, "vector_store.batch.cancel", store, details={"batch": batch})
        await fetch_idempotent(self._pool, vector_stores.CANCEL_FILE_BATCH, values | entry.values())
        return await self.show_batch(project, store, batch)

    # --- finding ---

    async def _require_store(self, project: UUID, store: str) -> UUID:
        query, absent = vector_stores.FIND_STORE, store_not_found(store)
        store_id = parse_store_id(store)
        return (await require_by_id(self._pool, query, store_id, absent, project=project)).id

    async def _find(self, project: UUID, store: str, file: str) -> EntryRow:
        store_id = await self._require_store(project, store)
        query, absent = vector_stores.FIND_ENTRY, _not_in_store(store, file)
        return await require_by_id(self._pool, query, parse_file_id(file), absent, store=store_id)

    async def _find_batch(self, project: UUID, store: str, batch: str) -> FileBatchRow:
        store_id = await self._require_store(project, store)
        absent = NotFound(
            f"No file batch found with id '{shorten(batch)}' in vector store '{shorten(store)}'.",
            param="batch_id",
        )
        query, found = vector_stores.FIND_FILE_BATCH, parse_admin_id(FILE_BATCH, batch)
        return await require_by_id(self._pool, query, found, absent, store=store_id)


async def _known_files(connection: Connection, project: UUID, new: Sequence[NewFile]) -> list[UUID]:
    """The ids of the files. Raises NotFound for one that the project does not have."""
    parsed = [parse_file_id(each.file_id) for each in new]
    values = {"ids": Uuids([each for each in parsed if each is not None]), "project": project}
    known = set(await fetch(connection, vector_stores.VISIBLE_FILES, values))
    found: list[UUID] = []
    for each, one in zip(new, parsed, strict=True):
        if one is None or one not in known:
            raise file_not_found(each.file_id, "file_id")
        found.append(one)
    return found


def _not_in_store(store: str, file: str) -> NotFound:
    return NotFound(
        f"No file found with id '{shorten(file)}' in vector store '{shorten(store)}'.",
        param="file_id",
    )
