"""Publishes stored frames to Redis. Nothing waits for Redis; readers can always read the log."""

import asyncio
from collections.abc import Sequence

from redis.asyncio import Redis

from models.redis.channels import event_server
from models.redis.client import REDIS_TIMEOUT
from models.redis.raw_connection import RawConnection, pack, stay_connected
from models.tasks import IdleTimeout

_MAX_BACKLOG = 16 * 1024 * 1024
"""Bytes that wait for a slow Redis. Beyond it all waiting messages are dropped."""

_BEGIN = pack(b"CLIENT", b"REPLY", b"OFF")
_END = pack(b"CLIENT", b"REPLY", b"ON")
"""Around a batch: Redis replies only to its last command, which confirms all of them."""


class Publisher:
    """Sends messages in order. While one batch is being sent, the next messages gather."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._wake = asyncio.Event()
        self._was_connected = False
        """What is queued from then on is dropped if it waits for another connection."""

    def publish(self, channel: str, payload: bytes) -> None:
        """Queues a message. Never blocks and never raises."""
        if self._bytes > _MAX_BACKLOG:
            self._drop()
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
        """Sends what is queued, and connects again after an error. Never returns."""
        await stay_connected(self._redis, self._send_batches, "redis_unavailable")

    async def _send_batches(self, connection: RawConnection) -> None:
        """Sends batches until an error: TimeoutError if Redis does not confirm one in time."""
        if self._was_connected:
            self._drop()
        self._was_connected = True
        loop, idle_timeout = asyncio.get_running_loop(), IdleTimeout()
        with idle_timeout.extend():
            while True:
                await self._wake.wait()
                self._wake.clear()
                batch, self._waiting, self._bytes = self._waiting, [], 0
                idle_timeout.set_deadline(loop.time() + REDIS_TIMEOUT)
                connection.write([_BEGIN, *batch, _END])
                await connection.read()
                idle_timeout.pause()

    def _drop(self) -> None:
        self._waiting.clear()
        self._bytes = 0


class EventPublisher:
    """Publishes to several Redis servers: each has the channels of its share of the responses."""

    def __init__(self, servers: Sequence[Redis]) -> None:
        """`servers`: in the order of the setting; the first one gets all other commands too."""
        self._publishers = [Publisher(redis) for redis in servers]

    def publish(self, channel: str, payload: bytes) -> None:
        """As `Publisher.publish`."""
        at = event_server(channel, len(self._publishers))
        self._publishers[at].publish(channel, payload)

    def send(self, command: bytes) -> None:
        """As `Publisher.send`."""
        self._publishers[0].send(command)

    async def run(self) -> None:
        """As `Publisher.run`."""
        await asyncio.gather(*(publisher.run() for publisher in self._publishers))
