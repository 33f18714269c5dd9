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
from models.redis.channels import cached
from models.redis.client import UNHEARD, live_client
from models.secrets import NoKey, Sealer, Unreadable
from models.wire.events import Item
from models.wire.pairing import is_call

logger = structlog.get_logger()

_LEFT_OUT = 2.0
"""Seconds for which a Redis that did not answer is not asked again."""

_SPOKEN: Final = frozenset(("message", "reasoning"))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a response said in the end, and what that cost."""

    output: list[Item]
    usage: dict[str, Any] | None = None
    service_tier: str | None = None

    @property
    def is_repeatable(self) -> bool:
        """The model alone said it. What tools of ours or of the upstream have done or found is not done or found by saying it again."""
        return all(item["type"] in _SPOKEN or is_call(item) for item in self.output)


class AnswerCache:
    """One process's way to the remembered answers. Values are sealed where the deployment has a key: Redis writes them to disk."""

    def __init__(self, settings: Settings, name: str) -> None:
        """`name`: what Redis calls this connection."""
        self._settings = settings.cache
        self._redis: Redis = live_client(settings, name, self._settings.patience.total_seconds())
        self._sealer = Sealer(settings.sealing_keys)
        self._away_until = 0.0

    async def find(self, project: UUID, key: bytes) -> Answer | None:
        """The answer under this key; None when there is none, or Redis does not say."""
        value = await self._ask("GET", cached(key))
        if not isinstance(value, bytes):
            return None
        kept = self._opened(project, value)
        if kept is None or kept.get("key") != key.hex():
            return None
        return Answer(kept["output"], kept["usage"], kept["service_tier"])

    async def keep(self, project: UUID, key: bytes, ttl: int, answer: Answer) -> None:
        """Remembers the answer for `ttl` seconds, unless it is too large or none that may be said again."""
        if not answer.is_repeatable:
            return
        kept = {
            "key": key.hex(),
            "output": answer.output,
            "usage": answer.usage,
            "service_tier": answer.service_tier,
        }
        try:
            value = self._sealer.token("cache", project, kept).encode()
        except NoKey:
            value = orjson.dumps(kept)
        if len(value) <= self._settings.value_bytes:
            await self._ask("SET", cached(key), value, "EX", ttl)

    async def forget(self, key: bytes) -> None:
        """Takes the answer out, if Redis can be reached; else it goes when its time is over."""
        await self._ask("DEL", cached(key))

    async def close(self) -> None:
        """Gives the connections back."""
        with contextlib.suppress(*UNHEARD):
            await self._redis.aclose()

    def _opened(self, project: UUID, value: bytes) -> dict[str, Any] | None:
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

    async def _ask(self, *command: str | bytes | int) -> Any:
        if time.monotonic() < self._away_until:
            return None
        try:
            async with asyncio.timeout(self._settings.patience.total_seconds()):
                return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]
        except UNHEARD as error:
            self._away_until = time.monotonic() + _LEFT_OUT
            logger.warning("cache_away", error=repr(error))
            return None
