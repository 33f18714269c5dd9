"""The commands for projects."""

import json
from typing import Annotated, Any

import typer

from cli.options import AsJson, Data
from cli.output import clean, print_status
from features.operator.connection import EXIT_CODES_HELP, run, show

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


# Commands import when they run, as in cli/main.py.
@app.command("create", epilog=EXIT_CODES_HELP)
def create_project(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    weight: Weight = None,
    retention: Retention = None,
    zero_retention: ZeroRetention = None,
    models: Models = None,
    route: Route = None,
    policy: Policy = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Create a project. `backburner keys create --project NAME` makes its keys."""
    from features.tenants import project_listing as projects
    from features.tenants.service import ProjectFields

    patch = _policy(retention, zero_retention, models, policy)
    fields = ProjectFields(name, weight, patch or None, _routes(route) if route else None)
    project = run(data, lambda database: projects.create_project(database, fields))
    show(project, projects.as_text, as_json=as_json)
    _warn_of_unconfigured(project.policy)


@app.command("list", epilog=EXIT_CODES_HELP)
def list_projects(
    archived: Annotated[
        bool, typer.Option("--archived", help="Also those that were deleted.")
    ] = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the projects."""
    from features.tenants import project_listing as projects

    facts = run(data, lambda database: projects.list_projects(database, include_archived=archived))
    show(facts, projects.as_table, as_json=as_json)


@app.command("show", epilog=EXIT_CODES_HELP)
def show_project(name: Name, as_json: AsJson = False, data: Data = None) -> None:
    """Show a project, its policy, and what it uses of its quotas."""
    from features.tenants import project_listing as projects

    facts = run(data, lambda database: projects.show_project(database, name, data))
    show(facts, projects.with_quotas, as_json=as_json)


@app.command("set", epilog=EXIT_CODES_HELP)
def set_project(
    name: Name,
    new_name: Annotated[str | None, typer.Option("--name", help="Its new name.")] = None,
    weight: Weight = None,
    retention: Retention = None,
    zero_retention: ZeroRetention = None,
    models: Models = None,
    route: Route = None,
    no_routes: Annotated[
        bool, typer.Option("--no-routes", help="The routes of the configuration, as at first.")
    ] = False,
    policy: Policy = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Change a project. All processes act on it within a second."""
    from features.tenants import project_listing as projects
    from features.tenants.service import ProjectFields

    patch = _policy(retention, zero_retention, models, policy)
    if no_routes:
        patch["routes"] = None
    fields = ProjectFields(new_name, weight, patch or None, _routes(route) if route else None)
    project = run(data, lambda database: projects.change_project(database, name, fields))
    show(project, projects.as_text, as_json=as_json)
    _warn_of_unconfigured(project.policy)


@app.command("delete", epilog=EXIT_CODES_HELP)
def delete_project(name: Name, data: Data = None) -> None:
    """Make all keys of a project invalid, for ever, and cancel its open responses.

    What it has stored is deleted when its retention ends.
    """
    from features.tenants import project_listing as projects

    project = run(data, lambda database: projects.delete_project(database, name))
    print_status(f"the project {project.name} is deleted; workers cancel its open responses")


def _policy(
    retention: str | None, zero_retention: bool | None, models: str | None, policy: str | None
) -> dict[str, Any]:
    """The changes of the policy that the options name."""
    changes: dict[str, Any] = {} if policy is None else _json_object(policy)
    if retention is not None:
        changes["retention"] = None if retention == "none" else retention
    if zero_retention is not None:
        changes["zero_retention"] = zero_retention or None
    if models is not None:
        names = [model.strip() for model in models.split(",") if model.strip()]
        changes["models"] = None if models == "none" else names
    return changes


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
    routes = {}
    for option in options:
        pattern, equals, targets = option.partition("=")
        if not equals or not pattern or not targets:
            raise typer.BadParameter("--route must be PATTERN=UPSTREAM")
        routes[pattern] = [_target(target) for target in targets.split(",")]
    return routes


def _target(text: str) -> str | dict[str, str]:
    upstream, colon, model = text.partition(":")
    return {"upstream": upstream, "model": model} if colon else upstream


def _warn_of_unconfigured(policy: dict[str, Any]) -> None:
    """Prints a line if routes of this policy name upstreams that the configuration of this
    environment does not have. Nothing if it has no upstream, or mistakes."""
    from cli.settings import configured_settings
    from models.config.config_file import BadSettings
    from models.config.routes import Routes
    from models.projects.policy import ProjectPolicy
    from models.projects.policy_routes import unconfigured_upstreams

    own = ProjectPolicy.from_json(policy).routes
    if own is None:
        return
    try:
        settings = configured_settings()
    except BadSettings:
        return
    upstreams = Routes(settings).upstreams
    if not any(upstream.base_url for upstream in upstreams.values()):
        return
    if names := ", ".join(map(clean, unconfigured_upstreams(own, upstreams))):
        print_status(
            f"Warning: the configuration here has no upstream {names}. Requests that only such an "
            "upstream serves get 503 upstream_not_configured."
        )
