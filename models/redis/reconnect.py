"""A connection to Redis that is opened again after an error, and a subscription on one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import structlog
from redis.asyncio import Redis

from models.deadlines import IdleTimeout
from models.redis.client import REDIS_ERRORS, REDIS_TIMEOUT
from models.redis.raw_connection import RawConnection, pack

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
