"""Authentication: `Authorization: Bearer <key>` becomes a project.

A dependency of every route under /v1.
"""

import asyncio
import hmac
import time
from typing import Annotated
from uuid import UUID

from fastapi import Depends, FastAPI
from starlette.requests import HTTPConnection

from models.db.database import Pool, execute, fetch_idempotent
from models.db.queries.api_keys import FIND_API_KEY, TOUCH_API_KEY
from models.errors import IncorrectApiKey, Unauthenticated
from models.keys import hash_key

_KEY_CACHE_SECONDS = 5.0
"""Seconds for which a valid key is cached; a revoked key works for at most this long."""
_LAST_USED_INTERVAL = 60.0
"""Seconds between two updates of a key's `last_used_at`."""
_MAX_CACHED_KEYS = 10_000


class Keys:
    """Looks up API keys, with a short-lived cache."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._cached: dict[bytes, tuple[UUID, float]] = {}
        self._lookups: dict[bytes, asyncio.Task[UUID | None]] = {}
        """Those that run now. Requests of one moment with the same key share one."""
        self._last_used_written: dict[UUID, float] = {}

    async def require_project(self, key: str) -> UUID:
        """The project of this key. Raises IncorrectApiKey for a string that is not a valid key."""
        project = await self._find_project(key)
        if project is None:
            raise IncorrectApiKey
        return project

    async def _find_project(self, key: str) -> UUID | None:
        hashed = hash_key(key)
        cached = self._cached.get(hashed)
        if cached is not None and cached[1] > time.monotonic():
            return cached[0]
        lookup = self._lookups.get(hashed)
        if lookup is None:
            lookup = self._lookups[hashed] = asyncio.create_task(self._look_up(hashed))
            lookup.add_done_callback(lambda _: self._lookups.pop(hashed))
        # A client that disconnects ends its own request only.
        return await asyncio.shield(lookup)

    async def _look_up(self, hashed: bytes) -> UUID | None:
        now = time.monotonic()
        rows = await fetch_idempotent(self._pool, FIND_API_KEY, {"hash": hashed})
        if not rows or not hmac.compare_digest(rows[0].hash, hashed):
            self._cached.pop(hashed, None)
            return None
        if len(self._cached) > _MAX_CACHED_KEYS:
            self._cached.clear()
        project = rows[0].project_id
        self._cached[hashed] = (project, now + _KEY_CACHE_SECONDS)
        await self._record_use(rows[0].id, now)
        return project

    async def _record_use(self, key_id: UUID, now: float) -> None:
        if now - self._last_used_written.get(key_id, -_LAST_USED_INTERVAL) >= _LAST_USED_INTERVAL:
            self._last_used_written[key_id] = now
            await execute(self._pool, TOUCH_API_KEY, {"id": key_id})


def bind_keys(app: FastAPI, keys: Keys) -> None:
    """Makes `authenticate` look up the keys of this application's requests in `keys`."""
    app.state.keys = keys


def read_api_key(connection: HTTPConnection) -> str:
    """The key in the `Authorization` header. Raises Unauthenticated unless there is one."""
    headers = connection.headers.getlist("authorization")
    if len(headers) > 1:
        raise Unauthenticated(
            "You provided more than one Authorization header. "
            "Send one: 'Authorization: Bearer YOUR_KEY'."
        )
    scheme, _, key = headers[0].strip().partition(" ") if headers else ("", "", "")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthenticated(
            "You didn't provide an API key. "
            "Send it in an Authorization header: 'Authorization: Bearer YOUR_KEY'."
        )
    return key.strip()


async def authenticate(connection: HTTPConnection) -> UUID:
    """The project of the request's key. Reads only headers. Raises Unauthenticated."""
    keys: Keys = connection.app.state.keys
    return await keys.require_project(read_api_key(connection))


Project = Annotated[UUID, Depends(authenticate)]
"""The project of the request's key."""
