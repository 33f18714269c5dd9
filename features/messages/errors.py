"""Errors in the form of Anthropic's API. Pure."""

from typing import Any

from models.errors import ApiError

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OVERLOADED = 529
_OF_OPERATOR = "upstream_not_configured"
_TOO_LONG = "prompt is too long"
"""Words by which Claude Code recognises that it must compact its history."""


def status_of(error: ApiError) -> int:
    """The HTTP status. Anthropic has another one for a model that does not exist, and for a server
    that cannot serve the request now."""
    if error.code == "model_not_found" and error.status == 400:
        return 404
    if error.status == 503:
        return 500 if error.code == _OF_OPERATOR else _OVERLOADED
    return error.status


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """The body of an answer, and the data of an event."""
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    message = error.message
    if error.code == "context_length_exceeded" and _TOO_LONG not in message:
        message = f"{_TOO_LONG}: {message}"
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id,
    }
