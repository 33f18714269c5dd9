"""Projects, as an operator creates, lists, shows, changes and deletes them."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.addresses import resolve_redis_url
from cli.errors import RequestRefused
from cli.options import AsJson, Data, with_groups
from cli.output import GREEN, GREY, clean, fitted_table, paint, print_status, table
from features.operator.connection import EXIT_CODES_HELP, Fields, fields_of, operator, run, show
from features.operator.filter import id_prefix
from models.time_text import format_date

if TYPE_CHECKING:
    from features.tenants.quota_uses import QuotaUse
    from features.tenants.service import ProjectFields
    from models.config.settings import Settings
    from models.db.connection import Connection
    from models.db.queries.organization import ProjectDetails

_MAX_LISTED = 10_000
_SHORT_ID = 18

app = typer.Typer(help="Projects: whose keys, limits and data are apart.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="PROJECT", help="Its name, its id, or the beginning of one.")
]
Weight = Annotated[
    int | None,
    typer.Option(min=1, max=1000, help="Its share of the slots while projects compete for them."),
]
Retention = Annotated[
    str | None,
    typer.Option(help="How long stored responses are kept (30d); `none`: as the settings say."),
]
ZeroRetention = Annotated[
    bool | None,
    typer.Option(
        "--zero-retention/--no-zero-retention",
        help="Keep no response for longer than its client needs it.",
    ),
]
Models = Annotated[
    str | None,
    typer.Option(help="The models that it may use, separated by commas (`gpt-*`); `none`: all."),
]
Route = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN=UPSTREAM[:MODEL],…",
        help="Its own routes, in place of those of the configuration; each option is one route "
        "(`gpt-*=cloud-a`, `fast=cloud-a:gpt-5-mini,local`).",
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        help="Further changes of its policy, as a JSON object; null removes a field "
        "(docs/projects.md)."
    ),
]


@dataclass(frozen=True, slots=True)
class Changes:
    """The options that say how a project shall be."""

    weight: Weight = None
    retention: Retention = None
    zero_retention: ZeroRetention = None
    models: Models = None
    route: Route = None
    policy: Policy = None

    def fields(self, name: str | None, *, no_routes: bool = False) -> "ProjectFields":
        """What is changed. `name`: the new one, if any. `no_routes`: those of the project are
        removed. Raises BadParameter."""
        from features.tenants.service import ProjectFields

        patch = self._policy()
        if no_routes:
            patch["routes"] = None
        routes = _routes(self.route) if self.route else None
        return ProjectFields(name, self.weight, patch or None, routes)

    def _policy(self) -> dict[str, Any]:
        """The changes of the policy."""
        changes: dict[str, Any] = {} if self.policy is None else _json_object(self.policy)
        if self.retention is not None:
            changes["retention"] = None if self.retention == "none" else self.retention
        if self.zero_retention is not None:
            changes["zero_retention"] = self.zero_retention or None
        if self.models is not None:
            names = [model.strip() for model in self.models.split(",") if model.strip()]
            changes["models"] = None if self.models == "none" else names
        return changes


# Commands import when they run, as in cli/main.py.
@app.command("create", epilog=EXIT_CODES_HELP)
@with_groups
def create_project(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    changes: Changes,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Create a project. `backburner keys create --project NAME` makes its keys."""
    from features.tenants import service

    fields = changes.fields(name)
    _store(
        lambda database: service.create_project(database, fields, operator()),
        fields,
        f"there is a project {clean(name)} already",
        as_json,
        data,
    )


