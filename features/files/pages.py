"""The stored files: how many each project has, and which. Their content is not shown."""

from uuid import UUID

from starlette.responses import Response

from features.console.page import Page
from features.console.paging import PAGE_SIZE, before, split, text_parameter
from features.console.visit import Visit
from features.operator.filter import LAST_ID
from models.db.database import fetch_idempotent
from models.db.queries import files as statements
from models.db.queries.organization import FIND_PROJECTS
from models.ids import file_id, parse_file_id

_SUMMED_UP = 20_000
"""The newest files that the sums of projects are made of."""


async def show(visit: Visit) -> Response:
    """The page."""
    name = text_parameter(visit, "project")
    values: dict[str, object] = {"before": before(visit, parse_file_id), "limit": PAGE_SIZE + 1}
    if name is None:
        everything = values | {"project": None, "purpose": None}
        found = await fetch_idempotent(visit.pool, statements.LIST_ALL_FILES, everything)
    else:
        project = await _project(visit, name)
        of_project = values | {"project": project}
        found = await fetch_idempotent(visit.pool, statements.LIST_FILES_OF_PROJECT, of_project)
    rows, last = split(found)
    sums = {"before": LAST_ID, "max_rows": _SUMMED_UP}
    totals = await fetch_idempotent(visit.pool, statements.FILES_BY_PROJECT, sums)
    return visit.page(
        "files.html",
        files=[(file_id(row.id), row) for row in rows],
        totals=totals,
        is_partial=sum(total.files for total in totals) >= _SUMMED_UP,
        summed_up=_SUMMED_UP,
        next_before=None if last is None else file_id(last.id),
        is_first=visit.query.get("before") is None,
        project=name,
    )


async def _project(visit: Visit, name: str) -> UUID | None:
    """The id of the project with this name; None: there is none."""
    rows = await fetch_idempotent(visit.pool, FIND_PROJECTS, {"name": name, "digits": None})
    return rows[0].id if rows else None


PAGES = (Page("/files", show),)
MENU = (("/files", "Files"),)
