"""Encryption at rest with AES-256-GCM.

Content that another server has encrypted is not sealed again; a mark binds it to a project.

Two things are sealed: credentials of MCP servers, bound to their response; and tokens that clients
keep (`encrypted_content`), which only this deployment can open, bound to a kind and a project.

Keys come from `BACKBURNER_SECRET_KEYS`. The first key seals; all keys open. `backburner secrets
rotate` seals again what the database has; tokens that clients keep need their key for as long as
they must be accepted (docs/security.md). Sealed data names its key by a digest.
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
_MARK_BYTES = 16
_TOKEN = re.compile(r"bbs1\.([0-9a-f]{16})\.([A-Za-z0-9_-]+)")
"""A token: the version of its format, the key's id, and nonce, ciphertext and tag in URL-safe
base64 without padding."""

TokenKind = Literal["compaction", "reasoning", "cache", "call"]
"""What a token contains. A token of one kind cannot be opened as another."""


class NoKey(Exception):
    """The deployment has no key, so it cannot seal."""


class Unreadable(Exception):
    """Sealed data cannot be opened.

    Its key is missing, it belongs to another response or project, or it was changed.
    """


@dataclass(frozen=True, slots=True)
class Sealed:
    """The form that is stored in `job_secrets`."""

    key_id: str
    sealed: bytes
    """nonce (12 bytes), then ciphertext and tag"""


class Sealer:
    """Seals and opens with the keys of one deployment."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """`keys` have 32 bytes each; the first one seals. There may be none."""
        self._keys = {key_id_of(key): AESGCM(key) for key in keys}
        self._sealing_key_id = next(iter(self._keys), None)
        self._mark_keys = [hmac.digest(key, b"mark", "sha256") for key in keys]
        self._fingerprint_key = hmac.digest(keys[0], b"fingerprint", "sha256") if keys else None

    @property
    def has_key(self) -> bool:
        """Whether anything can be sealed."""
        return self._sealing_key_id is not None

    @property
    def key_ids(self) -> list[str]:
        """The digests by which sealed data names the keys."""
        return list(self._keys)

    def seal(self, response: UUID, payload: dict[str, Any]) -> Sealed:
        """Seals JSON for this response only. Raises NoKey."""
        return self._encrypt(payload, response.bytes)

    def open(self, response: UUID, sealed: Sealed) -> dict[str, Any]:
        """The JSON that was sealed. Raises Unreadable."""
        payload: dict[str, Any] = self._decrypt(sealed, response.bytes)
        return payload

    def seal_token(self, kind: TokenKind, project: UUID, payload: Any) -> str:
        """Seals JSON into a token for clients of this project. Raises NoKey.

        A token has only letters, digits, `-`, `_` and `.`.
        """
        sealed = self._encrypt(payload, _associated_data(kind, project))
        encoded = base64.urlsafe_b64encode(sealed.sealed).decode().rstrip("=")
        return f"bbs1.{sealed.key_id}.{encoded}"

    def open_token(self, kind: TokenKind, project: UUID, token: str) -> Any:
        """The JSON in the token. Raises Unreadable, also for text that is no token."""
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            raise Unreadable
        try:
            sealed = base64.urlsafe_b64decode(parts[2] + "=" * (-len(parts[2]) % 4))
        except ValueError:
            raise Unreadable from None
        return self._decrypt(Sealed(parts[1], sealed), _associated_data(kind, project))

    def mark(self, project: UUID, maker: str, content: str) -> bytes | None:
        """A mark that binds encrypted content of another server to the project that it was made
        for; None without a key."""
        if not self._mark_keys:
            return None
        return _mark(self._mark_keys[0], project, maker, content)

    def is_marked(self, project: UUID, maker: str, content: str, mark: bytes) -> bool:
        """Whether the mark was made by one of the keys for this project."""
        return any(
            hmac.compare_digest(_mark(key, project, maker, content), mark)
            for key in self._mark_keys
        )

    def _encrypt(self, payload: Any, associated_data: bytes) -> Sealed:
        if self._sealing_key_id is None:
            raise NoKey
        nonce = secrets.token_bytes(_NONCE_BYTES)
        ciphertext = self._keys[self._sealing_key_id].encrypt(
            nonce, orjson.dumps(payload), associated_data
        )
        return Sealed(self._sealing_key_id, nonce + ciphertext)

    def _decrypt(self, sealed: Sealed, associated_data: bytes) -> Any:
        key = self._keys.get(sealed.key_id)
        if key is None:
            raise Unreadable
        nonce, ciphertext = sealed.sealed[:_NONCE_BYTES], sealed.sealed[_NONCE_BYTES:]
        try:
            return orjson.loads(key.decrypt(nonce, ciphertext, associated_data))
        except (InvalidTag, ValueError):
            raise Unreadable from None

    def fingerprint(self, payload: dict[str, Any]) -> str:
        """A digest that is equal for equal secrets. Without the key it reveals nothing about them;
        a plain hash would confirm guesses. Raises NoKey."""
        if self._fingerprint_key is None:
            raise NoKey
        return hmac.digest(
            self._fingerprint_key, orjson.dumps(payload, option=orjson.OPT_SORT_KEYS), "sha256"
        ).hex()


def parse_keys(text: str) -> list[bytes]:
    """The keys in a comma-separated list of URL-safe base64, padded or not.

    Raises ValueError, whose message has no part of a key.
    """
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
    """For a token. It differs from that of a response's secrets, which always has 16 bytes."""
    return b"token %b of %b" % (kind.encode(), project.bytes)


def _mark(key: bytes, project: UUID, maker: str, content: str) -> bytes:
    text = b"\x00".join((project.bytes, maker.encode(), content.encode("utf-8", "surrogatepass")))
    return hmac.digest(key, text, "sha256")[:_MARK_BYTES]


def key_id_of(key: bytes) -> str:
    """The digest by which sealed data names its key. It reveals nothing about the key."""
    return hashlib.sha256(b"backburner key id " + key).hexdigest()[:16]
