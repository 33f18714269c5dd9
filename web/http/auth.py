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
from models.db.queries.api_keys import FIND_API_KEY, TOUCH_API_KEY, ApiKey
from models.errors import IncorrectApiKey, Unauthenticated
from models.keys import CACHE_SECONDS, hash_key
from web.http.guesses import KeyGuesses
from web.http.request_record import request_record

_LAST_USED_INTERVAL = 60.0
"""Seconds between two updates of a key's `last_used_at`."""
_MAX_CACHED_KEYS = 10_000


class Keys:
    """Looks up API keys, with a short-lived cache."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._cached: dict[bytes, tuple[ApiKey, float]] = {}
        self._lookups: dict[bytes, asyncio.Task[ApiKey | None]] = {}
        """Those that run now. Requests of one moment with the same key share one."""
        self._last_used_written: dict[UUID, float] = {}
        self._guesses = KeyGuesses()

    async def require_project(self, key: str, address: str = "") -> UUID:
        """The project of this key. Raises as `require` does."""
        return (await self.require(key, address)).project_id

    async def require(self, key: str, address: str = "") -> ApiKey:
        """What is stored of this key. `address`: the client's. Raises IncorrectApiKey for a string
        that is not a valid key, and TooManyUnknownKeys."""
        found = await self._find(hash_key(key), address)
        if found is None:
            raise IncorrectApiKey
        return found

    async def _find(self, hashed: bytes, address: str) -> ApiKey | None:
        cached = self._cached.get(hashed)
        if cached is not None and cached[1] > time.monotonic():
            return cached[0]
        if self._guesses.is_unknown(hashed):
            return None
        lookup = self._lookups.get(hashed)
        if lookup is None:
            if cached is None:
                await self._guesses.wait_for_turn(address)
            lookup = self._start_lookup(hashed)
        # A client that disconnects ends its own request only.
        found = await asyncio.shield(lookup)
        if found is None:
            self._guesses.record_unknown(hashed)
        elif cached is None:
            self._guesses.refund(address)
        return found

    def _start_lookup(self, hashed: bytes) -> asyncio.Task[ApiKey | None]:
        """The look-up of this key: the one that runs now, or a new one."""
        lookup = self._lookups.get(hashed)
        if lookup is None:
            lookup = self._lookups[hashed] = asyncio.create_task(self._look_up(hashed))
            lookup.add_done_callback(lambda _: self._lookups.pop(hashed))
        return lookup

    async def _look_up(self, hashed: bytes) -> ApiKey | None:
        now = time.monotonic()
        rows = await fetch_idempotent(self._pool, FIND_API_KEY, {"hash": hashed})
        if not rows or not hmac.compare_digest(rows[0].hash, hashed):
            self._cached.pop(hashed, None)
            return None
        if len(self._cached) > _MAX_CACHED_KEYS:
            self._cached.clear()
        self._cached[hashed] = (rows[0], now + CACHE_SECONDS)
        await self._record_use(rows[0].id, now)
        return rows[0]

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
    """The project of the request's key. Reads only headers. Raises Unauthenticated and
    TooManyUnknownKeys."""
    keys: Keys = connection.app.state.keys
    address = connection.client.host if connection.client else ""
    key = await keys.require(read_api_key(connection), address)
    trust_connection = connection.scope.get("state", {}).get("trust_connection")
    if trust_connection is not None:
        trust_connection()
    record = request_record(connection)
    record.project, record.key_prefix = key.project, key.prefix
    return key.project_id


Project = Annotated[UUID, Depends(authenticate)]
"""The project of the request's key."""
