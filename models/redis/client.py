"""Clients of Redis, or of the primary that Sentinel names, the options of their connections, and
what Redis does when its memory is full."""

import socket
from typing import Any
from urllib.parse import quote

import redis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry as BlockingRetry

from models.config.settings import Settings
from models.config.values import SentinelAddress

REDIS_ERRORS = (RedisError, OSError, TimeoutError, RuntimeError)
"""What a command raises if Redis is unavailable or the connection is closed. uvloop raises
RuntimeError for a write to a transport that was closed a moment ago."""

REDIS_TIMEOUT = 1.0
"""Seconds after which a command without a reply fails."""

_KEEPALIVE_SECONDS = 11
_KEEPALIVE = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    # Milliseconds. Keepalives are not sent while written bytes wait for their confirmation.
    "TCP_USER_TIMEOUT": 1000 * _KEEPALIVE_SECONDS,
}
KEEPALIVE_OPTIONS = {
    getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
}
"""TCP options for `socket_keepalive_options`: a connection that the network has lost ends after
11 s. A peer that confirms bytes and never replies is noticed only by the time limit of a reply."""


_OF_ALL_CONNECTIONS = {
    # By default each new connection looks up redis-py's version among the installed packages, and
    # asks for notifications that only a commercial product sends. Both together took longer than
    # the connection itself, in the event loop.
    "driver_info": DriverInfo(lib_version=redis.__version__),
    "maint_notifications_config": MaintNotificationsConfig(enabled=False),
}


class _SentinelRedis(Redis):
    """A client of the primary that Sentinel names. Each new connection asks for it."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Closes the connections, those to the Sentinels too."""
        pool = self.connection_pool
        await super().aclose(close_connection_pool)
        if isinstance(pool, SentinelConnectionPool):
            await pool.sentinel_manager.aclose()


def redis_client(
    settings: Settings, name: str, timeout: float | None = REDIS_TIMEOUT, *, server: int = 0
) -> Redis:
    """A client for a server of `event_servers`, by default `redis_url`, whose connects and commands
    fail after `timeout` seconds, without retries. With None the caller limits its commands; a
    connect takes at most REDIS_TIMEOUT.

    `name` is the name of the connection in Redis.
    """
    url = settings.event_servers[server]
    options: dict[str, Any] = {
        "client_name": name,
        "socket_timeout": timeout,
        "socket_connect_timeout": REDIS_TIMEOUT if timeout is None else timeout,
        "socket_keepalive_options": KEEPALIVE_OPTIONS,
        "retry": Retry(NoBackoff(), 0),
        **_OF_ALL_CONNECTIONS,
    }
    address = SentinelAddress.parse(url)
    if address is None:
        return Redis.from_url(url, **options)
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        address.sentinels,
        sentinel_kwargs=_sentinel_options(address) | {"retry": Retry(NoBackoff(), 0)},
        db=address.database,
        username=address.username,
        password=address.password,
        **options,
    )
    client: Redis = sentinel.master_for(address.master, redis_class=_SentinelRedis)
    return client


def broker_of(settings: Settings) -> tuple[str, dict[str, Any]]:
    """The URL and the transport options with which Celery connects to Redis."""
    url = settings.redis_url.get_secret_value()
    address = SentinelAddress.parse(url)
    if address is None:
        return url, {}
    user = f"{quote(address.username or '', '')}:{quote(address.password or '', '')}@"
    credentials = user if address.username or address.password else ""
    urls = ";".join(
        f"sentinel://{credentials}{host}:{port}/{address.database}"
        for host, port in address.sentinels
    )
    return urls, {
        "master_name": address.master,
        "sentinel_kwargs": _blocking_sentinel_options(address),
    }


def _blocking_sentinel_options(address: SentinelAddress) -> dict[str, Any]:
    return _sentinel_options(address) | {"retry": BlockingRetry(NoBackoff(), 0)}


def _sentinel_options(address: SentinelAddress) -> dict[str, Any]:
    """For connections to a Sentinel. The caller adds `retry`: by default one that does not answer
    is asked for many seconds before the next."""
    return {
        "password": address.sentinel_password,
        "socket_timeout": REDIS_TIMEOUT,
        "socket_connect_timeout": REDIS_TIMEOUT,
    }


_SAFE_POLICIES = frozenset(("noeviction", "volatile-ttl", "volatile-lru", "volatile-lfu"))
"""They evict no queue: of our keys only those of the answer cache and of quotas have an expiry.
With volatile-ttl the cache is evicted first; what quotas lose is counted anew."""


async def memory_problem(redis: Redis) -> str | None:
    """What an operator should change; None: nothing, or this Redis does not show its settings.

    Raises what REDIS_ERRORS names.
    """
    try:
        facts = await redis.info("memory")
    except ResponseError:
        return None
    policy = facts.get("maxmemory_policy")
    if facts.get("maxmemory") == 0:
        return "maxmemory is not set: a full Redis is killed with its queues"
    if policy is not None and policy not in _SAFE_POLICIES:
        return f"maxmemory-policy {policy} evicts queues: set volatile-ttl"
    return None
