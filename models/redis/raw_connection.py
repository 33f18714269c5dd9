"""A connection of redis-py below its commands, which is opened again after an error: packed
commands out, replies in, and subscriptions.

redis-py connects, logs in and asks Sentinel. But its pub/sub client takes 15 µs for a message, and
its pipelines take four times as long for a command as packing it. Each delta is one message and one
command. Here one read returns all replies that have arrived: 3.5 µs for each of twenty.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import hiredis
import structlog
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from models.redis.client import REDIS_ERRORS, REDIS_TIMEOUT
from models.tasks import IdleTimeout

_READ_BYTES = 256 * 1024
"""Bytes that one read takes from the socket's buffer at most."""


class RawConnection:
    """One connection. Every method but `abort` raises one of REDIS_ERRORS if it is lost."""

    def __init__(self, connection: AbstractConnection) -> None:
        """`connection`: connected, with no reply outstanding."""
        self._connection = connection
        self._parser = hiredis.Reader()

    @classmethod
    async def open(cls, redis: Redis) -> "RawConnection":
        """Connects as this client would. The caller limits the time."""
        connection = redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        await connection.connect()
        return cls(connection)

    def write(self, commands: Iterable[bytes]) -> None:
        """Sends packed commands. Does not wait until the network has taken them."""
        writer = self._connection._writer  # noqa: SLF001
        if writer is None:
            raise RedisConnectionError("The connection to Redis is closed.")
        writer.write(b"".join(commands))

    async def read(self) -> list[Any]:
        """Waits for replies, and returns all that have arrived: at least one."""
        replies: list[Any] = []
        while not replies:
            stream = self._connection._reader  # noqa: SLF001
            data = await stream.read(_READ_BYTES) if stream is not None else b""
            if not data:
                raise RedisConnectionError("Redis has closed the connection.")
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not False:
                if isinstance(reply, hiredis.ReplyError):
                    raise RedisConnectionError(str(reply))
                replies.append(reply)
        return replies

    async def abort(self) -> None:
        """Closes the connection at once. What is still buffered for a hung Redis is dropped."""
        writer = self._connection._writer  # noqa: SLF001
        if writer is not None:
            writer.transport.abort()
        with contextlib.suppress(*REDIS_ERRORS):
            await self._connection.disconnect(nowait=True)


def pack(*words: bytes) -> bytes:
    """A command as RESP."""
    # Its stub declares a tuple of one word.
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return packed


logger = structlog.get_logger()

_CONNECT_TIMEOUT = 2 * REDIS_TIMEOUT
"""Seconds until there is a connection, or a subscription is confirmed."""
_PAUSE = 0.5
_PINGS = 2.5
"""Pings in the time after which a silent connection is taken as lost."""
_PING = pack(b"PING")


async def stay_connected(
    redis: Redis,
    use: Callable[[RawConnection], Awaitable[None]],
    event: str,
    *,
    pause: float = _PAUSE,
    ended: asyncio.Event | None = None,
    **facts: str,
) -> None:
    """Connects and awaits `use(connection)`, which raises one of REDIS_ERRORS if the connection is
    lost; `pause` seconds later it does so again, until `ended` is set. `event`, with `facts`: what
    is logged then."""
    ended = ended or asyncio.Event()
    while not ended.is_set():
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                connection = await RawConnection.open(redis)
            try:
                await use(connection)
            finally:
                await connection.abort()
        except REDIS_ERRORS as error:
            logger.warning(event, **facts, error=repr(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await ended.wait()


async def subscribe(connection: RawConnection, channel: str) -> Iterable[Any]:
    """Subscribes a new connection to a channel. Returns the confirmation, and what came with it.
    Raises TimeoutError if none comes."""
    connection.write([pack(b"SUBSCRIBE", channel.encode())])
    async with asyncio.timeout(_CONNECT_TIMEOUT):
        return await connection.read()


async def listen(connection: RawConnection, receive: Callable[[Any], None], silence: float) -> None:
    """Calls `receive` with each reply on a connection with subscriptions: a list of bytes, or the
    bytes of a PONG. Raises TimeoutError after so many seconds without a reply."""
    pings = asyncio.create_task(_keep_pinging(connection, silence / _PINGS))
    loop, idle_timeout = asyncio.get_running_loop(), IdleTimeout()
    try:
        with idle_timeout.extend():
            while True:
                idle_timeout.set_deadline(loop.time() + silence)
                for reply in await connection.read():
                    receive(reply)
    finally:
        pings.cancel()


async def _keep_pinging(connection: RawConnection, interval: float) -> None:
    try:
        while True:
            await asyncio.sleep(interval)
            connection.write([_PING])
    except REDIS_ERRORS as error:
        # `listen` sees that no reply arrives.
        logger.info("redis_ping_failed", error=str(error))