@app.command("list", epilog=EXIT_CODES_HELP)
def list_projects(
    archived: Annotated[
        bool, typer.Option("--archived", help="Also those that were deleted.")
    ] = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the projects."""
    from models.db.database import fetch
    from models.db.queries.organization import LIST_PROJECTS

    values = {"include_archived": archived, "after": None, "max_rows": _MAX_LISTED}
    found = run(data, lambda database: fetch(database, LIST_PROJECTS, values))
    show(found, _table, _fields, as_json=as_json)


@app.command("show", epilog=EXIT_CODES_HELP)
def show_project(name: Name, as_json: AsJson = False, data: Data = None) -> None:
    """Show a project, its policy, and what it uses of its quotas."""
    project, quotas = run(data, lambda database: _with_quotas(database, name, data))
    show(
        project,
        lambda project: f"{_text(project)}\n\n{_quota_table(quotas)}",
        lambda project: _fields(project) | {"quotas": quotas},
        as_json=as_json,
    )


@app.command("set", epilog=EXIT_CODES_HELP)
@with_groups
def set_project(
    *,
    name: Name,
    new_name: Annotated[str | None, typer.Option("--name", help="Its new name.")] = None,
    changes: Changes,
    no_routes: Annotated[
        bool, typer.Option("--no-routes", help="The routes of the configuration, as at first.")
    ] = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Change a project. All processes act on it within a second."""
    from features.tenants import service

    fields = changes.fields(new_name, no_routes=no_routes)

    async def change(database: "Connection") -> "ProjectDetails":
        project = await find_project(database, name)
        return await service.change_project(database, project.id, fields, operator())

    _store(change, fields, "another project has the name", as_json, data)


@app.command("delete", epilog=EXIT_CODES_HELP)
def delete_project(name: Name, data: Data = None) -> None:
    """Make all keys of a project invalid, for ever, and cancel its open responses.

    What it has stored is deleted when its retention ends.
    """
    from features.tenants import service

    async def delete(database: "Connection") -> "ProjectDetails":
        project = await find_project(database, name)
        try:
            return await service.archive_project(database, project, operator())
        except service.DefaultProject:
            raise RequestRefused("the project default cannot be deleted") from None

    deleted = run(data, delete)
    print_status(f"the project {deleted.name} is deleted; workers cancel its open responses")


def _store(
    change: "Callable[[Connection], Awaitable[ProjectDetails]]",
    fields: "ProjectFields",
    name_taken: str,
    as_json: bool,
    data: Data,
) -> None:
    """Creates or changes a project, and shows it. `name_taken`: the error if another one has its
    name."""
    from features.tenants.service import NameTaken
    from models.projects.changes import MAX_NAME, BadPolicy, is_name

    async def checked(database: "Connection") -> "ProjectDetails":
        if fields.name is not None and not is_name(fields.name):
            raise RequestRefused(f"a name has 1 to {MAX_NAME} characters that can be printed")
        try:
            return await change(database)
        except NameTaken:
            raise RequestRefused(name_taken) from None
        except BadPolicy as bad:
            raise RequestRefused(f"the policy is wrong: {bad}") from bad

    project = run(data, checked)
    show(project, _text, _fields, as_json=as_json)
    _warn_of_unconfigured(project.policy)


async def find_project(database: "Connection", name: str) -> "ProjectDetails":
    """The project of this name, id or beginning of an id. Raises RequestRefused."""
    from models.db.database import fetch
    from models.db.queries.organization import FIND_PROJECTS
    from models.projects.changes import MAX_NAME

    digits = id_prefix(name.removeprefix("proj_"))
    found = await fetch(database, FIND_PROJECTS, {"name": name, "digits": digits})
    if not found:
        raise RequestRefused(
            f"there is no project {clean(name[:MAX_NAME])}; `backburner projects list` lists them, "
            "`backburner projects create` makes one"
        )
    if found[0].name != name and len(found) > 1:
        raise RequestRefused(f"{clean(name)} is the beginning of several projects' ids")
    return found[0]


async def _with_quotas(
    database: "Connection", name: str, data: Path | None
) -> "tuple[ProjectDetails, list[QuotaUse]]":
    """A project, and what it uses of its quotas. `data`: of the servers. The limits of projects
    without own quotas are those of the configuration here."""
    from cli.settings import NO_DATABASE, child_settings
    from features.tenants.quota_uses import quota_limits, quota_uses
    from models.config.groups import CacheSettings, QuotaSettings
    from models.projects.policy import ProjectPolicy
    from models.redis.client import redis_client

    row = await find_project(database, name)
    own, settings = ProjectPolicy.from_json(row.policy).quotas, _settings_here()
    if settings is None:
        limits = quota_limits(QuotaSettings(), CacheSettings(), own)
    else:
        limits = quota_limits(settings.quotas, settings.cache, own)
    address, redis = resolve_redis_url(data), None
    if address is not None:
        redis = redis_client(child_settings(NO_DATABASE, address), "operator")
    try:
        return row, await quota_uses(database, redis, row.id, limits, counts_unlimited=True)
    finally:
        if redis is not None:
            await redis.aclose()


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter("--policy must be a JSON object") from error
    if not isinstance(value, dict):
        raise typer.BadParameter("--policy must be a JSON object")
    return value


def _routes(options: list[str]) -> dict[str, Any]:
    """The routes of options such as `gpt-*=cloud-a,local` and `fast=cloud-a:gpt-5-mini`."""
    from models.projects.changes import BadPolicy, parse_routes

    try:
        return parse_routes(options)
    except BadPolicy as bad:
        raise typer.BadParameter(f"--route: {bad.message}") from None


def _warn_of_unconfigured(policy: dict[str, Any]) -> None:
    """Prints a line if routes of this policy name upstreams that the configuration of this
    environment does not have. Nothing if it has no upstream, or mistakes."""
    from models.config.routes import Routes
    from models.projects.policy import ProjectPolicy, unconfigured_upstreams

    own = ProjectPolicy.from_json(policy).routes
    settings = None if own is None else _settings_here()
    if own is None or settings is None:
        return
    upstreams = Routes(settings).upstreams
    if not any(upstream.base_url for upstream in upstreams.values()):
        return
    if names := ", ".join(map(clean, unconfigured_upstreams(own, upstreams))):
        print_status(
            f"Warning: the configuration here has no upstream {names}. Requests that only such an "
            "upstream serves get 503 upstream_not_configured."
        )


def _settings_here() -> "Settings | None":
    """The settings of this environment; None if they have mistakes."""
    from cli.settings import configured_settings
    from models.config.config_file import BadSettings

    try:
        return configured_settings()
    except BadSettings:
        return None


def _fields(project: "ProjectDetails") -> Fields:
    return fields_of(project, "id name created_at archived_at weight policy")


def _table(projects: Sequence["ProjectDetails"]) -> str:
    """One line per project."""

    def row(project: "ProjectDetails", short: bool) -> tuple[str, ...]:
        return (
            clean(project.name),
            str(project.id)[:_SHORT_ID] if short else str(project.id),
            format_date(project.created_at),
            str(project.weight),
            _archived(project),
            clean(json.dumps(project.policy)) if project.policy else "",
        )

    head = ("NAME", "ID", "CREATED", "WEIGHT", "STATE", "POLICY")
    empty = "there is no project; `backburner projects create NAME` makes one"
    return fitted_table(projects, head, row, ["NAME"], empty=empty)


def _text(project: "ProjectDetails") -> str:
    """A project in several lines."""
    created, policy = format_date(project.created_at), "as the settings"
    if project.policy:
        policy = json.dumps(project.policy, indent=2)
    lines = [
        f"{clean(project.name)}  {project.id}",
        f"  {_archived(project)}, created {created}, weight {project.weight}",
        f"  policy {policy}",
    ]
    return "\n".join(lines)


def _quota_table(quotas: Sequence["QuotaUse"]) -> str:
    """A line for each quota."""
    rows = [
        (
            quota.name,
            "-" if quota.used is None else f"{quota.used:,}",
            "no limit" if quota.limit is None else f"{quota.limit:,}",
        )
        for quota in quotas
    ]
    return table(("QUOTA", "USED", "LIMIT"), rows)


def _archived(project: "ProjectDetails") -> str:
    if project.archived_at is None:
        return paint("active", GREEN)
    return paint(f"archived {format_date(project.archived_at)}", GREY)
