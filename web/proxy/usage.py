"""What forwarded requests have used, written to the database together."""

import asyncio
from dataclasses import asdict

import structlog

from models.db.database import DATABASE_UNAVAILABLE, Jsonb, Pool, execute
from models.db.queries.api_keys import ApiKey
from models.db.queries.usage import INSERT_PROXIED
from models.wire.proxied_usage import TokenUsage

logger = structlog.get_logger()

_INTERVAL = 1.0
_MAX_WAITING = 100_000
"""Entries that wait while Postgres is unavailable; further ones are dropped."""


class ProxiedUsage:
    """Collects entries of one web process, and writes them once a second. A process that is killed
    loses those of its last second."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: list[dict[str, object]] = []

    def add(self, key: ApiKey, model: str, upstream: str, usage: TokenUsage) -> None:
        """A forwarded request of this key has ended."""
        if len(self._waiting) >= _MAX_WAITING:
            return
        self._waiting.append(
            {
                "project_id": str(key.project_id),
                "api_key_id": str(key.id),
                "model": model,
                "upstream": upstream,
                "service_tier": None,
                "requests": 1,
                **asdict(usage),
            }
        )

    async def run(self) -> None:
        """Writes what was collected. Never returns."""
        while True:
            await asyncio.sleep(_INTERVAL)
            await self.store()

    async def store(self) -> None:
        """Writes what was collected until now. If Postgres is unavailable, it is kept."""
        entries = self._waiting
        if not entries:
            return
        self._waiting = []
        try:
            await execute(self._pool, INSERT_PROXIED, {"entries": Jsonb(entries)})
        except DATABASE_UNAVAILABLE as error:
            # If it was stored and only the answer was lost, it counts twice.
            logger.warning("proxied_usage_not_stored", error=str(error).strip())
            self._waiting = entries + self._waiting
