"""Publishes stored frames to Redis. Nothing waits for Redis; readers can always read the log."""

import asyncio
import contextlib

import structlog
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from models.redis.client import REDIS_ERRORS, REDIS_TIMEOUT

logger = structlog.get_logger()

_MAX_BACKLOG = 16 * 1024 * 1024
"""Bytes that wait for a slow Redis. Beyond it all waiting messages are dropped."""

_BEGIN = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$3\r\nOFF\r\n"
_END = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$2\r\nON\r\n"
"""Around a batch: Redis replies only to its last command, which confirms all of them."""


class Publisher:
    """Sends messages in order. While one batch is being sent, the next messages gather.

    The commands are packed here and sent on a raw connection of redis-py: its pipelines cost four
    times as much per event.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._connection: AbstractConnection | None = None
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

    async def run(self) -> None:
        """Sends what is queued. Never returns."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                batch, self._waiting, self._bytes = self._waiting, [], 0
                if loop.time() < self._unavailable_until:
                    continue
                try:
                    await self._send(batch)
                except REDIS_ERRORS as error:
                    self._unavailable_until = loop.time() + 0.5
                    logger.warning("redis_unavailable", error=repr(error), dropped=len(batch))
                    await self._disconnect()
        finally:
            await self._disconnect()

    async def _send(self, batch: list[bytes]) -> None:
        async with asyncio.timeout(REDIS_TIMEOUT):
            if self._connection is None:
                self._connection = self._redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
                await self._connection.connect()
            await self._connection.send_packed_command([_BEGIN, *batch, _END], check_health=False)
            await self._connection.read_response()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if (writer := connection._writer) is not None:  # noqa: SLF001
                # `close` would wait forever for a hung Redis to read what is buffered.
                writer.transport.abort()
            with contextlib.suppress(*REDIS_ERRORS):
                await connection.disconnect(nowait=True)
