"""What an operator does with projects."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from cli.errors import RequestRefused
from cli.output import GREEN, GREY, clean, fitted_table, paint, table
from features.operator.audit_entries import operator
from features.operator.filter import id_prefix
from features.operator.rows import fact
from features.tenants import service
from features.tenants.quota_uses import QuotaUse, quota_limits, quota_uses
from features.tenants.service import DefaultProject, NameTaken, ProjectFields
from models.config.groups import CacheSettings, QuotaSettings
from models.db.database import Connection, fetch
from models.db.queries import organization
from models.db.queries.organization import ProjectDetails
from models.projects.changes import MAX_NAME, BadPolicy, is_name
from models.projects.policy import ProjectPolicy
from models.time_text import format_date

_MAX_LISTED = 10_000
_SHORT_ID = 18


@dataclass(frozen=True, slots=True)
class ListedProject:
    """A project. `policy`: what differs from the settings."""

    id: UUID
    name: str
    created_at: datetime
    archived_at: datetime | None
    weight: int
    policy: dict[str, Any]

    @classmethod
    def from_row(cls, row: ProjectDetails) -> Self:
        """The fact of a row."""
        return fact(cls, row)


@dataclass(frozen=True, slots=True)
class ShownProject(ListedProject):
    """A project, and what it uses of its quotas."""

    quotas: list[QuotaUse] = field(default_factory=list)


async def list_projects(database: Connection, *, include_archived: bool) -> list[ListedProject]:
    """All projects, the oldest first."""
    values = {"include_archived": include_archived, "after": None, "max_rows": _MAX_LISTED}
    rows = await fetch(database, organization.LIST_PROJECTS, values)
    return [ListedProject.from_row(row) for row in rows]


async def find_project(database: Connection, name: str) -> ProjectDetails:
    """The project of this name, id or beginning of an id. Raises RequestRefused."""
    digits = id_prefix(name.removeprefix("proj_"))
    found = await fetch(database, organization.FIND_PROJECTS, {"name": name, "digits": digits})
    if not found:
        raise RequestRefused(
            f"there is no project {clean(name[:MAX_NAME])}; `backburner projects list` lists them"
        )
    if found[0].name != name and len(found) > 1:
        raise RequestRefused(f"{clean(name)} is the beginning of several projects' ids")
    return found[0]


async def create_project(database: Connection, fields: ProjectFields) -> ListedProject:
    """Raises RequestRefused if there is one of this name, or if the policy is wrong."""
    name = _checked_name(fields.name or "")
    try:
        made = await service.create_project(database, replace(fields, name=name), operator())
    except NameTaken:
        raise RequestRefused(f"there is a project {clean(name)} already") from None
    except BadPolicy as bad:
        raise _wrong_policy(bad) from bad
    return ListedProject.from_row(made)


async def change_project(database: Connection, name: str, fields: ProjectFields) -> ListedProject:
    """Raises RequestRefused."""
    project = await find_project(database, name)
    if fields.name is not None:
        _checked_name(fields.name)
    try:
        changed = await service.change_project(database, project.id, fields, operator())
    except NameTaken:
        raise RequestRefused("another project has the name") from None
    except BadPolicy as bad:
        raise _wrong_policy(bad) from bad
    return ListedProject.from_row(changed)


async def delete_project(database: Connection, name: str) -> ListedProject:
    """Archives a project. Raises RequestRefused."""
    project = await find_project(database, name)
    try:
        return ListedProject.from_row(await service.archive_project(database, project, operator()))
    except DefaultProject:
        raise RequestRefused("the project default cannot be deleted") from None


def _wrong_policy(bad: BadPolicy) -> RequestRefused:
    return RequestRefused(f"the policy is wrong: {bad}")


def _checked_name(name: str) -> str:
    if not is_name(name):
        raise RequestRefused(f"a name has 1 to {MAX_NAME} characters that can be printed")
    return name


async def show_project(database: Connection, name: str, data: Path | None) -> ShownProject:
    """The project of this name, id or beginning of an id. `data`: of the servers. The limits of
    projects without own quotas are those of the configuration here. Raises RequestRefused."""
    from cli.options import resolve_redis_url
    from cli.settings import NO_DATABASE, child_settings
    from models.redis.client import redis_client

    row = await find_project(database, name)
    limits = quota_limits(*_configured(), ProjectPolicy.from_json(row.policy).quotas)
    address, redis = resolve_redis_url(data), None
    if address is not None:
        redis = redis_client(child_settings(NO_DATABASE, address), "operator")
    try:
        quotas = await quota_uses(database, redis, row.id, limits, counts_unlimited=True)
    finally:
        if redis is not None:
            await redis.aclose()
    return fact(ShownProject, row, quotas=quotas)


def _configured() -> tuple[QuotaSettings, CacheSettings]:
    """The settings of this environment; the defaults if they have mistakes."""
    from cli.settings import configured_settings
    from models.config.config_file import BadSettings

    try:
        settings = configured_settings()
    except BadSettings:
        return QuotaSettings(), CacheSettings()
    return settings.quotas, settings.cache


def as_table(facts: Sequence[ListedProject]) -> str:
    """One line per project."""
    if not facts:
        return "there is no project; the first key makes one"

    def rows(short: bool) -> list[tuple[str, ...]]:
        return [
            (
                clean(project.name),
                str(project.id)[:_SHORT_ID] if short else str(project.id),
                format_date(project.created_at),
                str(project.weight),
                _archived(project),
                clean(json.dumps(project.policy)) if project.policy else "",
            )
            for project in facts
        ]

    return fitted_table(("NAME", "ID", "CREATED", "WEIGHT", "STATE", "POLICY"), rows, ["NAME"])


def as_text(facts: ListedProject) -> str:
    """A project in several lines."""
    lines = [
        f"{clean(facts.name)}  {facts.id}",
        f"  {_archived(facts)}, created {format_date(facts.created_at)}, weight {facts.weight}",
        "  policy " + (json.dumps(facts.policy, indent=2) if facts.policy else "as the settings"),
    ]
    return "\n".join(lines)


def with_quotas(facts: ShownProject) -> str:
    """A project in several lines, and a line for each quota."""
    rows = [
        (
            quota.name,
            "-" if quota.used is None else f"{quota.used:,}",
            "no limit" if quota.limit is None else f"{quota.limit:,}",
        )
        for quota in facts.quotas
    ]
    return f"{as_text(facts)}\n\n{table(('QUOTA', 'USED', 'LIMIT'), rows)}"


def _archived(facts: ListedProject) -> str:
    if facts.archived_at is None:
        return paint("active", GREEN)
    return paint(f"archived {format_date(facts.archived_at)}", GREY)
