"""Repeated creates: a client that got no reply to a POST and sends it again must not start a second
response.

A repeat is recognised in two ways: by its `Idempotency-Key`, for 24 hours; or, for the official
SDK's retries, which have no key but `x-stainless-retry-count`, by its body, for a minute. The key
is written by the statement that stores the response, so two equal requests at the same time make
one response.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson

from models.db.queries.create import KeyHolder
from models.errors import InvalidRequest

_KEY_TTL = timedelta(hours=24)
_SDK_RETRY_TTL = timedelta(minutes=1)
MAX_KEY_LENGTH = 255


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What identifies a repeat of a request."""

    key: str
    body_hash: bytes
    ttl: timedelta
    replaces: bool
    """The SDK marks the request as a first try: it replaces an equal key."""

    def sql_values(self) -> dict[str, object]:
        """The values of the statements that store the key."""
        return {
            "key": self.key,
            "body_hash": self.body_hash,
            "lifetime": self.ttl,
            "replaces": self.replaces,
        }


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
        return IdempotencyKey(f"key:{key}", _hash(body), _KEY_TTL, replaces=False)
    count = headers.get("x-stainless-retry-count")
    if count is None:
        return None
    hashed = _hash(body)
    return IdempotencyKey(f"body:{hashed.hex()}", hashed, _SDK_RETRY_TTL, replaces=count == "0")


def matched_response_id(holder: KeyHolder, key: IdempotencyKey) -> UUID:
    """The response of a stored key equal to `key`.

    Raises InvalidRequest if it was stored with another body.
    """
    if holder.body_hash != key.body_hash:
        raise InvalidRequest(
            "This 'Idempotency-Key' was used before with another request body.",
            param="Idempotency-Key",
            code="idempotency_key_reused",
        )
    return holder.response_id


def _hash(body: Any) -> bytes:
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).digest()
