"""The vector stores: their files by status, and why files have failed."""

from functools import partial

from starlette.responses import Response

from features.console.changes import not_found
from features.console.errors import PageError
from features.console.page import Page
from features.console.paging import PAGE_SIZE, before, split, text_parameter, uuid_of
from features.console.visit import Visit
from features.retrieval import queries as statements
from models.db.database import fetch_idempotent
from models.db.queries.organization import FIND_PROJECTS
from models.ids import VECTOR_STORE, file_id, parse_admin_id, vector_store_id

COUNTED = 1_000
"""The newest files of a store that are counted in the list."""
_COUNTED_OF_ONE = 10_000
_STATUSES = ("in_progress", "completed", "failed", "cancelled")
_parse_store = partial(parse_admin_id, VECTOR_STORE)


async def show_list(visit: Visit) -> Response:
    """The stores, the newest first."""
    name = text_parameter(visit, "project")
    values: dict[str, object] = {
        "before": before(visit, _parse_store),
        "look_at": COUNTED,
        "max_rows": PAGE_SIZE + 1,
    }
    if name is None:
        found = await fetch_idempotent(visit.pool, statements.LIST_ALL_STORES, values)
    else:
        named = {"name": name, "digits": None}
        projects = await fetch_idempotent(visit.pool, FIND_PROJECTS, named)
        of_project = values | {"project": projects[0].id if projects else None}
        found = await fetch_idempotent(visit.pool, statements.LIST_STORES_OF_PROJECT, of_project)
    rows, last = split(found)
    return visit.page(
        "vector_stores.html",
        stores=[(vector_store_id(row.id), row) for row in rows],
        next_before=None if last is None else vector_store_id(last.id),
        is_first=visit.query.get("before") is None,
        project=name,
        counted=COUNTED,
    )


async def show(visit: Visit) -> Response:
    """One store and its files."""
    identifier = _parse_store(visit.request.path_params["id"])
    values = {"id": identifier, "look_at": _COUNTED_OF_ONE, "max_rows": 1}
    stores = await fetch_idempotent(visit.pool, statements.SHOW_STORE, values)
    if not stores:
        raise not_found("vector store")
    status = text_parameter(visit, "status")
    if status is not None and status not in _STATUSES:
        raise PageError(400, "No such status", f"There are {', '.join(_STATUSES)}.")
    page = {"store": identifier, "status": status, "max_rows": PAGE_SIZE + 1}
    found = await fetch_idempotent(
        visit.pool, statements.ENTRIES_PAGE, page | {"before": before(visit, uuid_of)}
    )
    rows, last = split(found)
    return visit.page(
        "vector_store.html",
        store=stores[0],
        public_id=vector_store_id(stores[0].id),
        entries=[(file_id(row.file_id), row) for row in rows],
        next_before=None if last is None else last.id.hex,
        is_first=visit.query.get("before") is None,
        chosen=status,
        statuses=_STATUSES,
        counted=_COUNTED_OF_ONE,
    )


PAGES = (
    Page("/vector-stores", show_list),
    Page("/vector-stores/{id}", show),
)
MENU = (("/vector-stores", "Vector stores"),)
