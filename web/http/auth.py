"""Who asks: `Authorization: Bearer <key>` becomes a project. A dependency of every route under /v1, never derived from the URL."""

import hmac
import time
from typing import Annotated
from uuid import UUID

from fastapi import Depends
from starlette.requests import HTTPConnection

from models.db.database import Pool, fetch, read
from models.db.queries import statements
from models.errors import Unauthenticated
from models.keys import hash_key

_KEY_CACHE_SECONDS = 5.0
"""Seconds a key that was found is believed; a revoked key works for at most this long."""
_LAST_USED_INTERVAL = 60.0
"""Seconds between two notes of when a key was used last."""
_MAX_CACHED_KEYS = 10_000


class Keys:
    """Looks keys up, and remembers them for a moment."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._cached: dict[bytes, tuple[UUID, float]] = {}
        self._last_used_written: dict[UUID, float] = {}

    async def find_project(self, key: str) -> UUID | None:
        """The project whose valid key this is; None for any other string."""
        hashed = hash_key(key)
        cached = self._cached.get(hashed)
        now = time.monotonic()
        if cached is not None and cached[1] > now:
            return cached[0]
        rows = await read(self._pool, statements.FIND_API_KEY, {"hash": hashed})
        if not rows or not hmac.compare_digest(bytes(rows[0]["hash"]), hashed):
            self._cached.pop(hashed, None)
            return None
        if len(self._cached) > _MAX_CACHED_KEYS:
            self._cached.clear()
        project: UUID = rows[0]["project_id"]
        self._cached[hashed] = (project, now + _KEY_CACHE_SECONDS)
        await self._record_use(rows[0]["id"], now)
        return project

    async def _record_use(self, key_id: UUID, now: float) -> None:
        if now - self._last_used_written.get(key_id, -_LAST_USED_INTERVAL) >= _LAST_USED_INTERVAL:
            self._last_used_written[key_id] = now
            await fetch(self._pool, statements.TOUCH_API_KEY, {"id": key_id})


def read_api_key(connection: HTTPConnection) -> str:
    """The key that the headers bring. Raises Unauthenticated where they bring none, or several."""
    headers = connection.headers.getlist("authorization")
    if len(headers) > 1:
        raise Unauthenticated(
            "You provided more than one Authorization header. Send one: 'Authorization: Bearer YOUR_KEY'."
        )
    scheme, _, key = headers[0].strip().partition(" ") if headers else ("", "", "")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthenticated(
            "You didn't provide an API key. Send it in an Authorization header: 'Authorization: Bearer YOUR_KEY'."
        )
    return key.strip()


async def authenticate(connection: HTTPConnection) -> UUID:
    """The project of the request's key. Raises Unauthenticated before anything of the request but its headers was looked at."""
    keys: Keys = connection.app.state.keys
    project = await keys.find_project(read_api_key(connection))
    if project is None:
        raise Unauthenticated("Incorrect API key provided.")
    return project


Project = Annotated[UUID, Depends(authenticate)]
"""The project of the request's key."""
