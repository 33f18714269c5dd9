"""What Redis does when its memory is full, as it says itself."""

from redis.asyncio import Redis
from redis.exceptions import ResponseError

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
