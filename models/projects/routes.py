"""The routes of a project: its own in place of those of the server (docs/projects.md)."""

from uuid import UUID

import structlog

from models.config.routes import Route, Routes, RoutingSettings
from models.ids import PROJECT, admin_id
from models.projects.policy import unconfigured_upstreams

logger = structlog.get_logger()

_MAX_PROJECTS = 10_000
"""Projects whose routes a process keeps. Above it all are forgotten."""


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
