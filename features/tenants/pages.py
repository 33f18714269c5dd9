"""The projects: policy, quotas, keys, and usage by day, project and model."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.page import (
    Change,
    Page,
    Visit,
    choice,
    confirmed,
    not_found,
    project_of,
    read_list,
)
from features.tenants.quota_uses import QuotaUse, quota_limits, quota_uses
from features.tenants.service import revoke_key
from models.db.database import Connection, fetch_idempotent, find_by_id
from models.db.queries import organization, usage
from models.db.queries.organization import KeyDetails, ProjectDetails
from models.ids import API_KEY, PROJECT, admin_id, parse_admin_id
from models.projects.policy import ProjectPolicy

_DAYS = 14
"""Days of usage that are shown, today included."""
_DAY = 86_400
_LOOKED_AT = 50_000
"""Rows of days that are summed up already, and as many entries of the others."""
_MOST_ROWS = 500
_DAY_CHOICES = {"1": "today", "7": "7 days", "30": "30 days"}
_GROUPS = {
    "day": "day",
    "project": "project",
    "model": "model",
    "both": "project and model",
}
"""What a row is about, besides the day."""
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
    projects = await read_list(
        visit,
        organization.LIST_PROJECTS,
        {"include_archived": include_archived},
        lambda row: _project_id(row.id),
        _parse_project,
        position="after",
    )
    return visit.page(
        "projects.html",
        projects=projects,
        policy_text=_policy_text,
        include_archived=include_archived,
    )


async def show(visit: Visit) -> Response:
    """One project."""
    project = await _project(visit)
    of_project = {"project": project.id}
    keys, used, days = await asyncio.gather(
        read_list(
            visit, organization.KEYS_PAGE, of_project, lambda row: _key_id(row.id), _parse_key
        ),
        _quotas(visit, project),
        _usage(visit, project),
    )
    return visit.page(
        "project.html",
        project=project,
        public_id=_project_id(project.id),
        policy=_policy_text(project, indent=2),
        quotas=used,
        days=days,
        keys=keys,
    )


async def _revoke(visit: Visit, fields: QueryParams) -> Change:
    """Revokes a key."""
    key = await _key(visit, fields.get("id", ""))
    used = "never" if key.last_used_at is None else f"{key.last_used_at:%Y-%m-%d %H:%M} UTC"

    async def make(connection: Connection) -> None:
        await revoke_key(connection, key, visit.actor)

    return Change(
        title=f"Revoke the key {key.prefix}…?",
        meaning="Requests with it are refused within seconds, for ever. Responses that it has "
        "created go on.",
        label="Revoke",
        back=f"/projects/{_project_id(key.project_id)}",
        make=make,
        facts=[
            ("Project", key.project),
            ("Name", key.name or "none"),
            ("Scopes", ", ".join(key.scopes)),
            ("Last used", used),
        ],
    )


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


def _policy_text(project: ProjectDetails, indent: int | None = None) -> str:
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


async def show_usage(visit: Visit) -> Response:
    """What was used, by day, project and model."""
    group = choice(visit.query, "by", _GROUPS, "both")
    days = choice(visit.query, "days", _DAY_CHOICES, "7")
    name, model = visit.text("project"), visit.text("model")
    project = None if name is None else await project_of(visit, name)
    is_unknown = name is not None and project is None
    values = {
        "first": (datetime.now(UTC) - timedelta(days=int(days) - 1)).date(),
        "project": project,
        "model": model,
        "by_project": group in ("project", "both"),
        "by_model": group in ("model", "both"),
        "look_at": _LOOKED_AT,
        "max_rows": _MOST_ROWS,
    }
    rows = [] if is_unknown else await fetch_idempotent(visit.pool, usage.USAGE_BY_DAY, values)
    rolled = sum(row.rows for row in rows if row.is_rolled)
    open_days = sum(row.rows for row in rows if not row.is_rolled)
    return visit.page(
        "usage.html",
        rows=rows,
        most=max((row.input_tokens + row.output_tokens for row in rows), default=0),
        unknown_project=name if is_unknown else None,
        group=group,
        groups=_GROUPS.items(),
        days=days,
        day_choices=_DAY_CHOICES.items(),
        is_cut=len(rows) == _MOST_ROWS,
        is_partial=max(rolled, open_days) >= _LOOKED_AT,
        looked_at=_LOOKED_AT,
    )


PAGES = (
    Page("/projects", show_list, menu="Projects"),
    *confirmed("/projects/keys/revoke", _revoke),
    Page("/projects/{id}", show),
    Page("/usage", show_usage, menu="Usage"),
)
