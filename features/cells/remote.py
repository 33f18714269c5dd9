"""All cells at once, over their admin API."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

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
    url, headers = cell.url.rstrip("/"), _authorization(cell)
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


class MoveFailed(Exception):
    """A step of a move was refused, or a cell did not answer. The steps before it stay."""


async def move(source: CellSettings, target: CellSettings, project: str) -> int:
    """Lets `target` serve the project of this name, which `source` has. Each step may be repeated.
    Returns how many keys were added. Raises MoveFailed."""
    async with aiohttp.ClientSession(timeout=_TIME) as session:
        found = await _call(session, source, "GET", "/cell?view=projects")
        ids = [row["id"] for row in found["data"] if row["project"] == project]
        if not ids:
            raise MoveFailed(f"there is no project {project} in the first cell")
        export = await _call(session, source, "GET", f"/cell/projects/{ids[0]}")
        made = await _call(session, target, "POST", f"/cell/projects/{ids[0]}", export)
        policy = {"policy": {"moved_to": target.url}}
        await _call(session, source, "POST", f"/projects/{ids[0]}", policy)
    return int(made["keys_added"])


async def _call(
    session: aiohttp.ClientSession,
    cell: CellSettings,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    url = f"{cell.url.rstrip('/')}/v1/organization{path}"
    try:
        async with session.request(
            method, url, json=body, headers=_authorization(cell), allow_redirects=False
        ) as answer:
            found: dict[str, Any] = await answer.json()
            if answer.status != 200:
                raise MoveFailed(f"{cell.url}: {found['error']['message']}")
            return found
    except (aiohttp.ClientError, ValueError, KeyError, TimeoutError) as error:
        raise MoveFailed(f"{cell.url} does not answer as a cell") from error


def _authorization(cell: CellSettings) -> dict[str, str]:
    return {"authorization": f"Bearer {cell.admin_key.get_secret_value()}"}


def merged(answers: list[CellAnswer]) -> Rows:
    """The rows of all cells, each with the name of its cell; those with a time, the newest
    first."""
    rows = [{"cell": answer.cell, **row} for answer in answers for row in answer.rows]
    if rows and "time" in rows[0]:
        rows.sort(key=lambda row: row["time"], reverse=True)
    return rows
