"""The same POST again: a client that lost an answer must not start a second job (contract §1, wire facts).

Two ways to be recognised: an `Idempotency-Key`, kept for 24 hours; and the official SDK's own retries, which carry no key but
`x-stainless-retry-count`, recognised by their body for a minute. Keys live in `idempotency_keys`, written by the very statement that
stores the response, so two equal requests at one instant make one response.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson

from models.errors import InvalidRequest

_KEY_TTL = timedelta(hours=24)
_SDK_RETRY_TTL = timedelta(minutes=1)
_MAX_KEY_LENGTH = 255


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """How a request will be recognised if it comes again."""

    key: str
    body_hash: bytes
    ttl: timedelta
    replaces: bool
    """A request that says it is a first try replaces an earlier equal one instead of being taken for its retry."""

    def sql_values(self) -> dict[str, object]:
        """The values of the statements that keep it."""
        return {
            "key": self.key,
            "body_hash": self.body_hash,
            "kept": self.ttl,
            "replaces": self.replaces,
        }


def parse_idempotency_key(headers: Mapping[str, str], body: Any) -> IdempotencyKey | None:
    """What the headers say about retries of this request; None when nothing. Raises InvalidRequest for an unusable key."""
    key = headers.get("idempotency-key")
    if key is not None:
        if not 0 < len(key) <= _MAX_KEY_LENGTH:
            raise InvalidRequest(
                f"Invalid 'Idempotency-Key': expected 1 to {_MAX_KEY_LENGTH} characters, but got {len(key)} instead.",
                param="Idempotency-Key",
                code="invalid_value",
            )
        return IdempotencyKey(f"key:{key}", _hash(body), _KEY_TTL, replaces=False)
    count = headers.get("x-stainless-retry-count")
    if count is None:
        return None
    hashed = _hash(body)
    return IdempotencyKey(f"body:{hashed.hex()}", hashed, _SDK_RETRY_TTL, replaces=count == "0")


def _hash(body: Any) -> bytes:
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).digest()
