"""Writes what this worker knows of its upstreams to Redis, for the console."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from redis.asyncio import Redis

from models.redis.client import REDIS_ERRORS
from models.redis.upstream_states import INTERVAL, UpstreamState, write_states


class UpstreamStateWriter:
    """The writer of one worker."""

    def __init__(
        self, redis: Redis, worker: UUID, states: Callable[[], Sequence[UpstreamState]]
    ) -> None:
        self._redis = redis
        self._worker = worker
        self._states = states

    async def run(self) -> None:
        """Writes every few seconds. Never returns. Without Redis the console says so."""
        while True:
            with suppress(*REDIS_ERRORS):
                await write_states(self._redis, self._worker, self._states())
            await asyncio.sleep(INTERVAL)
