"""The errors of forwarded requests."""

import orjson

from models.config.upstream_access import excerpt
from models.errors import ApiError, NotFound, RunFailed
from models.upstream_errors.frames import report_of
from models.wire.json_input import clean_text

_MAX_MODEL = 100
"""Characters of a model's name that an error repeats."""


def upstream_error(status: int, message: str) -> RunFailed:
    """The error if the upstream does not answer as it should."""
    return RunFailed(status, message, kind=ApiError.type, code=None)


def endpoint_not_offered(model: str, path: str, status: int, upstream_message: str) -> NotFound:
    """The error if the model's upstream has nothing at this path. `upstream_message`: without
    credentials."""
    message = (
        f"The upstream of the model '{model[:_MAX_MODEL]}' does not offer /v1{path}: it has "
        f"nothing there (HTTP {status})."
    )
    if upstream_message:
        message = f"{message} It said: {excerpt(upstream_message)}"
    return NotFound(message, param="model", code="endpoint_not_offered")


def message_in(body: str) -> str:
    """The message of an error's body in any vendor's frame; empty if it has none."""
    try:
        return clean_text(report_of(orjson.loads(body)).message)
    except orjson.JSONDecodeError:
        return ""
