"""Measures how much a project stores."""

import asyncio
import time
from uuid import UUID

import structlog

from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch_idempotent
from models.db.queries.quotas import STORED_IN_CONVERSATIONS, STORED_WITH_RESPONSES
from models.redis.quota_counters import CountersUnavailable, QuotaCounters

logger = structlog.get_logger()

_PAUSE_FACTOR = 4
"""The pause after a statement is so many times as long as it took."""


class ProjectStorage:
    """Measures one project after another, in small steps."""

    def __init__(self, pool: Pool, counters: QuotaCounters) -> None:
        self._pool = pool
        self._counters = counters
        self._one_at_a_time = asyncio.Lock()

    async def measure(self, project: UUID) -> None:
        """Measures the project and reports the sum. If Postgres or Redis is away, it is measured
        some minutes later."""
        stored = await self.measured(project)
        if stored is not None:
            try:
                await self._counters.set_stored(project, stored)
            except CountersUnavailable as error:
                self._log_unmeasured(project, error)

    async def measured(self, project: UUID) -> int | None:
        """How many bytes the project stores. None if Postgres is away."""
        try:
            async with self._one_at_a_time:
                return await self._stored_bytes(project)
        except DATABASE_UNAVAILABLE as error:
            self._log_unmeasured(project, error)
            return None

    @staticmethod
    def _log_unmeasured(project: UUID, error: Exception) -> None:
        logger.info("storage_not_measured", project=str(project), error=str(error).strip())

    async def _stored_bytes(self, project: UUID) -> int:
        values = {"project": project, "after": UUID(int=0)}
        [stored] = await fetch_idempotent(self._pool, STORED_IN_CONVERSATIONS, values)
        while True:
            started_at = time.monotonic()
            [part] = await fetch_idempotent(self._pool, STORED_WITH_RESPONSES, values)
            if part.last is None:
                return stored
            stored += part.stored_bytes
            values["after"] = part.last
            await asyncio.sleep(_PAUSE_FACTOR * (time.monotonic() - started_at))
