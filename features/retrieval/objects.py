"""Vector stores, their files and batches as clients see them, one by one and in pages."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from features.retrieval.queries import EntryRow, FileBatchRow, PagedEntry, PagedStore, StoreRow
from features.retrieval.search import SearchResult
from models.db.database import Pool, fetch_idempotent
from models.db.statement import Query
from models.ids import FILE_BATCH, admin_id, file_id, vector_store_id
from web.http.json_responses import list_envelope
from web.http.params import Paging, paging, storable_item_id


def store_object(row: StoreRow) -> dict[str, Any]:
    """The VectorStore object."""
    status = "in_progress" if row.in_progress else "completed"
    expiry = (
        None
        if row.expires_after_days is None
        else {"anchor": "last_active_at", "days": row.expires_after_days}
    )
    return {
        "id": vector_store_id(row.id),
        "object": "vector_store",
        "created_at": row.created_at,
        "name": row.name,
        "description": row.description,
        "usage_bytes": row.usage_bytes,
        "file_counts": _file_counts(row),
        "status": "expired" if row.is_expired else status,
        "expires_after": expiry,
        "expires_at": row.expires_at,
        "last_active_at": row.last_active_at,
        "metadata": row.metadata,
    }


def entry_object(row: EntryRow) -> dict[str, Any]:
    """The VectorStoreFile object."""
    error = (
        None if row.error_code is None else {"code": row.error_code, "message": row.error_message}
    )
    return {
        "id": file_id(row.file_id),
        "object": "vector_store.file",
        "created_at": row.created_at,
        "vector_store_id": vector_store_id(row.store_id),
        "status": row.status,
        "last_error": error,
        "usage_bytes": row.usage_bytes,
        "attributes": row.attributes,
        "chunking_strategy": {
            "type": "static",
            "static": {
                "max_chunk_size_tokens": row.max_chunk_tokens,
                "chunk_overlap_tokens": row.chunk_overlap_tokens,
            },
        },
    }


def file_batch_object(row: FileBatchRow) -> dict[str, Any]:
    """The VectorStoreFileBatch object."""
    status = "in_progress" if row.in_progress else "completed"
    if not row.in_progress and row.failed and row.failed == _total(row):
        status = "failed"
    return {
        "id": admin_id(FILE_BATCH, row.id),
        "object": "vector_store.files_batch",
        "created_at": row.created_at,
        "vector_store_id": vector_store_id(row.store_id),
        "status": "cancelled" if row.is_cancelled else status,
        "file_counts": _file_counts(row),
    }


def result_object(result: SearchResult) -> dict[str, Any]:
    """A result of a search."""
    return {
        "file_id": file_id(result.file_id),
        "filename": result.filename,
        "score": result.score,
        "attributes": result.attributes,
        "content": [{"type": "text", "text": result.text}],
    }


def _total(row: StoreRow | FileBatchRow) -> int:
    return row.in_progress + row.completed + row.failed + row.cancelled


def _file_counts(row: StoreRow | FileBatchRow) -> dict[str, int]:
    return {
        "in_progress": row.in_progress,
        "completed": row.completed,
        "failed": row.failed,
        "cancelled": row.cancelled,
        "total": _total(row),
    }


RowT = TypeVar("RowT", PagedStore, PagedEntry)


@dataclass(frozen=True, slots=True)
class TwoWayPaging(Paging):
    """The requested page of a list that can be read in both directions: behind `after`, or else the
    one that ends before `before`."""

    before: str | None

    @classmethod
    def of(cls, request: Request) -> "TwoWayPaging":
        """Raises InvalidRequest."""
        given = paging(request)
        before = storable_item_id(request.query_params.get("before"))
        return cls(given.limit, given.order, given.after, before)

    @property
    def _is_backward(self) -> bool:
        return self.before is not None and self.after is None

    @property
    def _scan_order(self) -> str:
        """In which order the rows are read: a page that ends before a row is read from there."""
        if not self._is_backward:
            return self.order
        return "asc" if self.order == "desc" else "desc"

    async def read(
        self,
        pool: Pool,
        lists: Mapping[str, Query[RowT]],
        values: Mapping[str, object],
        find: Callable[[str], Awaitable[StoreRow | EntryRow]],
        show: Callable[[RowT], dict[str, Any]],
    ) -> dict[str, Any]:
        """The list object. `lists`: order -> statement. `find`: the row of a public id, or
        NotFound. `show`: the object of a row."""
        after, before = [
            None if each is None else (await find(each)).id for each in (self.after, self.before)
        ]
        bounds = {"after": after, "until": before}
        if self._is_backward:
            bounds = {"after": before, "until": None}
        query = lists[self._scan_order]
        rows = await fetch_idempotent(pool, query, {**values, "limit": self.row_limit, **bounds})
        shown = [show(row) for row in rows[: self.limit]]
        if self._is_backward:
            shown.reverse()
        return list_envelope(shown, has_more=bool(rows) and rows[0].found > len(shown))
