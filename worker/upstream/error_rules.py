"""Which parts of an upstream's error a client gets: the status, a known code, and the start of the
message.

The rules hold for error responses (failures.py) and for errors inside a stream (stream_errors.py).
"""

from collections.abc import Iterable

from models.config.upstream_access import is_secret
from models.errors import UpstreamFailed

FORWARDED_STATUSES = frozenset({400, 401, 403, 404, 408, 413, 422, 429})
"""Statuses that a foreground client gets unchanged; all others become 502 (docs/errors.md)."""

_ERROR_CODES = frozenset(
    (
        "server_error",
        "rate_limit_exceeded",
        "invalid_prompt",
        "data_residency_mismatch",
        "bio_policy",
        "misalignment_policy_violation",
        "vector_store_timeout",
        "invalid_image",
        "invalid_image_format",
        "invalid_base64_image",
        "invalid_image_url",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "image_content_policy_violation",
        "invalid_image_mode",
        "image_file_too_large",
        "unsupported_image_media_type",
        "empty_image_file",
        "failed_to_download_image",
        "image_file_not_found",
    )
)
"""The values of a failed response's `error.code` that OpenAI's SDK knows."""

_SYNONYMS = {"invalid_base64": "invalid_base64_image"}
"""Codes of error responses -> the code for the same error of a failed response."""
_FIRST_SERVER_ERROR = 500

_MAX_MESSAGE = 500
"""Characters of an upstream's message."""


def client_status(status: int) -> int:
    """The status of a foreground response after this status of the upstream."""
    return status if status in FORWARDED_STATUSES else 502


def known_code(codes: Iterable[str]) -> str | None:
    """The first of an error's codes that a failed response may have; None if there is none."""
    names = (_SYNONYMS.get(code, code) for code in codes)
    return next((name for name in names if name in _ERROR_CODES), None)


def shown_code(known: str | None, status: int) -> str | None:
    """The `code` of the HTTP error for a foreground client, from what `known_code` returned and the
    status that the client gets. An error of the server (5xx) has none."""
    return known if status < _FIRST_SERVER_ERROR else None


def excerpt(message: str) -> str:
    """The part of an upstream's message that is shown."""
    return message[:_MAX_MESSAGE]


def redacted(failure: UpstreamFailed, credential: str) -> UpstreamFailed:
    """The failure without this server's credential, which some upstreams repeat in their
    messages."""
    if is_secret(credential) and credential in failure.message:
        failure.message = failure.message.replace(credential, "…")
    return failure
