"""The projects in the console: who is near a limit, one project with its quotas and keys, the page
with which a project's own login begins, and the forms that make and change them."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.access import EVERYONE, OPERATORS, Role
from features.console.page import (
    PAGE_SIZE,
    PROJECT_PAGE,
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
from features.console.responses import find
from features.operator.filter import LAST_ID, Filter
from features.tenants import service
from features.tenants.project_form import (
    FieldGroup,
    changes_of,
    field_at,
    field_groups,
    revision_of,
    texts_of,
)
from features.tenants.quota_uses import QuotaUse, compared_uses, quota_limits, quota_uses
from models.db.arrays import Uuids
from models.db.database import Connection, fetch_idempotent, find_by_id
from models.db.queries import organization, usage
from models.db.queries.organization import ProjectDetails
from models.db.queries.quotas import OPEN_BY_PROJECT, OpenCounts
from models.db.queries.usage import LatelyUsed
from models.errors import InvalidRequest
from models.ids import API_KEY, PROJECT, admin_id, parse_admin_id
from models.keys import DEFAULT_PROJECT
from models.lifecycle import Status
from models.projects.changes import BadPolicy
from models.projects.policy import ProjectPolicy

_DAYS = 14
"""Days of usage that are shown, today included."""
_DAY = 86_400
_COMPARED = 1_000
"""Projects that are compared to find those that are near a limit: the first ones by name."""
_LOOKED_AT = 20_000
"""Projects that a search by name looks at; and open responses that are counted by project."""
_ENTRIES = 30_000
"""Entries of usage that are summed up for a page of projects."""
_ORDERS = {"limit": "nearest to a limit first", "name": "by name"}
_FAILED = 5
"""Failed responses that are listed."""
_SEARCH = 0.03
"""Seconds in which they are looked for."""
_HIDDEN = ("routes", "egress")
"""Of a policy, what somebody of the project does not see: it has upstreams and addresses."""
project_id = partial(admin_id, PROJECT)
parse_project = partial(parse_admin_id, PROJECT)
_key_id = partial(admin_id, API_KEY)
_parse_key = partial(parse_admin_id, API_KEY)


# --- the list ---


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
    else:
        values = {**wanted, "after": None, "max_rows": _COMPARED + 1}
        found = await fetch_idempotent(visit.pool, organization.PROJECTS_BY_NAME, values)
        is_cut = len(found) > _COMPARED
        listed = await _by_limit(visit, found[:_COMPARED])
    return visit.page(
        "projects.html",
        projects=listed,
        shown=await _shown(visit, [row for _, row in listed.rows]),
        order=order,
        orders=_ORDERS.items(),
        compared=_COMPARED if is_cut else None,
        include_archived=wanted["include_archived"],
    )


async def _by_limit(visit: Visit, projects: Sequence[ProjectDetails]) -> Listed[ProjectDetails]:
    """A page of these, those first that have used most of a limit. Its position is a number."""
    text = visit.query.get("after", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise PageError(400, "No such page", "The position of this page is no number.")
    first, end = int(text), int(text) + PAGE_SIZE
    uses = await _compared(visit, projects)

    def nearness(project: ProjectDetails) -> float:
        return max((use.part for use in uses[project.id]), default=0.0)

    ordered = sorted(projects, key=nearness, reverse=True)  # stable: of equals by name
    rows = [(project_id(row.id), row) for row in ordered[first:end]]
    return Listed(rows, first == 0, str(end) if end < len(ordered) else None)


async def _compared(
    visit: Visit, projects: Sequence[ProjectDetails]
) -> Mapping[UUID, Sequence[QuotaUse]]:
    limits = {project.id: _limits(visit, project) for project in projects}
    return await compared_uses(visit.pool, visit.state.redis, limits)


def _limits(visit: Visit, project: ProjectDetails) -> dict[str, int | None]:
    settings = visit.state.settings
    own = ProjectPolicy.from_json(project.policy).quotas
    return quota_limits(settings.quotas, settings.cache, own)


async def _shown(visit: Visit, projects: Sequence[ProjectDetails]) -> dict[UUID, ShownProject]:
    """What the list says of these projects."""
    if not projects:
        return {}
    ids = Uuids([project.id for project in projects])
    look_at = _ENTRIES // len(projects)
    uses, lately, last = await asyncio.gather(
        _compared(visit, projects),
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


# --- one project ---


@dataclass(frozen=True, slots=True)
class DayOfUsage:
    """What was used on one day, in UTC."""

    day: str
    requests: int
    input_tokens: int
    output_tokens: int


async def show(visit: Visit) -> Response:
    """One project."""
    return await _show(visit, await find_project(visit))


async def show_own(visit: Visit) -> Response:
    """The project of the login."""
    login = visit.user.of_project
    found = None
    if login is not None:
        found = await find_by_id(visit.pool, organization.PROJECT_BY_ID, login.project_id)
    if found is None:
        raise not_found("project")
    return await _show(visit, found)


async def _show(visit: Visit, project: ProjectDetails) -> Response:
    of_project = {"project": project.id}
    pool = visit.pool
    keys, used, days, opened, failed = await asyncio.gather(
        read_list(
            visit, organization.KEYS_PAGE, of_project, lambda row: _key_id(row.id), _parse_key
        ),
        _quotas(visit, project),
        _usage(visit, project),
        fetch_idempotent(pool, OPEN_BY_PROJECT, {"max_rows": _LOOKED_AT}),
        find(
            pool,
            Filter(statuses=[Status.FAILED], project=project.name, since=timedelta(days=1)),
            LAST_ID,
            _FAILED,
            _SEARCH,
        ),
    )
    own = {row.project_id: row for row in opened}
    return visit.page(
        "project.html",
        project=project,
        public_id=project_id(project.id),
        policy=_policy_text(visit, project),
        quotas=used,
        days=days,
        keys=keys,
        open=own.get(project.id, OpenCounts(project.id, 0, 0, 0, 0)),
        is_partial=sum(row.open for row in opened) >= _LOOKED_AT,
        failed=failed.rows,
        is_default=project.name == DEFAULT_PROJECT,
    )


async def find_project(visit: Visit) -> ProjectDetails:
    """The project in the URL. Raises PageError (404)."""
    identifier = parse_project(visit.request.path_params["id"])
    project = await find_by_id(visit.pool, organization.PROJECT_BY_ID, identifier)
    if project is None or not visit.owns(project.id):
        raise not_found("project")
    return project


def _policy_text(visit: Visit, project: ProjectDetails) -> list[tuple[str, str]]:
    """What differs from the settings, by field."""
    is_own = visit.user.of_project is not None
    groups = field_groups(visit.state.settings)
    texts = texts_of(project, groups)
    return [
        (field.label, texts[field.name])
        for group in groups
        for field in group.fields
        if field.name not in ("name", "weight") and texts[field.name]
        if not (is_own and field.name.startswith(_HIDDEN))
    ]


async def _quotas(visit: Visit, project: ProjectDetails) -> list[QuotaUse]:
    """The quotas that limit the project, and what is used of those that are cheap to count."""
    limits, redis = _limits(visit, project), visit.state.redis
    return await quota_uses(visit.pool, redis, project.id, limits, counts_unlimited=False)


async def _usage(visit: Visit, project: ProjectDetails) -> list[DayOfUsage]:
    """The newest day first; days without usage are left out."""
    now = datetime.now(UTC)
    begin = now - timedelta(days=_DAYS - 1)
    first = int(begin.timestamp()) // _DAY * _DAY
    last = int(now.timestamp()) + 1
    values = usage.usage_values(first, last, _DAY, project_ids=[project.id])
    rows = await fetch_idempotent(visit.pool, usage.USAGE, values)
    return [
        DayOfUsage(
            f"{datetime.fromtimestamp(row.bucket, UTC):%Y-%m-%d}",
            row.requests,
            row.input_tokens,
            row.output_tokens,
        )
        for row in reversed(rows)
    ]


# --- changes ---


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
    Page("/projects", show_list, menu="Projects"),
    Page(PROJECT_PAGE, show_own, menu="Project", roles=frozenset((Role.PROJECT,))),
    Page("/projects/new", ask_new, roles=OPERATORS),
    Page("/projects/new", create, method="POST"),
    *confirmed("/projects/delete", _archive),
    Page("/projects/{id}", show, roles=EVERYONE),
    Page("/projects/{id}/edit", ask_changed, roles=OPERATORS),
    Page("/projects/{id}/edit", change, method="POST"),
)
