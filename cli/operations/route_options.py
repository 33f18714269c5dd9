"""The options of commands for the routes of a project."""

from collections.abc import Sequence
from typing import Any

import typer

from cli.output import clean, print_status


def parse_routes(options: Sequence[str]) -> dict[str, Any]:
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


def warn_of_unconfigured(policy: dict[str, Any]) -> None:
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
