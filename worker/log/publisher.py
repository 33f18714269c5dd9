"""Publishes stored frames to Redis. Nothing waits for Redis; readers can always read the log."""

import asyncio

import structlog
from redis.asyncio import Redis

from models.deadlines import IdleTimeout
from models.redis.client import REDIS_ERRORS, REDIS_TIMEOUT
from models.redis.raw_connection import RawConnection, pack

logger = structlog.get_logger()

_MAX_BACKLOG = 16 * 1024 * 1024
"""Bytes that wait for a slow Redis. Beyond it all waiting messages are dropped."""
_PAUSE = 0.5
"""Seconds after an error during which messages are dropped at once."""

_BEGIN = pack(b"CLIENT", b"REPLY", b"OFF")
_END = pack(b"CLIENT", b"REPLY", b"ON")
"""Around a batch: Redis replies only to its last command, which confirms all of them."""


class Publisher:
    """Sends messages in order. While one batch is being sent, the next messages gather."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._connection: RawConnection | None = None
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._wake = asyncio.Event()
        self._unavailable_until = 0.0

    def publish(self, channel: str, payload: bytes) -> None:
        """Queues a message. Never blocks and never raises."""
        if self._bytes > _MAX_BACKLOG:
            self._waiting.clear()
            self._bytes = 0
        name = channel.encode()
        self._waiting.append(
            b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
            % (len(name), name, len(payload), payload)
        )
        self._bytes += len(payload)
        self._wake.set()

    def send(self, command: bytes) -> None:
        """Queues a packed command whose reply nobody needs. Never blocks and never raises."""
        self._waiting.append(command)
        self._bytes += len(command)
        self._wake.set()

    async def run(self) -> None:
        """Sends what is queued. Never returns."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    await self._send_batches()
                except REDIS_ERRORS as error:
                    self._unavailable_until = loop.time() + _PAUSE
                    logger.warning("redis_unavailable", error=repr(error))
                    await self._disconnect()
        finally:
            await self._disconnect()

    async def _send_batches(self) -> None:
        """Sends batches until an error: TimeoutError if Redis does not confirm one in time."""
        loop = asyncio.get_running_loop()
        idle_timeout = IdleTimeout()
        with idle_timeout.extend():
            while True:
                await self._wake.wait()
                self._wake.clear()
                batch, self._waiting, self._bytes = self._waiting, [], 0
                if loop.time() >= self._unavailable_until:
                    idle_timeout.set_deadline(loop.time() + REDIS_TIMEOUT)
                    await self._send(batch)
                    idle_timeout.pause()

    async def _send(self, batch: list[bytes]) -> None:
        if self._connection is None:
            self._connection = await RawConnection.open(self._redis)
        self._connection.write([_BEGIN, *batch, _END])
        await self._connection.read()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.abort()
