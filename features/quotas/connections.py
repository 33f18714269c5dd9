"""The open streams and sockets of this process, by project."""

import asyncio
from collections import Counter
from uuid import UUID

from models.projects.quotas import Quota
from models.redis.quota_counters import CONNECTION_TIME, CountersUnavailable, QuotaCounters

_REPORT_INTERVAL = CONNECTION_TIME / 3


class OpenConnection:
    """A stream or socket of a project with a limit."""

    __slots__ = ("_connections", "_is_open", "_kind", "_project")

    def __init__(self, connections: "OpenConnections", project: UUID, kind: Quota) -> None:
        self._connections = connections
        self._project = project
        self._kind = kind
        self._is_open = True

    def close(self) -> None:
        """It does not count any more. May be called twice."""
        if self._is_open:
            self._is_open = False
            self._connections.remove(self._project, self._kind)


class OpenConnections:
    """Counts them, and reports the counts to the other processes."""

    def __init__(self, counters: QuotaCounters) -> None:
        self._counters = counters
        self._counts: Counter[tuple[UUID, Quota]] = Counter()
        self._changed: set[tuple[UUID, Quota]] = set()
        self._has_changed = asyncio.Event()

    def of(self, project: UUID) -> dict[Quota, int]:
        """How many the project has open here."""
        kinds = (Quota.open_streams, Quota.open_sockets)
        return {kind: self._counts[project, kind] for kind in kinds}

    def add(self, project: UUID, kind: Quota) -> OpenConnection:
        """One more, which the caller closes."""
        self._counts[project, kind] += 1
        return OpenConnection(self, project, kind)

    def remove(self, project: UUID, kind: Quota) -> None:
        """One less."""
        self._counts[project, kind] -= 1
        if not self._counts[project, kind]:
            del self._counts[project, kind]
        self._changed.add((project, kind))
        self._has_changed.set()

    async def run(self) -> None:
        """Reports what was closed at once, and all that is open from time to time: the others
        forget a process that reports nothing. Never returns."""
        while True:
            try:
                async with asyncio.timeout(_REPORT_INTERVAL):
                    await self._has_changed.wait()
            except TimeoutError:
                self._changed.update(self._counts)
            self._has_changed.clear()
            changed, self._changed = self._changed, set()
            for project, kind in changed:
                await self._report(project, kind)

    async def _report(self, project: UUID, kind: Quota) -> None:
        try:
            count = self._counts[project, kind]
            await self._counters.report_connections(project, kind, count)
        except CountersUnavailable:
            self._changed.add((project, kind))
