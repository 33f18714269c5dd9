"""Which parts of an upstream's error a client gets: the status, and the start of the message.

The rules hold for error responses (failures.py) and for errors inside a stream (stream_errors.py).
"""

from models.config.upstream_access import is_secret
from models.errors import UpstreamFailed

FORWARDED_STATUSES = frozenset({400, 401, 403, 404, 408, 413, 422, 429})
"""Statuses that a foreground client gets unchanged; all others become 502 (docs/errors.md)."""

_MAX_MESSAGE = 500
"""Characters of an upstream's message."""


def client_status(status: int) -> int:
    """The status of a foreground response after this status of the upstream."""
    return status if status in FORWARDED_STATUSES else 502


def excerpt(message: str) -> str:
    """The part of an upstream's message that is shown."""
    return message[:_MAX_MESSAGE]


def redacted(failure: UpstreamFailed, credential: str) -> UpstreamFailed:
    """The failure without this server's credential, which some upstreams repeat in their
    messages."""
    if is_secret(credential) and credential in failure.message:
        failure.message = failure.message.replace(credential, "…")
    return failure
