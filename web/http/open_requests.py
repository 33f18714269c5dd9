"""The requests and WebSockets that are open now, by their keys: those of a key that is not valid
any more are ended.

A key is checked when a request begins. A stream or a WebSocket may last for hours, in any process.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import structlog

from models.db.arrays import Uuids
from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch_idempotent
from models.db.queries.api_keys import VALID_KEYS, ApiKey

logger = structlog.get_logger()

_INTERVAL = 0.5
"""Seconds between two looks whether keys have expired."""

End = Callable[[], None]


class OpenRequests:
    """Those of one web process. `run` ends requests; it needs one statement for each change of any
    project or key, and none while nothing changes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ends: defaultdict[UUID, dict[object, End]] = defaultdict(dict)
        self._expiries: dict[UUID, float] = {}
        self._check_now = asyncio.Event()

    def add(self, key: ApiKey, end: End) -> Callable[[], None]:
        """A request with this key is open. `end` is called when the key is not valid any more. The
        result is to be called when the request has ended."""
        token = object()
        ends = self._ends[key.id]
        ends[token] = end
        if key.expires_monotonic is not None:
            self._expiries[key.id] = key.expires_monotonic

        def remove() -> None:
            ends.pop(token, None)
            if not ends and self._ends.get(key.id) is ends:
                del self._ends[key.id]
                self._expiries.pop(key.id, None)

        return remove

    def check(self) -> None:
        """A project or key was changed."""
        self._check_now.set()

    async def run(self) -> None:
        """Ends the requests of keys that become invalid. Never returns."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL):
                    await self._check_now.wait()
            now = time.monotonic()
            ids = [id_ for id_, expiry in self._expiries.items() if expiry <= now]
            if self._check_now.is_set():
                ids = list(self._ends)
            if ids:
                try:
                    await self._end_invalid(ids)
                except DATABASE_UNAVAILABLE as error:
                    logger.warning("open_requests_not_checked", error=str(error).strip())
                    await asyncio.sleep(_INTERVAL)
            else:
                self._check_now.clear()

    async def _end_invalid(self, ids: list[UUID]) -> None:
        """Raises what DATABASE_UNAVAILABLE names, and is then repeated."""
        self._check_now.clear()
        try:
            valid = set(await fetch_idempotent(self._pool, VALID_KEYS, {"ids": Uuids(ids)}))
        except DATABASE_UNAVAILABLE:
            self._check_now.set()
            raise
        for id_ in set(ids) - valid:
            ends = self._ends.get(id_, {})
            if ends:
                logger.info("requests_of_invalid_key_ended", key=str(id_), requests=len(ends))
            for end in list(ends.values()):
                end()
            self._expiries.pop(id_, None)
