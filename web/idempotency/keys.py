"""Idempotency keys: what makes a create the repeat of another one, and the join with the response
that its first try has made.

With an `Idempotency-Key`, a repeat is recognised for 24 hours.

The official SDKs send no key. Their retries carry `x-stainless-retry-count`, and are recognised by
their body, for a minute. But equal requests need not be repeats: a client may want several answers
to one prompt, and may send a request again because it was refused. So an SDK's retry takes over
only a create that no client was answered for and no client waits for (JOIN_UNANSWERED in
models/db/queries/create.py, TAKE_LOST in repeats.py).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson

from models.db.database import Pool, fetch_idempotent
from models.db.queries import create
from models.db.queries.read import RESPONSE
from models.errors import InvalidRequest, Unavailable
from models.ownership.lease import Lease

_KEY_TTL = timedelta(hours=24)
_SDK_RETRY_TTL = timedelta(minutes=1)
MAX_KEY_LENGTH = 255
_MAX_TRIES = 10
"""A join is repeated when its response changes at the same time, which happens once or twice."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What identifies a repeat of a request."""

    key: str | None
    """the client's key; None: an SDK sent the request, and its body identifies it"""
    body_hash: bytes
    ttl: timedelta
    may_repeat: bool
    """False: an SDK marks the request as a first try"""

    def stored_key(self, create: UUID) -> str:
        """The key under which a create is stored, unique in its project. `create`: the id of the
        response, or of the claim."""
        return sdk_key(create) if self.key is None else self.key


def parse_idempotency_key(headers: Mapping[str, str], body: Any) -> IdempotencyKey | None:
    """The key of a request; None without one. Raises InvalidRequest for an unusable key."""
    key = headers.get("idempotency-key")
    if key is not None:
        if not 0 < len(key) <= MAX_KEY_LENGTH:
            raise InvalidRequest(
                f"Invalid 'Idempotency-Key': expected 1 to {MAX_KEY_LENGTH} characters, "
                f"but got {len(key)} instead.",
                param="Idempotency-Key",
                code="invalid_value",
            )
        return IdempotencyKey(f"key:{key}", _hash(body), _KEY_TTL, may_repeat=True)
    count = headers.get("x-stainless-retry-count")
    if count is None:
        return None
    return IdempotencyKey(None, _hash(body), _SDK_RETRY_TTL, may_repeat=count != "0")


def sdk_key(create: UUID) -> str:
    """The key of a create whose client sends none."""
    return f"sdk:{create.hex}"


def key_reused() -> InvalidRequest:
    """The key was used by another create, or has made a secret for another API key."""
    return InvalidRequest(
        "This 'Idempotency-Key' was used before with another request body, path or API key.",
        param="Idempotency-Key",
        code="idempotency_key_reused",
    )


def _hash(body: Any) -> bytes:
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).digest()


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
