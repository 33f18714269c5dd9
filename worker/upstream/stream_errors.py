"""Errors that an upstream reports inside a stream that began with HTTP 200."""

from typing import Any

from models.config.upstream_access import CREDENTIAL_STATUSES, credential_message, excerpt
from models.errors import UpstreamFailed
from worker.upstream.error_rules import (
    client_status,
    is_temporary,
    known_code,
    shown_code,
)
from worker.upstream.lenient_json import lenient_int, lenient_text
from worker.upstream.overflow import is_overflow, overflow_failure

_REQUEST_STATUSES = frozenset({400, 413, 422})
"""Statuses of an error object that blame the request. An error response with 404 blames it too
(worker/upstream/failures.py), an error object with 404 does not."""


def failure_of_error(error: Any) -> UpstreamFailed:
    """The failure for an upstream's error object, or for any value in its place."""
    fields = error if isinstance(error, dict) else {"message": error}
    codes = [
        code
        for code in (fields.get("code"), fields.get("type"), fields.get("status"))
        if isinstance(code, str)
    ]
    status = next(
        (
            number
            for key in ("code", "status")
            if (number := lenient_int(fields.get(key))) is not None
        ),
        0,
    )
    message = (
        lenient_text(fields.get("message"))
        or lenient_text(fields.get("detail"))
        or "it gave no reason"
    )
    shown = f"The upstream reported an error: {excerpt(message)}"
    if status in CREDENTIAL_STATUSES:
        shown = credential_message(message)
    elif is_overflow(message, codes):
        return overflow_failure(shown)
    code = _error_code(codes, status)
    return UpstreamFailed(
        shown,
        code=code,
        reason="upstream_error",
        status=client_status(status),
        envelope_code=shown_code(known_code(codes), client_status(status)),
        is_temporary=is_temporary(
            status, [*codes, code] if code == "rate_limit_exceeded" else codes
        ),
        is_interruption=not status and code == "server_error",
    )


def _error_code(codes: list[str], status: int) -> str:
    known = known_code(codes)
    if known is not None:
        return known
    if status == 429 or any(
        "rate_limit" in code or code in ("too_many_requests", "RESOURCE_EXHAUSTED")
        for code in codes
    ):
        return "rate_limit_exceeded"
    if status in _REQUEST_STATUSES or not {"invalid_request_error", "BadRequestError"}.isdisjoint(
        codes
    ):
        return "invalid_prompt"
    return "server_error"
