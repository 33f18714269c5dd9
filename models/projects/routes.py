"""The routes of a project: its own in place of those of the server (docs/projects.md, ADR 0059)."""

from collections.abc import Collection
from typing import Annotated, Any
from uuid import UUID

import structlog
from pydantic import AfterValidator, PlainSerializer

from models.config.routes import (
    Route,
    Routes,
    RoutingSettings,
    pattern_problem,
    upstream_name_problem,
)
from models.ids import PROJECT, admin_id

logger = structlog.get_logger()

_MAX_PROJECTS = 10_000
"""Projects whose routes a process keeps. Above it all are forgotten."""


def _check(routes: dict[str, Route]) -> dict[str, Route]:
    for pattern, targets in routes.items():
        for target in targets:
            problem = pattern_problem(pattern, target.model)
            if problem := problem or upstream_name_problem(target.upstream):
                raise ValueError(f"{pattern!r}: {problem}")
    return routes


def _as_written(routes: dict[str, Route]) -> dict[str, list[Any]]:
    """As an operator writes them: an upstream is its name if the model's name is not changed."""
    return {
        pattern: [
            target.upstream if target.model is None else target.model_dump() for target in targets
        ]
        for pattern, targets in routes.items()
    }


def unconfigured_upstreams(own: dict[str, Route] | None, configured: Collection[str]) -> list[str]:
    """The upstreams that a project's routes name and that are not among the configured ones,
    sorted."""
    named = {target.upstream for targets in (own or {}).values() for target in targets}
    return sorted(named.difference(configured))


PolicyRoutes = Annotated[
    dict[str, Route], AfterValidator(_check), PlainSerializer(_as_written, when_used="json")
]
"""Upstreams by pattern, in the form of `[routes]`. The upstreams need not be configured: a policy
is judged where there may be no configuration."""


class ProjectRoutes:
    """The routes of each project, as one process knows them."""

    def __init__(self, settings: RoutingSettings) -> None:
        self._settings = settings
        self.server = Routes(settings)
        """The routes of projects without routes of their own."""
        self._known: dict[UUID, tuple[dict[str, Route], Routes]] = {}

    def of(self, project: UUID, own: dict[str, Route] | None) -> Routes:
        """The routes for this project, whose own routes are `own`."""
        if own is None:
            return self.server
        known = self._known.get(project)
        if known is not None and known[0] == own:
            return known[1]
        routes = Routes(self._settings, own)
        if unconfigured := unconfigured_upstreams(own, self.server.upstreams):
            logger.error(
                "project_upstreams_not_configured",
                project=admin_id(PROJECT, project),
                upstreams=unconfigured,
            )
        if len(self._known) >= _MAX_PROJECTS:
            self._known.clear()
        self._known[project] = own, routes
        return routes
