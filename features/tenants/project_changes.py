"""The forms of the console that make and change a project, and its deletion."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.access import OPERATORS
from features.console.page import Change, Page, PageError, Visit, confirmed, not_found
from features.tenants import service
from features.tenants.project_form import (
    FieldGroup,
    changes_of,
    field_at,
    field_groups,
    revision_of,
    texts_of,
)
from features.tenants.project_pages import find_project, parse_project, project_id
from models.db.database import Connection, find_by_id
from models.db.queries import organization
from models.db.queries.organization import ProjectDetails
from models.errors import InvalidRequest
from models.projects.changes import BadPolicy


@dataclass(frozen=True, slots=True)
class ProjectForm:
    """The form as it is shown."""

    groups: list[FieldGroup]
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
            revision="" if project is None else revision_of(project),
            first_mistake=next(iter(self.mistakes), None),
        )


async def ask_new(visit: Visit) -> Response:
    """The form of a new project."""
    return ProjectForm(field_groups(visit.state.settings), {}, None, {}).page(visit)


async def ask_changed(visit: Visit) -> Response:
    """The form of a project."""
    project, groups = await find_project(visit), field_groups(visit.state.settings)
    return ProjectForm(groups, texts_of(project, groups), project, {}).page(visit)


async def create(visit: Visit) -> Response:
    """Makes a project."""
    return await _store(visit, await visit.form(visit.user.token), None)


async def change(visit: Visit) -> Response:
    """Changes a project: what differs from what is stored."""
    return await _store(visit, await visit.form(visit.user.token), await find_project(visit))


async def _store(visit: Visit, fields: QueryParams, project: ProjectDetails | None) -> Response:
    groups = field_groups(visit.state.settings)
    names = [field.name for group in groups for field in group.fields]
    texts = {name: fields[name] for name in names if name in fields}
    stored = {} if project is None else texts_of(project, groups)
    if project is not None and fields.get("revision") != revision_of(project):
        text = "Somebody has changed the project meanwhile. Compare, and save again."
        return ProjectForm(groups, texts, project, {"": text}).page(visit)
    try:
        made = await _stored(visit, changes_of(texts, stored), project)
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
        return field_at(wrong.place, names), f"{message}."
    return field_at(wrong.param or "", names), wrong.message


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
    Page("/projects/new", ask_new, roles=OPERATORS),
    Page("/projects/new", create, method="POST"),
    *confirmed("/projects/delete", _archive),
    Page("/projects/{id}/edit", ask_changed, roles=OPERATORS),
    Page("/projects/{id}/edit", change, method="POST"),
)
