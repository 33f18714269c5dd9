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
    details = {} if error.code is None else {"details": {"error_code": error.code}}
    return {
        "type": "error",
        "error": {"type": kind, "message": _message(error), **details},
        "request_id": request_id,
    }


def _message(error: ApiError) -> str:
    """The message, with the place that it is about: Anthropic has no field for that."""
    if error.code == "context_length_exceeded":
        return f"{_TOO_LONG}: {error.message}"
    if error.param is None or f"'{error.param}'" in error.message:
        return error.message
    return f"{error.param}: {error.message}"
