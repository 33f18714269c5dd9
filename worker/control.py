"""The control channel: Redis delivers cancels at once.

While Redis is unavailable the heartbeat delivers them, within two seconds (I10).
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import structlog

from models.config.settings import Settings
from models.redis.channels import control
from models.redis.client import redis_client
from models.redis.raw_connection import RawConnection
from models.redis.reconnect import listen, stay_connected, subscribe

logger = structlog.get_logger()

_SILENCE = 4.0
"""Seconds without a reply after which the channel is connected again."""


class ControlListener:
    """Receives the ids of responses with a recorded cancel."""

    def __init__(
        self, settings: Settings, worker_id: UUID, on_cancel: Callable[[UUID], None]
    ) -> None:
        self._settings = settings
        self._worker_id = worker_id
        self._on_cancel = on_cancel

    async def run(self) -> None:
        """Listens, and reconnects after an error. Never returns."""
        redis = redis_client(self._settings, f"control-{self._worker_id.hex}", timeout=None)
        try:
            await stay_connected(redis, self._listen, "control_channel_unavailable")
        finally:
            await redis.aclose()

    async def _listen(self, connection: RawConnection) -> None:
        for reply in await subscribe(connection, control(self._worker_id)):
            self._receive(reply)
        await listen(connection, self._receive, _SILENCE)

    def _receive(self, reply: Any) -> None:
        if reply[0] != b"message":
            return
        try:
            response_id = UUID(hex=reply[2].decode())
        except ValueError:
            # Anything may be published to a channel.
            logger.exception("control_message_unreadable")
        else:
            self._on_cancel(response_id)
