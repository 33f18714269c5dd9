"""The cache of answers: the key of a request, and its lookup (docs/cache.md)."""

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from models.config.groups import CacheSettings
from models.db.database import Pool, fetch_idempotent
from models.db.queries.api_keys import ApiKey
from models.db.queries.history import HISTORY_DIGEST
from models.projects.routes import ProjectRoutes
from models.redis.answer_cache import AnswerCache, CachedAnswer
from models.secrets import Sealer
from models.wire.checks.basic import Integer
from models.wire.request import CreateRequest
from web.counters import CACHE_LOOKUPS
from web.responses.continuation import Continuation

_EXCLUDED_FROM_KEY = frozenset(
    (
        *("background_options", "metadata", "user", "safety_identifier"),
        *("prompt_cache_key", "stream_options"),
    )
)
"""Parameters that do not change the answer."""


@dataclass(frozen=True, slots=True)
class CacheLookup:
    """The result of one lookup."""

    key: bytes | None = None
    """None: the answer cannot be cached"""
    ttl: int | None = None
    """seconds for which the worker caches the answer; None: it does not"""
    answer: CachedAnswer | None = None


NO_LOOKUP = CacheLookup()
_ZERO_USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
WARM_UP = CacheLookup(answer=CachedAnswer([], usage=_ZERO_USAGE))
"""The lookup of a warm-up: an empty answer without a call of the model."""


class RequestCache:
    """Looks requests up in the cache."""

    def __init__(
        self,
        settings: CacheSettings,
        pool: Pool,
        cache: AnswerCache,
        routes: ProjectRoutes,
        sealer: Sealer,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._cache = cache
        self._routes = routes
        self._sealer = sealer

    async def lookup(
        self, key: ApiKey, request: CreateRequest, continuation: Continuation
    ) -> CacheLookup:
        """Looks up the answer if the request has `cache`.

        Raises InvalidRequest for a `ttl` longer than allowed.
        """
        if request.cache is None:
            return NO_LOOKUP
        max_ttl = int(self._settings.longest_ttl.total_seconds())
        ttl = (
            int(self._settings.ttl.total_seconds())
            if request.cache.ttl is None
            else request.cache.ttl
        )
        Integer(1, max_ttl)(ttl, "cache.ttl")
        cache_key = await self._key(key, request, continuation)
        if cache_key is None:
            CACHE_LOOKUPS.labels("miss").inc()
            return NO_LOOKUP
        answer = await self._cache.find(key.project_id, cache_key)
        CACHE_LOOKUPS.labels("miss" if answer is None else "hit").inc()
        return CacheLookup(cache_key, ttl if answer is None else None, answer)

    async def _key(
        self, key: ApiKey, request: CreateRequest, continuation: Continuation
    ) -> bytes | None:
        """A digest of everything that the answer depends on.

        None if a part of the history was deleted: then the response will fail.
        """
        values = {
            "id": continuation.previous,
            "conversation": continuation.conversation,
            "items": orjson.dumps(request.input).decode(),
        }
        history = (await fetch_idempotent(self._pool, HISTORY_DIGEST, values))[0]
        if history.broken:
            return None
        routes = self._routes.of(key.project_id, key.policy.routes)
        question: dict[str, Any] = {
            "project": key.project_id.hex,
            "model": request.model,
            "served_by": [
                (destination.upstream.name, destination.upstream.base_url, destination.model)
                for destination in routes.find(request.model)
            ],
            "said": history.digest.hex(),
            # Keys inside a parameter keep their order: the model sees the order of a schema's keys.
            "parameters": sorted(
                (name, value)
                for name, value in request.parameters.items()
                if name not in _EXCLUDED_FROM_KEY
            ),
            "credentials": self._sealer.fingerprint(request.credentials)
            if request.credentials
            else None,
        }
        if self._sealer.has_key:
            return bytes.fromhex(
                self._sealer.fingerprint(
                    {"asked": hashlib.sha256(orjson.dumps(question)).hexdigest()}
                )
            )
        return hashlib.sha256(orjson.dumps(question)).digest()
