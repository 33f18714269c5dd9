"""Which parts of an upstream's error a client gets: the status, a known code, and the start of the
message.

The rules hold for error responses (failures.py) and for errors inside a stream (stream_errors.py).
"""

from collections.abc import Collection, Iterable

from models.config.upstream_access import without_secrets
from models.errors import INSUFFICIENT_QUOTA, UpstreamFailed

FORWARDED_STATUSES = frozenset({400, 404, 408, 413, 422, 429})
"""Statuses that a foreground client gets unchanged; all others become 502 (docs/errors.md)."""

_ERROR_CODES = frozenset(
    (
        INSUFFICIENT_QUOTA,
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
"""The values of a failed response's `error.code` that OpenAI's SDK or Codex knows."""

_SYNONYMS = {
    "invalid_base64": "invalid_base64_image",
    "billing_hard_limit_reached": INSUFFICIENT_QUOTA,
    "billing_not_active": INSUFFICIENT_QUOTA,
}
"""Codes of error responses -> the code for the same error of a failed response."""
_FIRST_SERVER_ERROR, _LAST_SERVER_ERROR = 500, 599

_TEMPORARY_STATUSES = frozenset({408, 429})
_TEMPORARY_CODES = frozenset({"server_error", "rate_limit_exceeded", "overloaded_error"})


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


def is_temporary(status: int, codes: Collection[str]) -> bool:
    """Whether the upstream may accept the same request later: it is overloaded, or has an error of
    its own. `status` is 0 if an error inside a stream has none."""
    if known_code(codes) == INSUFFICIENT_QUOTA:
        return False
    if status:
        return status in _TEMPORARY_STATUSES or _FIRST_SERVER_ERROR <= status <= _LAST_SERVER_ERROR
    return not _TEMPORARY_CODES.isdisjoint(codes)


def redacted(failure: UpstreamFailed, secrets: Iterable[str]) -> UpstreamFailed:
    """The failure without this server's secrets, which some upstreams repeat in their messages."""
    failure.message = without_secrets(failure.message, secrets)
    return failure
