"""Answers that were asked to be remembered (docs/cache.md): in Redis, for a while, found again by the exact question.

Redis may be lost, flushed or hung at any moment: that is a miss. Nobody waits for it longer than `CacheSettings.patience`, and after
one such wait it is left out for a while.
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

from models.config.settings import Settings
from models.redis.channels import cache_redis_key
from models.redis.client import REDIS_ERRORS, redis_client
from models.secrets import NoKey, Sealer, Unreadable
from models.wire.events import Item
from models.wire.pairing import is_call

logger = structlog.get_logger()

_RETRY_AFTER = 2.0
"""Seconds for which a Redis that did not answer is not asked again."""

_MODEL_ITEMS: Final = frozenset(("message", "reasoning"))


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """What a response said in the end, and what that cost."""

    output: list[Item]
    usage: dict[str, Any] | None = None
    service_tier: str | None = None

    @property
    def is_cacheable(self) -> bool:
        """The model alone said it. What tools of ours or of the upstream have done or found is not done or found by saying it again."""
        return all(item["type"] in _MODEL_ITEMS or is_call(item) for item in self.output)


class AnswerCache:
    """One process's way to the remembered answers. Values are sealed where the deployment has a key: Redis writes them to disk."""

    def __init__(self, settings: Settings, name: str) -> None:
        """`name`: what Redis calls this connection."""
        self._settings = settings.cache
        self._redis: Redis = redis_client(settings, name, self._settings.patience.total_seconds())
        self._sealer = Sealer(settings.sealing_keys)
        self._unavailable_until = 0.0

    async def find(self, project: UUID, key: bytes) -> CachedAnswer | None:
        """The answer under this key; None when there is none, or Redis does not say."""
        value = await self._execute("GET", cache_redis_key(key))
        if not isinstance(value, bytes):
            return None
        kept = self._decode(project, value)
        if kept is None or kept.get("key") != key.hex():
            return None
        return CachedAnswer(kept["output"], kept["usage"], kept["service_tier"])

    async def store(self, project: UUID, key: bytes, ttl: int, answer: CachedAnswer) -> None:
        """Remembers the answer for `ttl` seconds, unless it is too large or none that may be said again."""
        if not answer.is_cacheable:
            return
        kept = {
            "key": key.hex(),
            "output": answer.output,
            "usage": answer.usage,
            "service_tier": answer.service_tier,
        }
        try:
            value = self._sealer.seal_token("cache", project, kept).encode()
        except NoKey:
            value = orjson.dumps(kept)
        if len(value) <= self._settings.value_bytes:
            await self._execute("SET", cache_redis_key(key), value, "EX", ttl)

    async def delete(self, key: bytes) -> None:
        """Takes the answer out, if Redis can be reached; else it goes when its time is over."""
        await self._execute("DEL", cache_redis_key(key))

    async def close(self) -> None:
        """Gives the connections back."""
        with contextlib.suppress(*REDIS_ERRORS):
            await self._redis.aclose()

    def _decode(self, project: UUID, value: bytes) -> dict[str, Any] | None:
        """With a key of our own we believe only what was sealed with it."""
        try:
            kept = (
                orjson.loads(value)
                if not self._sealer.has_key
                else self._sealer.open_token("cache", project, value.decode())
            )
        except (Unreadable, ValueError):
            return None
        return kept if isinstance(kept, dict) else None

    async def _execute(self, *command: str | bytes | int) -> Any:
        if time.monotonic() < self._unavailable_until:
            return None
        try:
            async with asyncio.timeout(self._settings.patience.total_seconds()):
                return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]
        except REDIS_ERRORS as error:
            self._unavailable_until = time.monotonic() + _RETRY_AFTER
            logger.warning("cache_away", error=repr(error))
            return None
