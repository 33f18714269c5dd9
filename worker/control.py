"""The control channel: cancels, heard at once. The heartbeat hears them too, within two seconds, when Redis is away (I10)."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import structlog
from redis.asyncio import Redis

from models.config.settings import Settings
from models.redis.channels import control
from models.redis.client import UNHEARD

logger = structlog.get_logger()


class Control:
    """Listens for the ids of responses whose cancel has been recorded."""

    def __init__(self, settings: Settings, me: UUID, cancelled: Callable[[UUID], None]) -> None:
        self._url = settings.redis_url.get_secret_value()
        self._channel = control(me)
        self._me = me
        self._cancelled = cancelled

    async def run(self) -> None:
        """Listens for ever, reconnecting."""
        while True:
            # A blocking read needs a client without redis-py's default socket timeout; the health check notices a dead connection.
            redis = Redis.from_url(
                self._url,
                client_name=f"control-{self._me.hex}",
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
                            self._cancelled(UUID(hex=message["data"].decode()))
            except UNHEARD as error:
                logger.warning("control_away", error=str(error))
                await asyncio.sleep(0.5)
            finally:
                await redis.aclose()
