"""The stored files: how many each project has, and which. Their content is not shown."""

import asyncio
import shutil
from pathlib import Path

from starlette.responses import Response

from features.console.access import EVERYONE
from features.console.page import Page, Problem, Visit, project_of, read_list
from features.files import queries as statements
from features.operator.filter import LAST_ID
from models.db.database import fetch_idempotent
from models.ids import file_id, parse_file_id
from web.state import AppState

_SUMMED_UP = 20_000
"""The newest files that the sums of projects are made of."""
_FULL = 0.9
"""The part of the disk that may be used."""


async def show(visit: Visit) -> Response:
    """The page."""
    query, values = statements.LIST_ALL_FILES, dict[str, object](project=None, purpose=None)
    if (name := visit.text("project")) is not None:
        query, values = statements.LIST_FILES_OF_PROJECT, {"project": await project_of(visit, name)}
    sums = {"before": LAST_ID, "max_rows": _SUMMED_UP}
    totals = await fetch_idempotent(visit.pool, statements.FILES_BY_PROJECT, sums)
    return visit.page(
        "files.html",
        files=await read_list(visit, query, values, lambda row: file_id(row.id), parse_file_id),
        totals=totals,
        is_partial=sum(total.files for total in totals) >= _SUMMED_UP,
        summed_up=_SUMMED_UP,
        project=name,
    )


async def problems(state: AppState) -> list[Problem]:
    """Whether the disk has room."""
    return await asyncio.to_thread(_disk_problems, state.settings.files.folder)


def _disk_problems(folder: Path | None) -> list[Problem]:
    """Blocks."""
    if folder is None or not folder.exists():
        return []
    disk = shutil.disk_usage(folder)
    if disk.used <= _FULL * disk.total:
        return []
    used = 100 * disk.used // disk.total
    return [Problem(f"The disk of files ({folder}) is {used} % full.")]


PAGES = (Page("/files", show, menu="Files", is_by_project=True, roles=EVERYONE),)
