"""A repeated request joins the response that its first try made."""

from uuid import UUID

from models.db.database import Pool, fetch_idempotent
from models.db.queries import create
from models.db.queries.read import RESPONSE
from models.errors import Unavailable
from models.ownership.lease import Lease
from web.idempotency.keys import IdempotencyKey, key_reused

_MAX_TRIES = 10
"""A join is repeated when its response changes at the same time, which happens once or twice."""


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
