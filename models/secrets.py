"""What clients trust us with (MCP tokens and headers), sealed while it rests: AES-256-GCM, bound to its response (design §3); and what we
trust clients with: tokens that only this deployment can open, bound to a kind and a project (contract §6.1: `encrypted_content`).

Keys come from `BACKBURNER_SECRET_KEYS`. The first seals, all of them open, so a key is replaced by putting a new one before it and
taking the old one away once everything that it sealed has ended; tokens that clients keep need their key for as long as they are to be
accepted. What is sealed names its key by a digest, never by its place.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_NONCE_BYTES = 12
_TOKEN = re.compile(r"bbs1\.([0-9a-f]{16})\.([A-Za-z0-9_-]+)")
"""A token: how it is sealed, the key's id, and nonce, ciphertext and tag in URL-safe base64 without padding."""

TokenKind = Literal["compaction", "reasoning", "cache"]
"""What a token may stand for; one kind is never taken for another."""


class NoKey(Exception):
    """This deployment has no key, so it keeps no secrets."""


class Unreadable(Exception):
    """What was sealed cannot be opened: its key is not among ours, or it belongs to another response or project, or it was changed."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """As it rests in `job_secrets`."""

    key_id: str
    sealed: bytes
    """nonce (12 bytes), then ciphertext and tag"""


class Sealer:
    """Seals and opens with one deployment's keys."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """`keys` of 32 bytes each, the one that seals first; maybe none."""
        self._keys = {_key_id(key): AESGCM(key) for key in keys}
        self._sealing_key_id = next(iter(self._keys), None)
        self._fingerprint_key = hmac.digest(keys[0], b"fingerprint", "sha256") if keys else None

    @property
    def has_key(self) -> bool:
        """Whether anything can be sealed."""
        return self._sealing_key_id is not None

    def seal(self, response: UUID, payload: dict[str, Any]) -> Sealed:
        """JSON, sealed for this response alone. Raises NoKey."""
        if self._sealing_key_id is None:
            raise NoKey
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._keys[self._sealing_key_id].encrypt(
            nonce, orjson.dumps(payload), response.bytes
        )
        return Sealed(self._sealing_key_id, nonce + sealed)

    def open(self, response: UUID, sealed: Sealed) -> dict[str, Any]:
        """What was sealed. Raises Unreadable."""
        key = self._keys.get(sealed.key_id)
        if key is None:
            raise Unreadable
        try:
            opened: dict[str, Any] = orjson.loads(
                key.decrypt(
                    sealed.sealed[:_NONCE_BYTES], sealed.sealed[_NONCE_BYTES:], response.bytes
                )
            )
        except (InvalidTag, ValueError):
            raise Unreadable from None
        return opened

    def seal_token(self, kind: TokenKind, project: UUID, payload: Any) -> str:
        """Any JSON, sealed into ASCII text of letters, digits, `-`, `_` and `.` for a client of this project to keep. Raises NoKey."""
        if self._sealing_key_id is None:
            raise NoKey
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._keys[self._sealing_key_id].encrypt(
            nonce, orjson.dumps(payload), _associated_data(kind, project)
        )
        return f"bbs1.{self._sealing_key_id}.{base64.urlsafe_b64encode(nonce + sealed).decode().rstrip('=')}"

    def open_token(self, kind: TokenKind, project: UUID, token: str) -> Any:
        """What `token` was made of. Raises Unreadable, also for text that never was a token."""
        parts = _TOKEN.fullmatch(token)
        key = self._keys.get(parts[1]) if parts is not None else None
        if parts is None or key is None:
            raise Unreadable
        try:
            sealed = base64.urlsafe_b64decode(parts[2] + "=" * (-len(parts[2]) % 4))
            return orjson.loads(
                key.decrypt(
                    sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _associated_data(kind, project)
                )
            )
        except (InvalidTag, ValueError):
            raise Unreadable from None

    def fingerprint(self, payload: dict[str, Any]) -> str:
        """Tells equal secrets from others, and nothing else about them to whoever lacks the key: a bare hash could be guessed at."""
        if self._fingerprint_key is None:
            raise NoKey
        return hmac.digest(
            self._fingerprint_key, orjson.dumps(payload, option=orjson.OPT_SORT_KEYS), "sha256"
        ).hex()


def parse_keys(text: str) -> list[bytes]:
    """The keys in a comma-separated list of URL-safe base64, padded or not. Raises ValueError, which shows nothing of them."""
    keys = []
    for number, entry in enumerate(
        (part.strip() for part in text.split(",") if part.strip()), start=1
    ):
        try:
            key = base64.b64decode(
                entry.rstrip("=") + "=" * (-len(entry.rstrip("=")) % 4),
                altchars=b"-_",
                validate=True,
            )
        except (binascii.Error, ValueError):
            raise ValueError(f"key {number} is not URL-safe base64") from None
        if len(key) != KEY_BYTES:
            raise ValueError(f"key {number} has {len(key)} bytes instead of {KEY_BYTES}")
        keys.append(key)
    return keys


def _associated_data(kind: str, project: UUID) -> bytes:
    """The associated data of a token; never that of a response's secrets, which is 16 bytes long."""
    return b"token %b of %b" % (kind.encode(), project.bytes)


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"backburner key id " + key).hexdigest()[:16]
