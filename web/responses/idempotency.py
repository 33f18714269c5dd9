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

_KEPT = timedelta(hours=24)
_SDK_KEPT = timedelta(minutes=1)
_LONGEST = 255


@dataclass(frozen=True, slots=True)
class Retryable:
    """How a request will be recognised if it comes again."""

    key: str
    body_hash: bytes
    kept: timedelta
    replaces: bool
    """A request that says it is a first try replaces an earlier equal one instead of being taken for its retry."""

    def row(self) -> dict[str, object]:
        """The values of the statements that keep it."""
        return {
            "key": self.key,
            "body_hash": self.body_hash,
            "kept": self.kept,
            "replaces": self.replaces,
        }


def retryable(headers: Mapping[str, str], body: Any) -> Retryable | None:
    """What the headers say about retries of this request; None when nothing. Raises InvalidRequest for an unusable key."""
    given = headers.get("idempotency-key")
    if given is not None:
        if not 0 < len(given) <= _LONGEST:
            raise InvalidRequest(
                f"Invalid 'Idempotency-Key': expected 1 to {_LONGEST} characters, but got {len(given)} instead.",
                param="Idempotency-Key",
                code="invalid_value",
            )
        return Retryable(f"key:{given}", _hash(body), _KEPT, replaces=False)
    count = headers.get("x-stainless-retry-count")
    if count is None:
        return None
    hashed = _hash(body)
    return Retryable(f"body:{hashed.hex()}", hashed, _SDK_KEPT, replaces=count == "0")


def _hash(body: Any) -> bytes:
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).digest()
