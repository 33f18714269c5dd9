"""What an upstream's error means for a response: whether it is passing, its code, and the status
and code for a foreground client (docs/errors.md).

The rules hold for error responses (failures.py) and for errors inside a stream (stream_errors.py).
The HTTP status decides, or the status that the error names: many servers write `server_error` under
every error, and clients repeat a request that failed with this code without end.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from models.config.upstream_access import CREDENTIAL_STATUSES, without_secrets
from models.errors import INSUFFICIENT_QUOTA, UpstreamFailed
from models.upstream_errors.names import PAYMENT_REQUIRED

FORWARDED_STATUSES = frozenset({400, 404, 408, 413, 422, 429})
"""Statuses that a foreground client gets unchanged (docs/errors.md)."""

_SERVER_ERROR, _RATE_LIMIT, _INVALID_PROMPT = (
    "server_error",
    "rate_limit_exceeded",
    "invalid_prompt",
)
_ERROR_CODES = frozenset(
    (
        INSUFFICIENT_QUOTA,
        _SERVER_ERROR,
        _RATE_LIMIT,
        _INVALID_PROMPT,
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
_PASSING_CODES = frozenset({_SERVER_ERROR, _RATE_LIMIT, "vector_store_timeout"})
"""Codes after which clients repeat the request."""
_PASSING_STATUSES = frozenset({408, 425})
"""Statuses below 500 after which the same request may succeed, besides 429."""
_OPERATOR_STATUSES = CREDENTIAL_STATUSES | {407}
_FIRST_REFUSAL, _FIRST_SERVER_ERROR, _LAST_SERVER_ERROR = 400, 500, 599
_OVERLOAD_STATUSES = frozenset({503, 529})
"""Server errors that are never about the request: the upstream says that it has too much to do."""
_BAD_REQUEST, _TOO_MANY_REQUESTS, _BAD_GATEWAY = 400, 429, 502


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an error means."""

    code: str
    """`error.code` of the response"""
    status: int
    """for a foreground client"""
    envelope_code: str | None = None
    """beside the status"""
    is_temporary: bool = False
    may_be_request: bool = False
    """a server error whose cause may be the request: UpstreamFailed"""


def verdict(status: int, codes: Collection[str]) -> Verdict:
    """What an error with this status and these codes means. `status`: 0 if nothing is known."""
    known = known_code(codes)
    if status in _OPERATOR_STATUSES:
        return Verdict(_SERVER_ERROR, _BAD_GATEWAY)
    if status == PAYMENT_REQUIRED or known == INSUFFICIENT_QUOTA:
        return Verdict(INSUFFICIENT_QUOTA, _TOO_MANY_REQUESTS, INSUFFICIENT_QUOTA)
    if status == _TOO_MANY_REQUESTS or (not status and known == _RATE_LIMIT):
        return Verdict(_RATE_LIMIT, _TOO_MANY_REQUESTS, _RATE_LIMIT, is_temporary=True)
    if status in _PASSING_STATUSES:
        return Verdict(_SERVER_ERROR, _forwarded(status, _BAD_GATEWAY), is_temporary=True)
    if _FIRST_REFUSAL <= status < _FIRST_SERVER_ERROR or (
        not status and known is not None and known not in _PASSING_CODES
    ):
        return _refusal(status, known)
    is_server_error = _FIRST_SERVER_ERROR <= status <= _LAST_SERVER_ERROR
    return Verdict(
        known if known is not None and not status else _SERVER_ERROR,
        _BAD_GATEWAY,
        is_temporary=is_server_error or (not status and known == _SERVER_ERROR),
        may_be_request=is_server_error and status not in _OVERLOAD_STATUSES,
    )


def _refusal(status: int, known: str | None) -> Verdict:
    """The request is refused: no other code than one that says so."""
    code = _INVALID_PROMPT if known is None or known in _PASSING_CODES else known
    return Verdict(code, _forwarded(status, _BAD_REQUEST), None if known is None else code)


def _forwarded(status: int, other: int) -> int:
    return status if status in FORWARDED_STATUSES else other


def known_code(codes: Iterable[str]) -> str | None:
    """The first of an error's codes that a failed response may have; None if there is none."""
    names = (_SYNONYMS.get(code, code) for code in codes)
    return next((name for name in names if name in _ERROR_CODES), None)


def redacted(failure: UpstreamFailed, secrets: Iterable[str]) -> UpstreamFailed:
    """The failure without this server's secrets, which some upstreams repeat in their messages."""
    failure.message = without_secrets(failure.message, secrets)
    return failure
