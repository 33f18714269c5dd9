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
from models.keys import fingerprint

_TRUST = 5.0
"""Seconds a key that was found is believed; a revoked key works for at most this long."""
_USED_EVERY = 60.0
"""Seconds between two notes of when a key was used last."""
_MOST = 10_000


class Keys:
    """Looks keys up, and remembers them for a moment."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[bytes, tuple[UUID, float]] = {}
        self._noted: dict[UUID, float] = {}

    async def project_of(self, key: str) -> UUID | None:
        """The project whose valid key this is; None for any other string."""
        hashed = fingerprint(key)
        known = self._known.get(hashed)
        now = time.monotonic()
        if known is not None and known[1] > now:
            return known[0]
        found = await read(self._pool, statements.KEY, {"hash": hashed})
        if not found or not hmac.compare_digest(bytes(found[0]["hash"]), hashed):
            self._known.pop(hashed, None)
            return None
        if len(self._known) > _MOST:
            self._known.clear()
        project: UUID = found[0]["project_id"]
        self._known[hashed] = (project, now + _TRUST)
        await self._note_use(found[0]["id"], now)
        return project

    async def _note_use(self, key_id: UUID, now: float) -> None:
        if now - self._noted.get(key_id, -_USED_EVERY) >= _USED_EVERY:
            self._noted[key_id] = now
            await fetch(self._pool, statements.KEY_USED, {"id": key_id})


def key_of(connection: HTTPConnection) -> str:
    """The key that the headers bring. Raises Unauthenticated where they bring none, or several."""
    given = connection.headers.getlist("authorization")
    if len(given) > 1:
        raise Unauthenticated(
            "You provided more than one Authorization header. Send one: 'Authorization: Bearer YOUR_KEY'."
        )
    scheme, _, key = given[0].strip().partition(" ") if given else ("", "", "")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthenticated(
            "You didn't provide an API key. Send it in an Authorization header: 'Authorization: Bearer YOUR_KEY'."
        )
    return key.strip()


async def project_of(connection: HTTPConnection) -> UUID:
    """The project of the request's key. Raises Unauthenticated before anything of the request but its headers was looked at."""
    keys: Keys = connection.app.state.keys
    project = await keys.project_of(key_of(connection))
    if project is None:
        raise Unauthenticated("Incorrect API key provided.")
    return project


Project = Annotated[UUID, Depends(project_of)]
"""The project of the request's key."""
