"""One project in the console: what waits and runs, its quotas, usage and keys. A login of a project
begins with this page."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from starlette.responses import Response

from features.console.access import EVERYONE, Role
from features.console.page import PROJECT_PAGE, Page, Visit, not_found, read_list
from features.console.responses import find
from features.operator.filter import LAST_ID, Filter
from features.tenants.project_form import field_groups, texts_of
from features.tenants.quota_uses import QuotaUse, compared_uses, quota_limits, quota_uses
from models.db.database import fetch_idempotent, find_by_id
from models.db.queries import organization, usage
from models.db.queries.organization import ProjectDetails
from models.db.queries.quotas import OPEN_BY_PROJECT, OpenCounts
from models.ids import API_KEY, PROJECT, admin_id, parse_admin_id
from models.keys import DEFAULT_PROJECT
from models.lifecycle import OperatorStatus
from models.projects.policy import DEFAULT_POLICY, ProjectPolicy

_DAYS = 14
"""Days of usage that are shown, today included."""
_DAY = 86_400
_LOOKED_AT = 20_000
"""Open responses that are counted by project."""
_BUDGETS = ("tokens_per_day", "tokens_per_month")
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


def limits_of(visit: Visit, project: ProjectDetails) -> dict[str, int | None]:
    """The limits of a project by the names of the quotas. None: there is none."""
    settings, stored = visit.state.settings, project.policy
    own = (ProjectPolicy.from_json(stored) if stored else DEFAULT_POLICY).quotas
    return quota_limits(settings.quotas, settings.cache, own)


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
            Filter(
                statuses=[OperatorStatus.FAILED],
                project=project.name,
                is_exact=True,
                since=timedelta(days=1),
            ),
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
    """The quotas that limit the project, and what is used of those that are cheap to count. Tokens
    of days and months are those that Redis has counted: to sum them up takes too long."""
    limits, pool, redis = limits_of(visit, project), visit.pool, visit.state.redis
    others = limits | dict.fromkeys(_BUDGETS)
    uses, compared = await asyncio.gather(
        quota_uses(pool, redis, project.id, others, counts_unlimited=False),
        compared_uses(pool, redis, {project.id: limits}),
    )
    return [*uses, *(use for use in compared[project.id] if use.name in _BUDGETS)]


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


PAGES = (
    Page(PROJECT_PAGE, show_own, menu="Project", roles=frozenset((Role.PROJECT,))),
    Page("/projects/{id}", show, roles=EVERYONE),
)
