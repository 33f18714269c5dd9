"""A repeated request joins the response that its first try made."""

import asyncio
from uuid import UUID

import structlog

from models.db.database import (
    DATABASE_UNAVAILABLE,
    Pool,
    execute,
    fetch_idempotent,
    retry_while_unavailable,
)
from models.db.queries import create
from models.db.queries.read import RESPONSE
from models.errors import Unavailable
from models.ownership.lease import Lease
from web.responses.idempotency import IdempotencyKey, key_reused

logger = structlog.get_logger()

_MAX_TRIES = 10
"""A join is repeated when its response changes at the same time, which happens once or twice."""
_STORE_PAUSE = 0.2
"""Seconds between two statements that store what was answered."""


class JoinResponse:
    """Finds the response of an earlier request, and makes the new connection the one that waits for
    its answer. When the earlier connection ends, or its web process dies, nothing is cancelled."""

    def __init__(self, pool: Pool, lease: Lease) -> None:
        self._pool = pool
        self._lease = lease

    async def join(self, project: UUID, key: IdempotencyKey, waiter: UUID) -> UUID | None:
        """The id of the response that the connection `waiter` has joined; None if there is no
        earlier request. Raises InvalidRequest if the key was stored with another body, Unavailable
        if its response changes all the time."""
        if not key.may_repeat:
            return None
        values = {
            "key": key.key,
            "body_hash": key.body_hash,
            "project": project,
            "waiter": waiter,
            "web": self._lease.id,
        }
        if key.key is None:
            joined = await fetch_idempotent(self._pool, create.JOIN_UNANSWERED, values)
            return joined[0] if joined else None
        for _ in range(_MAX_TRIES):
            holders = await fetch_idempotent(self._pool, create.JOIN_BY_KEY, values)
            if not holders:
                return None
            if not holders[0].is_equal:
                raise key_reused()
            if holders[0].is_joined or not holders[0].is_open:
                return holders[0].response_id
        raise Unavailable

    async def was_cached(self, response_id: UUID) -> bool:
        """Whether the answer of this response is from the cache."""
        rows = await fetch_idempotent(self._pool, RESPONSE, {"id": response_id})
        return any(row.cache_key is not None and row.cache_ttl is None for row in rows)


class AnsweredResponses:
    """Records which responses to requests of SDKs were answered, so that no retry takes them over.

    Many at once, and after the answer: a retry looks at that only when this process has ended.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._answered: list[UUID] = []
        self._added = asyncio.Event()

    def add(self, response_id: UUID) -> None:
        """The client of the response has its answer, or the first bytes of it."""
        self._answered.append(response_id)
        self._added.set()

    async def run(self) -> None:
        """Stores what is added. Never returns."""
        while True:
            await self._added.wait()
            self._added.clear()
            await retry_while_unavailable(self.store, "answered_responses_not_stored")
            await asyncio.sleep(_STORE_PAUSE)

    async def store(self) -> None:
        """Stores what was added. Raises what DATABASE_UNAVAILABLE names."""
        answered = list(self._answered)
        if answered:
            await execute(self._pool, create.FORGET_ANSWERED, {"ids": answered})
            del self._answered[: len(answered)]

    async def forget_waiter(self, response_id: UUID, waiter: UUID) -> None:
        """The client disconnected before it was answered: its retry may take the response over. If
        Postgres is unavailable, the retry starts a second response."""
        try:
            await execute(self._pool, create.FORGET_WAITER, {"id": response_id, "waiter": waiter})
        except DATABASE_UNAVAILABLE as error:
            logger.warning("answered_responses_not_stored", error=str(error).strip())
