"""All cells at once, over their admin API."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from features.cells.travel import Moved, MoveFailed, Travel, authorization, call
from features.cells.views import Rows
from models.config.feature_groups import CellSettings

_TIME = aiohttp.ClientTimeout(total=5)


@dataclass(frozen=True, slots=True)
class CellAnswer:
    """What a cell has answered."""

    cell: str
    """its name in the settings"""
    url: str
    rows: Rows
    problem: str | None
    """why there are no rows, or why they may be those of another cell; None: nothing is wrong"""


async def ask_all(cells: Mapping[str, CellSettings], view: str) -> list[CellAnswer]:
    """The rows of a view of each cell, in the order of the names."""
    async with aiohttp.ClientSession(timeout=_TIME) as session:
        return await asyncio.gather(
            *(_ask(session, name, cells[name], view) for name in sorted(cells))
        )


async def _ask(
    session: aiohttp.ClientSession, name: str, cell: CellSettings, view: str
) -> CellAnswer:
    url, headers = cell.url.rstrip("/"), authorization(cell)
    try:
        async with session.get(
            f"{url}/v1/organization/cell",
            params={"view": view},
            headers=headers,
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                return CellAnswer(name, url, [], f"answers with the status {answer.status}")
            body = await answer.json()
    except TimeoutError:
        return CellAnswer(name, url, [], "does not answer in time")
    except (aiohttp.ClientError, ValueError):
        return CellAnswer(name, url, [], "does not answer")
    if body.get("name") not in (name, ""):
        return CellAnswer(name, url, [], f"calls itself {body.get('name')}")
    return CellAnswer(name, url, body["data"], None)


async def move(source: CellSettings, target: CellSettings, project: str, *, wait: bool) -> Moved:
    """Lets `target` serve the project of this name, which `source` has. It may be repeated. Raises
    MoveFailed."""
    async with aiohttp.ClientSession() as session:
        found = await call(session, source, "GET", "/cell?view=projects")
        ids = [row["id"] for row in found["data"] if row["project"] == project]
        if not ids:
            raise MoveFailed(f"there is no project {project} in the first cell")
        return await Travel(session, (source, target), ids[0]).move(wait=wait)


def merged(answers: list[CellAnswer]) -> Rows:
    """The rows of all cells, each with the name of its cell; those with a time, the newest
    first."""
    rows = [{"cell": answer.cell, **row} for answer in answers for row in answer.rows]
    if rows and "time" in rows[0]:
        rows.sort(key=lambda row: row["time"], reverse=True)
    return rows
