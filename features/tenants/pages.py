"""The projects: policy, quotas, usage of the last days, and keys."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from starlette.responses import Response

from features.console.changes import Confirmation, ask, first, not_found
from features.console.page import Page
from features.console.paging import PAGE_SIZE, before, split
from features.console.visit import Visit
from features.operator.filter import FIRST_ID
from features.tenants import usage_pages
from features.tenants.quota_uses import QuotaUse, quota_limits, quota_uses
from features.tenants.service import revoke_key
from models.db.database import fetch_idempotent, find_by_id
from models.db.queries import organization, usage
from models.db.queries.organization import KeyDetails, ProjectDetails
from models.ids import API_KEY, PROJECT, admin_id, parse_admin_id
from models.projects.policy import ProjectPolicy

_DAYS = 14
"""Days of usage that are shown, today included."""
_DAY = 86_400
_project_id = partial(admin_id, PROJECT)
_parse_project = partial(parse_admin_id, PROJECT)
_key_id = partial(admin_id, API_KEY)
_parse_key = partial(parse_admin_id, API_KEY)


@dataclass(frozen=True, slots=True)
class DayOfUsage:
    """What was used on one day, in UTC."""

    day: str
    requests: int
    input_tokens: int
    output_tokens: int


async def show_list(visit: Visit) -> Response:
    """The list, the oldest first."""
    include_archived = visit.query.get("archived") == "1"
    after = FIRST_ID
    if (text := visit.query.get("after")) is not None:
        after = _parse_project(text) or FIRST_ID
    values = {
        "include_archived": include_archived,
        "after": after,
        "max_rows": PAGE_SIZE + 1,
    }
    rows, last = split(await fetch_idempotent(visit.pool, organization.LIST_PROJECTS, values))
    return visit.page(
        "projects.html",
        projects=[(_project_id(row.id), row, _policy_text(row, indent=None)) for row in rows],
        next_after=None if last is None else _project_id(last.id),
        is_first=after == FIRST_ID,
        include_archived=include_archived,
    )


async def show(visit: Visit) -> Response:
    """One project."""
    project = await _project(visit)
    keys_before = before(visit, _parse_key)
    values = {"project": project.id, "before": keys_before, "max_rows": PAGE_SIZE + 1}
    found, used, days = await asyncio.gather(
        fetch_idempotent(visit.pool, organization.KEYS_PAGE, values),
        _quotas(visit, project),
        _usage(visit, project),
    )
    keys, last = split(found)
    return visit.page(
        "project.html",
        project=project,
        public_id=_project_id(project.id),
        policy=_policy_text(project, indent=2),
        quotas=used,
        days=days,
        keys=[(_key_id(key.id), key) for key in keys],
        next_before=None if last is None else _key_id(last.id),
        is_first=visit.query.get("before") is None,
    )


async def confirm_revoke(visit: Visit) -> Response:
    """Asks whether a key is to be revoked."""
    key = await _key(visit, visit.query.get("id", ""))
    used = "never" if key.last_used_at is None else f"{key.last_used_at:%Y-%m-%d %H:%M} UTC"
    return ask(
        visit,
        Confirmation(
            title=f"Revoke the key {key.prefix}…?",
            meaning="Requests with it are refused within seconds, for ever. Responses that it has "
            "created go on.",
            label="Revoke",
            path="/projects/keys/revoke",
            back=f"/projects/{_project_id(key.project_id)}",
            fields=[("id", _key_id(key.id))],
            facts=[
                ("Project", key.project),
                ("Name", key.name or "none"),
                ("Scopes", ", ".join(key.scopes)),
                ("Last used", used),
            ],
        ),
    )


async def revoke(visit: Visit) -> Response:
    """Revokes a key."""
    fields = await visit.form(visit.user.token)
    key = await _key(visit, first(fields, "id"))
    async with visit.pool.connection() as connection:
        await revoke_key(connection, key, visit.actor)
    return visit.redirect(f"/projects/{_project_id(key.project_id)}")


async def _project(visit: Visit) -> ProjectDetails:
    identifier = _parse_project(visit.request.path_params["id"])
    project = await find_by_id(visit.pool, organization.PROJECT_BY_ID, identifier)
    if project is None:
        raise not_found("project")
    return project


async def _key(visit: Visit, public_id: str) -> KeyDetails:
    key = await find_by_id(visit.pool, organization.KEY_OF_ANY_PROJECT, _parse_key(public_id))
    if key is None:
        raise not_found("key")
    return key


def _policy_text(project: ProjectDetails, indent: int | None) -> str:
    """What differs from the settings, as JSON; empty: nothing."""
    return json.dumps(project.policy, indent=indent) if project.policy else ""


async def _quotas(visit: Visit, project: ProjectDetails) -> list[QuotaUse]:
    """The quotas that limit the project, and what is used of those that are cheap to count."""
    settings = visit.state.settings
    own = ProjectPolicy.from_json(project.policy).quotas
    limits = quota_limits(settings.quotas, settings.cache, own)
    redis = visit.state.redis
    return await quota_uses(visit.pool, redis, project.id, limits, counts_unlimited=False)


async def _usage(visit: Visit, project: ProjectDetails) -> list[DayOfUsage]:
    """The newest day first; days without usage are left out."""
    now = datetime.now(UTC)
    begin = now - timedelta(days=_DAYS - 1)
    values = {
        "first": int(begin.timestamp()) // _DAY * _DAY,
        "last": int(now.timestamp()) + 1,
        "width": _DAY,
        "group_by": [],
        "project_ids": [project.id],
        "api_key_ids": None,
        "models": None,
        "kind": None,
        "batch": None,
        "max_rows": None,
    }
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
    *usage_pages.PAGES,
    Page("/projects", show_list),
    Page("/projects/keys/revoke", confirm_revoke),
    Page("/projects/keys/revoke", revoke, method="POST"),
    Page("/projects/{id}", show),
)
MENU = (("/projects", "Projects"), ("/usage", "Usage"))
