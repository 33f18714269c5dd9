"""The Redis client for short commands."""

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from models.config.settings import Settings

REDIS_ERRORS = (RedisError, OSError, TimeoutError, RuntimeError)
"""What a command raises if Redis is unavailable or the connection is closed. uvloop raises
RuntimeError for a write to a transport that was closed a moment ago."""

REDIS_TIMEOUT = 1.0
"""Seconds after which a command without a reply fails."""


def redis_client(settings: Settings, name: str, timeout: float = REDIS_TIMEOUT) -> Redis:
    """A client whose connects and commands fail after `timeout` seconds, without retries.

    Not for blocking reads. `name` is the name of the connection in Redis.
    """
    return Redis.from_url(
        settings.redis_url.get_secret_value(),
        client_name=name,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
    )
