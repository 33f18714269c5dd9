"""The cache of answers in Redis, by the exact question (docs/cache.md).

Redis may be lost, flushed, full or hung at any moment (I8): that is a miss. A command takes at most
`CacheSettings.patience`; after a failure Redis is not used for a while.

Each project has a share of a number and of bytes (ADR 0039). Its answers are listed by their expiry
and with their sizes in two keys more. Scripts keep these consistent; if Redis evicts one of them,
the count begins again.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import orjson
import structlog
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from models.config.settings import Settings
from models.redis.channels import cache_redis_key, cache_share_keys
from models.redis.client import REDIS_ERRORS, redis_client
from models.secrets import NoKey, Sealer, Unreadable
from models.wire.events import Item
from models.wire.pairing import is_call

logger = structlog.get_logger()

_RETRY_AFTER = 2.0
"""Seconds without commands after a failed one."""

_DROP = """
local function drop(name)
  local size = redis.call('HGET', KEYS[3], name)
  if size then
    redis.call('HDEL', KEYS[3], name)
    redis.call('HINCRBY', KEYS[3], 'total', -size)
  end
  redis.call('ZREM', KEYS[2], name)
end
"""
_STORE = (
    _DROP
    + """
local ttl, most, most_bytes, longest_ttl = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local now = redis.call('TIME')[1]
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do drop(name) end
drop(KEYS[1])
local function is_full()
  local total = redis.call('HGET', KEYS[3], 'total') or 0
  return redis.call('ZCARD', KEYS[2]) >= tonumber(most) or total + #ARGV[1] > tonumber(most_bytes)
end
while is_full() do
  local first = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if not first then redis.call('DEL', KEYS[3]) break end
  redis.call('DEL', first)
  drop(first)
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ttl)
redis.call('ZADD', KEYS[2], now + ttl, KEYS[1])
redis.call('HSET', KEYS[3], KEYS[1], #ARGV[1])
redis.call('HINCRBY', KEYS[3], 'total', #ARGV[1])
redis.call('EXPIRE', KEYS[2], longest_ttl)
redis.call('EXPIRE', KEYS[3], longest_ttl)
"""
)
"""Stores an answer. Those of the project that would expire first make room for it."""
_DELETE = _DROP + "redis.call('DEL', KEYS[1]) drop(KEYS[1])"

_MODEL_ITEMS: Final = frozenset(("message", "reasoning"))


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """The output of a completed response, and its usage."""

    output: list[Item]
    usage: dict[str, Any] | None = None
    service_tier: str | None = None

    @property
    def is_cacheable(self) -> bool:
        """Whether only the model made this output. A server tool would have to run again."""
        return all(item["type"] in _MODEL_ITEMS or is_call(item) for item in self.output)


class AnswerCache:
    """The cache as one process uses it.

    Values are sealed if the deployment has a key, because Redis writes them to disk.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        """`name`: the name of the connection in Redis."""
        self._settings = settings.cache
        self._redis: Redis = redis_client(settings, name, self._settings.patience.total_seconds())
        self._sealer = Sealer(settings.sealing_keys)
        self._unavailable_until = 0.0

    async def find(self, project: UUID, key: bytes) -> CachedAnswer | None:
        """The answer under this key; None if there is none, or if Redis fails."""
        value = await self._execute_if_available("GET", cache_redis_key(key))
        if not isinstance(value, bytes):
            return None
        entry = self._decode(project, value)
        if entry is None or entry.get("key") != key.hex():
            return None
        return CachedAnswer(entry["output"], entry["usage"], entry["service_tier"])

    async def store(
        self,
        project: UUID,
        key: bytes,
        ttl: int,
        answer: CachedAnswer,
        project_bytes: int | None = None,
    ) -> None:
        """Stores the answer for `ttl` seconds, unless it is too large or not cacheable.
        `project_bytes`: most bytes of the project's answers; None: as the settings say."""
        if not answer.is_cacheable:
            return
        entry = {
            "key": key.hex(),
            "output": answer.output,
            "usage": answer.usage,
            "service_tier": answer.service_tier,
        }
        try:
            value = self._sealer.seal_token("cache", project, entry).encode()
        except NoKey:
            value = orjson.dumps(entry)
        settings = self._settings
        share = project_bytes or settings.project_bytes
        if len(value) > min(settings.value_bytes, share):
            return
        longest = int(settings.longest_ttl.total_seconds())
        limits = (settings.project_answers, share, longest)
        names = _redis_keys(project, key)
        await self._execute_if_available("EVAL", _STORE, len(names), *names, value, ttl, *limits)

    async def delete(self, project: UUID, key: bytes) -> None:
        """Deletes the answer, and tries that also right after a failure. If Redis fails, the answer
        stays until it expires."""
        names = _redis_keys(project, key)
        await self._execute("EVAL", _DELETE, len(names), *names)

    async def close(self) -> None:
        """Closes the connections."""
        with contextlib.suppress(*REDIS_ERRORS):
            await self._redis.aclose()

    def _decode(self, project: UUID, value: bytes) -> dict[str, Any] | None:
        """The entry; None if it is damaged. With a key, entries that are not sealed are refused."""
        try:
            entry = (
                orjson.loads(value)
                if not self._sealer.has_key
                else self._sealer.open_token("cache", project, value.decode())
            )
        except (Unreadable, ValueError):
            return None
        return entry if isinstance(entry, dict) else None

    async def _execute_if_available(self, *command: str | bytes | int) -> Any:
        """Executes the command, unless one failed a moment ago."""
        if time.monotonic() < self._unavailable_until:
            return None
        return await self._execute(*command)

    async def _execute(self, *command: str | bytes | int) -> Any:
        try:
            async with asyncio.timeout(self._settings.patience.total_seconds()):
                return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]
        except OutOfMemoryError:
            logger.warning("answer_not_cached", error="Redis has reached its maxmemory")
            return None
        except REDIS_ERRORS as error:
            self._unavailable_until = time.monotonic() + _RETRY_AFTER
            logger.warning("answer_cache_unavailable", error=repr(error))
            return None


def _redis_keys(project: UUID, key: bytes) -> tuple[str, str, str]:
    """The keys of the answer, and of the list and the sizes of the project's answers."""
    return cache_redis_key(key), *cache_share_keys(project)
