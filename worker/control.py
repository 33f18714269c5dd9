"""The control channel: Redis delivers cancels at once.

While Redis is unavailable the heartbeat delivers them, within two seconds (I10).
"""

import asyncio
from collections.abc import Callable
from uuid import UUID

import structlog
from redis.asyncio import Redis

from models.config.settings import Settings
from models.redis.channels import control
from models.redis.client import REDIS_ERRORS, connect_redis

logger = structlog.get_logger()

_RECONNECT_DELAY = 0.5
"""Seconds."""
_PING_INTERVAL = 2.0
"""Seconds without a message after which a ping is sent, and for which its reply is awaited."""


class ControlListener:
    """Receives the ids of responses with a recorded cancel."""

    def __init__(
        self, settings: Settings, worker_id: UUID, on_cancel: Callable[[UUID], None]
    ) -> None:
        self._settings = settings
        self._channel = control(worker_id)
        self._worker_id = worker_id
        self._on_cancel = on_cancel

    async def run(self) -> None:
        """Listens, and reconnects after an error. Never returns."""
        while True:
            redis = self._connect()
            try:
                await self._listen(redis)
            except REDIS_ERRORS as error:
                logger.warning("control_channel_unavailable", error=str(error))
                await asyncio.sleep(_RECONNECT_DELAY)
            finally:
                await redis.aclose()

    def _connect(self) -> Redis:
        """A client without redis-py's default socket timeout, which would end a blocking read."""
        return connect_redis(self._settings, f"control-{self._worker_id.hex}", timeout=None)

    async def _listen(self, redis: Redis) -> None:
        async with redis.pubsub() as channel:
            await channel.subscribe(self._channel)
            is_pinged = False
            while True:
                message = await channel.get_message(timeout=_PING_INTERVAL)
                if message is None and is_pinged:
                    raise TimeoutError("Redis does not reply on the control channel")
                if message is None:
                    await channel.ping()
                is_pinged = message is None
                if message is not None and message["type"] == "message":
                    self._on_cancel(UUID(hex=message["data"].decode()))
