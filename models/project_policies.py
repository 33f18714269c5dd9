"""The policies of projects, for processes that know only a project's id: the workers."""

import asyncio
from uuid import UUID

import structlog

from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch, fetch_when_available
from models.db.queries.api_keys import FIND_PROJECT
from models.ownership.lease import AccessRevision
from models.projects.policy import DEFAULT_POLICY, ProjectPolicy

logger = structlog.get_logger()

_MAX_PROJECTS = 10_000
"""Above it all are forgotten."""


class ProjectPolicies:
    """Reads each project once, and again after a change of any project or key.

    Runs that ask at the same moment share one statement. A change is effective within one heartbeat
    (models/ownership/lease.py).
    """

    def __init__(self, pool: Pool, revision: AccessRevision) -> None:
        self._pool = pool
        self._current: dict[UUID, ProjectPolicy] = {}
        self._outdated: dict[UUID, ProjectPolicy] = {}
        """As they were before the last change."""
        self._lookups: dict[UUID, asyncio.Task[ProjectPolicy]] = {}
        revision.watch(self._forget)

    async def policy(self, project: UUID) -> ProjectPolicy:
        """The policy of this project. While Postgres is unavailable, the last one that was known,
        or it waits."""
        known = self._current.get(project)
        if known is not None:
            return known
        lookup = self._lookups.get(project)
        if lookup is None:
            lookup = self._lookups[project] = asyncio.create_task(self._look_up(project))
        # A run that is stopped ends its own wait only.
        return await asyncio.shield(lookup)

    def _forget(self) -> None:
        """A project or key was changed. What is being read now may be older."""
        if len(self._outdated) > _MAX_PROJECTS:
            self._outdated.clear()
        self._outdated |= self._current
        self._current = {}
        self._lookups = {}

    async def _look_up(self, project: UUID) -> ProjectPolicy:
        current, lookups = self._current, self._lookups
        try:
            policy = current[project] = await self._read(project)
        finally:
            lookups.pop(project, None)
        return policy

    async def _read(self, project: UUID) -> ProjectPolicy:
        values = {"id": project}
        outdated = self._outdated.get(project)
        if outdated is None:
            rows = await fetch_when_available(self._pool, FIND_PROJECT, values)
        else:
            try:
                rows = await fetch(self._pool, FIND_PROJECT, values)
            except DATABASE_UNAVAILABLE as error:
                logger.warning("project_policy_not_read", error=str(error).strip())
                return outdated
        return rows[0].policy if rows else DEFAULT_POLICY
