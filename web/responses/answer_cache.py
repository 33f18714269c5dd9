"""Which question a request asks, and whether its answer is remembered (docs/cache.md)."""

import hashlib
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from models.config.routes import Routes
from models.config.settings import Settings
from models.db.database import Pool, read
from models.db.queries import statements
from models.redis.answer_cache import AnswerCache, CachedAnswer
from models.secrets import Sealer
from models.wire.checks import integer
from models.wire.request import CreateRequest
from web.counters import CACHE_LOOKUPS
from web.responses.continuation import Continuation

_EXCLUDED_FROM_KEY = frozenset(
    ("metadata", "user", "safety_identifier", "prompt_cache_key", "stream_options")
)
"""Parameters that no answer depends on."""


@dataclass(frozen=True, slots=True)
class CacheLookup:
    """What the cache said of one request."""

    key: bytes | None = None
    """None: its answer can neither be remembered nor found"""
    ttl: int | None = None
    """for which its answer is to be remembered, in seconds; None: not at all"""
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
"""Of a request for which the model is not to be asked."""


class RequestCache:
    """One web process's use of the remembered answers."""

    def __init__(self, settings: Settings, pool: Pool, cache: AnswerCache) -> None:
        self._settings = settings.cache
        self._pool = pool
        self._cache = cache
        self._routes = Routes(settings)
        self._sealer = Sealer(settings.sealing_keys)

    async def lookup(
        self, project: UUID, request: CreateRequest, continuation: Continuation
    ) -> CacheLookup:
        """Looks for the answer, if the request asks for that. Raises InvalidRequest for a `ttl` that is longer than allowed."""
        if request.cache is None:
            return NO_LOOKUP
        longest = int(self._settings.longest_ttl.total_seconds())
        ttl = (
            int(self._settings.ttl.total_seconds())
            if request.cache.ttl is None
            else request.cache.ttl
        )
        integer(1, longest)(ttl, "cache.ttl")
        key = await self._key(project, request, continuation)
        answer = await self._cache.find(project, key) if key is not None else None
        CACHE_LOOKUPS.labels("miss" if answer is None else "hit").inc()
        return CacheLookup(key, ttl if answer is None and key is not None else None, answer)

    async def _key(
        self, project: UUID, request: CreateRequest, continuation: Continuation
    ) -> bytes | None:
        """A digest of all that the answer depends on. None where a part of the history is deleted: such a response fails when it is run."""
        values = {
            "id": continuation.previous,
            "conversation": continuation.conversation,
            "items": orjson.dumps(request.input).decode(),
        }
        history = (await read(self._pool, statements.HISTORY_DIGEST, values))[0]
        if history["broken"]:
            return None
        question: dict[str, Any] = {
            "project": project.hex,
            "model": request.model,
            "served_by": [
                (each.upstream.name, each.upstream.base_url, each.model)
                for each in self._routes.find(request.model)
            ],
            "said": history["digest"].hex(),
            # In the order in which they came: of a schema's keys the model makes something, of the parameters' own it does not.
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
