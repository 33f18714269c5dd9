"""The live bus: frames that are already stored are shown on Redis, in one pipe per batch. Redis may be missing; nobody waits for it."""

import asyncio
import contextlib

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from models.live import PATIENCE

logger = structlog.get_logger()

_BACKLOG = 16 * 1024 * 1024
"""Bytes kept for a slow Redis; beyond it everything waiting is dropped, and readers go to the log."""


class Publisher:
    """Sends what it is given, in order, packed by back-pressure: while one pipe is under way the next one gathers."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: list[tuple[str, bytes]] = []
        self._bytes = 0
        self._wake = asyncio.Event()
        self._away_until = 0.0

    def publish(self, channel: str, payload: bytes) -> None:
        """Queues one message; never blocks and never fails."""
        if self._bytes > _BACKLOG:
            self._waiting.clear()
            self._bytes = 0
        self._waiting.append((channel, payload))
        self._bytes += len(payload)
        self._wake.set()

    async def run(self) -> None:
        """Sends for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._waiting, self._bytes = self._waiting, [], 0
            if loop.time() < self._away_until:
                continue
            try:
                await self._send(batch)
            except (RedisError, OSError, TimeoutError) as error:
                self._away_until = loop.time() + 0.5
                logger.warning("bus_away", error=str(error), dropped=len(batch))
                with contextlib.suppress(RedisError, OSError):
                    await self._redis.connection_pool.disconnect()

    async def _send(self, batch: list[tuple[str, bytes]]) -> None:
        async with asyncio.timeout(PATIENCE):
            if len(batch) == 1:
                await self._redis.publish(*batch[0])
                return
            pipe = self._redis.pipeline(transaction=False)
            for channel, payload in batch:
                pipe.publish(channel, payload)
            await pipe.execute()
