"""The list of projects in the console (who is near a limit, what was used within 24 hours, the last
use), the forms that make and change a project, and its deletion."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.access import OPERATORS
from features.console.page import (
    PAGE_SIZE,
    Change,
    Listed,
    Page,
    PageError,
    Visit,
    choice,
    confirmed,
    not_found,
    read_list,
)
from features.tenants import project_form, service
from features.tenants.project_pages import find_project, limits_of, parse_project, project_id
from features.tenants.quota_uses import QuotaUse, compared_uses
from models.db.arrays import Uuids
from models.db.database import Connection, fetch_idempotent, find_by_id
from models.db.queries import organization, usage
from models.db.queries.organization import ProjectDetails
from models.db.queries.usage import LatelyUsed
from models.errors import InvalidRequest
from models.projects.changes import BadPolicy

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


@dataclass(frozen=True, slots=True)
class ProjectForm:
    """The form as it is shown."""

    groups: list[project_form.FieldGroup]
    texts: Mapping[str, str]
    project: ProjectDetails | None
    """that is changed; None: a new one"""
    mistakes: Mapping[str, str]
    """by field; of the whole form under an empty name"""

    def page(self, visit: Visit) -> Response:
        """The page."""
        project = self.project
        return visit.page(
            "project_form.html",
            status=400 if self.mistakes else 200,
            form=self,
            back="/projects" if project is None else f"/projects/{project_id(project.id)}",
            action=visit.path if project is None else f"/projects/{project_id(project.id)}/edit",
            revision="" if project is None else project_form.revision_of(project),
            first_mistake=next(iter(self.mistakes), None),
        )


async def ask_new(visit: Visit) -> Response:
    """The form of a new project."""
    return ProjectForm(project_form.field_groups(visit.state.settings), {}, None, {}).page(visit)


async def ask_changed(visit: Visit) -> Response:
    """The form of a project."""
    project, groups = await find_project(visit), project_form.field_groups(visit.state.settings)
    return ProjectForm(groups, project_form.texts_of(project, groups), project, {}).page(visit)


async def create(visit: Visit) -> Response:
    """Makes a project."""
    return await _store(visit, await visit.form(visit.user.token), None)


async def change(visit: Visit) -> Response:
    """Changes a project: what differs from what is stored."""
    return await _store(visit, await visit.form(visit.user.token), await find_project(visit))


async def _store(visit: Visit, fields: QueryParams, project: ProjectDetails | None) -> Response:
    groups = project_form.field_groups(visit.state.settings)
    names = [field.name for group in groups for field in group.fields]
    texts = {name: fields[name] for name in names if name in fields}
    stored = {} if project is None else project_form.texts_of(project, groups)
    if project is not None and fields.get("revision") != project_form.revision_of(project):
        text = "Somebody has changed the project meanwhile. Compare, and save again."
        return ProjectForm(groups, texts, project, {"": text}).page(visit)
    try:
        made = await _stored(visit, project_form.changes_of(texts, stored), project)
    except (BadPolicy, InvalidRequest, service.NameTaken) as wrong:
        mistakes = dict([_mistake(wrong, names)])
        return ProjectForm(groups, texts, project, mistakes).page(visit)
    return visit.redirect(f"/projects/{project_id(made.id)}")


async def _stored(
    visit: Visit, fields: service.ProjectFields, project: ProjectDetails | None
) -> ProjectDetails:
    upstreams = visit.state.routes.server.upstreams
    async with visit.pool.connection() as connection:
        if project is None:
            return await service.create_project(connection, fields, visit.actor, upstreams)
        if fields == service.ProjectFields():
            return project
        return await service.change_project(connection, project.id, fields, visit.actor, upstreams)


def _mistake(
    wrong: BadPolicy | InvalidRequest | service.NameTaken, names: Sequence[str]
) -> tuple[str, str]:
    """The field, and what is wrong with it."""
    if isinstance(wrong, service.NameTaken):
        return "name", "Another project has this name."
    if isinstance(wrong, BadPolicy):
        message = f"{wrong.message[:1].upper()}{wrong.message[1:]}".rstrip(".")
        return project_form.field_at(wrong.place, names), f"{message}."
    return project_form.field_at(wrong.param or "", names), wrong.message


async def _archive(visit: Visit, fields: QueryParams) -> Change:
    """Deletes a project, as the command does."""
    identifier = parse_project(fields.get("id", ""))
    project = await find_by_id(visit.pool, organization.PROJECT_BY_ID, identifier)
    if project is None:
        raise not_found("project")

    async def make(connection: Connection) -> None:
        try:
            await service.archive_project(connection, project, visit.actor)
        except service.DefaultProject:
            raise PageError(
                409, "It cannot be deleted", "The project default stays, so that admins keep keys."
            ) from None

    return Change(
        title=f"Delete the project {project.name}?",
        meaning="Its keys are invalid for ever, its webhooks and schedules are deleted, and its "
        "open responses and batches are cancelled. What it has stored is deleted when its "
        "retention ends.",
        label="Delete the project",
        back=f"/projects/{project_id(project.id)}",
        make=make,
    )


PAGES = (
    Page("/projects", show_list, menu="Projects"),
    Page("/projects/new", ask_new, roles=OPERATORS),
    Page("/projects/new", create, method="POST"),
    *confirmed("/projects/delete", _archive),
    Page("/projects/{id}/edit", ask_changed, roles=OPERATORS),
    Page("/projects/{id}/edit", change, method="POST"),
)
