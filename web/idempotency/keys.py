"""Idempotency keys: what makes a create the repeat of another one.

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

from models.errors import InvalidRequest

_KEY_TTL = timedelta(hours=24)
_SDK_RETRY_TTL = timedelta(minutes=1)
MAX_KEY_LENGTH = 255


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
