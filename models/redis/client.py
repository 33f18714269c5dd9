"""Redis for short commands, from either side."""

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from models.config.settings import Settings

REDIS_ERRORS = (RedisError, OSError, TimeoutError, RuntimeError)
"""What a command raises when Redis is away or the connection is gone. RuntimeError is how uvloop refuses to write to a transport that was
closed a moment ago."""

REDIS_TIMEOUT = 1.0
"""Seconds without an answer after which we go on without Redis."""


def redis_client(settings: Settings, name: str, timeout: float = REDIS_TIMEOUT) -> Redis:
    """A client that takes `patience` seconds to connect or to be answered, and does not retry by itself. Not for blocking reads."""
    return Redis.from_url(
        settings.redis_url.get_secret_value(),
        client_name=name,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
    )
