"""The control channel: cancels, heard at once. The heartbeat hears them too, within two seconds, when Redis is away (I10)."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import structlog
from redis.asyncio import Redis

from models.config.settings import Settings
from models.redis.channels import control
from models.redis.client import REDIS_ERRORS

logger = structlog.get_logger()


class ControlListener:
    """Listens for the ids of responses whose cancel has been recorded."""

    def __init__(
        self, settings: Settings, worker_id: UUID, on_cancel: Callable[[UUID], None]
    ) -> None:
        self._url = settings.redis_url.get_secret_value()
        self._channel = control(worker_id)
        self._worker_id = worker_id
        self._on_cancel = on_cancel

    async def run(self) -> None:
        """Listens for ever, reconnecting."""
        while True:
            # A blocking read needs a client without redis-py's default socket timeout; the health check notices a dead connection.
            redis = Redis.from_url(
                self._url,
                client_name=f"control-{self._worker_id.hex}",
                socket_timeout=None,
                socket_connect_timeout=2,
                socket_keepalive=True,
                health_check_interval=5,
            )
            try:
                async with redis.pubsub() as channel:
                    await channel.subscribe(self._channel)
                    async for message in channel.listen():
                        if message["type"] == "message":
                            self._on_cancel(UUID(hex=message["data"].decode()))
            except REDIS_ERRORS as error:
                logger.warning("control_away", error=str(error))
                await asyncio.sleep(0.5)
            finally:
                await redis.aclose()
