"""What a project uses of the quotas that are counted only in Redis: for operators (ADR 0040)."""

import math
from collections.abc import Iterator, Mapping
from uuid import UUID

from redis.asyncio import Redis

from models.projects.quotas import WINDOW
from models.redis.channels import cache_share_keys
from models.redis.quota_counters import CONNECTIONS, quota_keys

_RATES = {"requests": "requests_per_minute", "tokens": "tokens_per_minute"}


async def read_counted_uses(
    redis: Redis, project: UUID, limits: Mapping[str, int]
) -> dict[str, int]:
    """Name of a quota -> what is used of it, for those that have a limit, and for the bytes of
    cached answers. Raises what REDIS_ERRORS names."""
    numbers_key, _, _, connections_key = quota_keys(project)
    pipeline = redis.pipeline(transaction=False)
    pipeline.time()
    pipeline.hgetall(numbers_key)
    pipeline.hgetall(connections_key)
    pipeline.hget(cache_share_keys(project)[1], "total")
    clock, numbers, connections, cached = await pipeline.execute()
    now = clock[0] * 1000 + clock[1] // 1000
    uses = {"cache_bytes": int(cached or 0), "stored_bytes": int(numbers.get(b"stored", 0))}
    for name, quota in _RATES.items():
        left = max(0.0, float(numbers.get(name.encode(), 0)) - now) / (WINDOW * 1000)
        uses[quota] = math.ceil(left * limits.get(quota, 0))
    for kind in CONNECTIONS:
        uses[kind.name] = sum(_open(connections, kind.name, now))
    return {name: use for name, use in uses.items() if name == "cache_bytes" or limits.get(name)}


def _open(connections: Mapping[bytes, bytes], kind: str, now: int) -> Iterator[int]:
    """What each web process has open, as far as it has reported it lately."""
    for name, value in connections.items():
        count, _, expires = value.decode().partition(":")
        if name.decode().startswith(f"{kind}:") and int(expires) >= now:
            yield int(count)
