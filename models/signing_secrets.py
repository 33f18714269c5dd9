"""The signing secrets of a webhook endpoint as they are stored: sealed, and bound to it."""

from collections.abc import Sequence
from uuid import UUID

from models.secrets import Sealed, Sealer

_HINT = 4
"""Characters of a secret that are shown."""


def seal_secrets(sealer: Sealer, endpoint: UUID, signing_secrets: Sequence[str]) -> Sealed:
    """`signing_secrets`: the newest one first. Raises NoKey."""
    return sealer.seal(endpoint, {"secrets": list(signing_secrets)})


def open_secrets(sealer: Sealer, endpoint: UUID, sealed: Sealed) -> list[str]:
    """The newest one first. Raises Unreadable."""
    opened: list[str] = sealer.open(endpoint, sealed)["secrets"]
    return opened


def secret_hint(secret: str) -> str:
    """By what an owner knows a secret again: its end."""
    return f"whsec_…{secret[-_HINT:]}"
