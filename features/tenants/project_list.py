"""The list of projects in the console: who is near a limit, what was used within 24 hours, and the
last use."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from starlette.responses import Response

from features.console.page import PAGE_SIZE, Listed, Page, PageError, Visit, choice, read_list
from features.tenants.project_pages import limits_of, parse_project, project_id
from features.tenants.quota_uses import QuotaUse, compared_uses
from models.db.arrays import Uuids
from models.db.database import fetch_idempotent
from models.db.queries import organization, usage
from models.db.queries.organization import ProjectDetails
from models.db.queries.usage import LatelyUsed

_COMPARED = 500
"""Projects that are compared to find those that are near a limit: the first ones by name."""
_LOOKED_AT = 20_000
"""Projects that a search by name looks at."""
_ENTRIES = 20_000
"""Entries of usage that are summed up for a page of projects."""
_ORDERS = {"limit": "nearest to a limit first", "name": "by name"}


@dataclass(frozen=True, slots=True)
class ShownProject:
    """A project in the list."""

    details: ProjectDetails
    uses: dict[str, QuotaUse]
    """of the quotas that limit it, by name"""
    lately: LatelyUsed
    is_partial: bool
    """It has used more than what was summed up."""
    last_use: datetime | None

    @property
    def tokens(self) -> QuotaUse | None:
        """Of its quotas of tokens, the one that is nearest."""
        quotas = [use for name, use in self.uses.items() if name.startswith("tokens_")]
        return max(quotas, key=lambda use: use.part, default=None)


async def show_list(visit: Visit) -> Response:
    """The list: those first that are near a limit, or by name."""
    order = choice(visit.query, "order", _ORDERS, "limit")
    wanted = {
        "name": visit.text("name"),
        "include_archived": visit.query.get("archived") == "1",
        "look_at": _LOOKED_AT,
    }
    is_cut = False
    if order == "name":
        listed = await read_list(
            visit,
            organization.PROJECTS_BY_NAME,
            wanted,
            lambda row: project_id(row.id),
            parse_project,
            position="after",
        )
        uses = await _compared(visit, [row for _, row in listed.rows])
    else:
        values = {**wanted, "after": None, "max_rows": _COMPARED + 1}
        found = await fetch_idempotent(visit.pool, organization.PROJECTS_BY_NAME, values)
        is_cut = len(found) > _COMPARED
        uses = await _compared(visit, found[:_COMPARED])
        listed = _by_limit(visit, found[:_COMPARED], uses)
    return visit.page(
        "projects.html",
        projects=listed,
        shown=await _shown(visit, [row for _, row in listed.rows], uses),
        order=order,
        orders=_ORDERS.items(),
        compared=_COMPARED if is_cut else None,
        include_archived=wanted["include_archived"],
    )


def _by_limit(
    visit: Visit, projects: Sequence[ProjectDetails], uses: Mapping[UUID, Sequence[QuotaUse]]
) -> Listed[ProjectDetails]:
    """A page of these, those first that have used most of a limit. Its position is a number."""
    text = visit.query.get("after", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise PageError(400, "No such page", "The position of this page is no number.")
    first, end = int(text), int(text) + PAGE_SIZE

    def nearness(project: ProjectDetails) -> float:
        return max((use.part for use in uses[project.id]), default=0.0)

    ordered = sorted(projects, key=nearness, reverse=True)  # stable: of equals by name
    rows = [(project_id(row.id), row) for row in ordered[first:end]]
    return Listed(rows, first == 0, str(end) if end < len(ordered) else None)


async def _compared(
    visit: Visit, projects: Sequence[ProjectDetails]
) -> Mapping[UUID, Sequence[QuotaUse]]:
    limits = {project.id: limits_of(visit, project) for project in projects}
    return await compared_uses(visit.pool, visit.state.redis, limits)


async def _shown(
    visit: Visit, projects: Sequence[ProjectDetails], uses: Mapping[UUID, Sequence[QuotaUse]]
) -> dict[UUID, ShownProject]:
    """What the list says of these projects."""
    if not projects:
        return {}
    ids = Uuids([project.id for project in projects])
    look_at = _ENTRIES // len(projects)
    lately, last = await asyncio.gather(
        fetch_idempotent(visit.pool, usage.USED_LATELY, {"projects": ids, "look_at": look_at}),
        fetch_idempotent(visit.pool, organization.LAST_USES, {"projects": ids}),
    )
    used = {row.project_id: row for row in lately}
    last_uses = {row.project_id: row.at for row in last}
    return {
        project.id: ShownProject(
            details=project,
            uses={use.name: use for use in uses[project.id]},
            lately=used[project.id],
            is_partial=used[project.id].entries >= look_at,
            last_use=last_uses[project.id],
        )
        for project in projects
    }


PAGES = (Page("/projects", show_list, menu="Projects"),)
