"""The vector stores: their files by status, and why files have failed."""

from functools import partial
from uuid import UUID

from starlette.responses import Response

from features.console.access import EVERYONE
from features.console.page import (
    Page,
    Visit,
    choice,
    not_found,
    project_of,
    read_list,
)
from features.retrieval import queries as statements
from models.db.database import fetch_idempotent
from models.ids import VECTOR_STORE, file_id, parse_admin_id, vector_store_id

COUNTED = 1_000
"""The newest files of a store that are counted in the list."""
_COUNTED_OF_ONE = 10_000
_STATUSES = ("in_progress", "completed", "failed", "cancelled")
_parse_store = partial(parse_admin_id, VECTOR_STORE)


async def show_list(visit: Visit) -> Response:
    """The stores, the newest first."""
    query, values = statements.LIST_ALL_STORES, dict[str, object](look_at=COUNTED)
    if (name := visit.text("project")) is not None:
        query, values["project"] = statements.LIST_STORES_OF_PROJECT, await project_of(visit, name)
    return visit.page(
        "vector_stores.html",
        stores=await read_list(
            visit, query, values, lambda row: vector_store_id(row.id), _parse_store
        ),
        project=name,
        counted=COUNTED,
    )


async def show(visit: Visit) -> Response:
    """One store and its files."""
    identifier = _parse_store(visit.request.path_params["id"])
    values = {"id": identifier, "look_at": _COUNTED_OF_ONE, "max_rows": 1}
    stores = await fetch_idempotent(visit.pool, statements.SHOW_STORE, values)
    if not stores or not visit.owns(stores[0].project):
        raise not_found("vector store")
    status = choice(visit.query, "status", _STATUSES) if visit.query.get("status") else None
    of_store = {"store": identifier, "status": status}
    return visit.page(
        "vector_store.html",
        store=stores[0],
        public_id=vector_store_id(stores[0].id),
        files=await read_list(
            visit, statements.ENTRIES_PAGE, of_store, lambda row: row.id.hex, _parse_entry
        ),
        file_id=file_id,
        chosen=status,
        statuses=[(each, each.replace("_", " ")) for each in _STATUSES],
        counted=_COUNTED_OF_ONE,
    )


def _parse_entry(text: str) -> UUID | None:
    """An entry has no public id; a position has its 32 hexadecimal digits."""
    try:
        return UUID(hex=text)
    except ValueError:
        return None


PAGES = (
    Page("/vector-stores", show_list, menu="Vector stores", is_by_project=True, roles=EVERYONE),
    Page("/vector-stores/{id}", show, roles=EVERYONE),
)
