"""The errors of a request's values, in OpenAI's wording (docs/wire.md).

`where` names the value as it is found in the request: `input[3].content[0].text`.
"""

from collections.abc import Collection
from typing import Any

from models.errors import InvalidRequest

_MAX_SHOWN = 100
"""Characters of a client's own text that an error repeats."""

_JSON_TYPES = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    dict: "an object",
    list: "an array",
}

_CHAT_PARAMETERS = {
    "messages": "'input'",
    "response_format": "'text.format'",
    "max_tokens": "'max_output_tokens'",
    "max_completion_tokens": "'max_output_tokens'",
    "functions": "'tools'",
    "function_call": "'tool_choice'",
    "reasoning_effort": "'reasoning.effort'",
    "verbosity": "'text.verbosity'",
    "logprobs": "'include' with 'message.output_text.logprobs', and 'top_logprobs'",
}
"""Parameters of Chat Completions -> their names in the Responses API. The error shows the name."""

_CHAT_PARTS = {"text": "input_text", "image_url": "input_image", "file": "input_file"}
"""Types of content parts in Chat Completions -> in the Responses API."""


def missing(where: str, hint: str = "") -> InvalidRequest:
    """For a required field that is absent or null. `hint`: a sentence on what to do."""
    message = " ".join(filter(None, (f"Missing required parameter: '{where}'.", hint)))
    return InvalidRequest(message, param=where, code="missing_required_parameter")


def wrong_type(where: str, expected: str, value: Any) -> InvalidRequest:
    """For a value of another JSON type; `expected` has an article ("a string")."""
    return InvalidRequest(
        f"Invalid type for '{where}': expected {expected}, but got {json_type(value)} instead.",
        param=where,
        code="invalid_type",
    )


def not_an_object(body: Any, what: str = "body") -> InvalidRequest:
    """For a body (or a WebSocket frame) that is not a JSON object."""
    return InvalidRequest(
        f"Invalid {what}: expected a JSON object, but got {json_type(body)} instead.",
        code="invalid_type",
    )


def unknown_parameter(name: str) -> InvalidRequest:
    """For a parameter of the body that the route does not have."""
    return InvalidRequest(
        f"Unknown parameter: '{shorten(name)}'.", param=shorten(name), code="unknown_parameter"
    )


def unknown_create_parameter(name: str) -> InvalidRequest:
    """The same for a create request. For a parameter of Chat Completions it names ours."""
    fault = unknown_parameter(name)
    if name not in _CHAT_PARAMETERS:
        return fault
    message = (
        f"{fault.message} In the Responses API, this parameter is called {_CHAT_PARAMETERS[name]}."
    )
    return InvalidRequest(message, param=fault.param, code=fault.code)


def unsupported_value(where: str, value: str, supported: Collection[str]) -> InvalidRequest:
    """For a string that is not one of the supported values. For a type of a content part in Chat
    Completions it names ours."""
    message = f"Invalid value: '{shorten(value)}'. Supported values are: {_join_quoted(supported)}."
    if (ours := _CHAT_PARTS.get(value)) in supported:
        message += f" In the Responses API, a part of this type is called '{ours}'."
    return InvalidRequest(message, param=where, code="invalid_value")


def refused_value(where: str, value: str, reason: str) -> InvalidRequest:
    """For a string that OpenAI's API has and that is refused here. `reason` says what to do."""
    return InvalidRequest(
        f"'{where}': '{value}' is not supported: {reason}.", param=where, code="invalid_value"
    )


def out_of_bounds(
    where: str, kind: str, *, minimum: float, maximum: float, value: float
) -> InvalidRequest:
    """For a number below `minimum` or, otherwise, above `maximum`.

    `kind` is "integer" or "decimal". NaN counts as above the maximum.
    """
    is_below = value < minimum
    side, bound = (
        ("below minimum", f">= {minimum}") if is_below else ("above maximum", f"<= {maximum}")
    )
    shown_value = str(value) if abs(value) < 1e18 else "a value out of range"
    return InvalidRequest(
        f"Invalid '{where}': {kind} {side} value. "
        f"Expected a value {bound}, but got {shown_value} instead.",
        param=where,
        code=f"{kind}_{'below_min' if is_below else 'above_max'}_value",
    )


def too_long(where: str, kind: str, limit: int, length: int) -> InvalidRequest:
    """For a string or an array above its maximum length. `kind` is "string" or "array"."""
    expected = f"{_article(kind)} {kind}"
    return InvalidRequest(
        f"Invalid '{where}': {kind} too long. Expected {expected} with maximum length {limit}, "
        f"but got {expected} with length {length} instead.",
        param=where,
        code=f"{kind}_above_max_length",
    )


def empty(where: str, kind: str) -> InvalidRequest:
    """For an empty string or array. `kind` is "string" or "array"."""
    return InvalidRequest(
        f"Invalid '{where}': empty {kind}. Expected {_article(kind)} {kind} "
        f"with minimum length 1, but got an empty {kind} instead.",
        param=where,
        code=f"empty_{kind}",
    )


def json_type(value: Any) -> str:
    """The JSON type of a value as an error names it, with an article."""
    return _JSON_TYPES.get(type(value), "null")


def shorten(text: str) -> str:
    """A client's text, short enough for an error message."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _article(kind: str) -> str:
    return "an" if kind == "array" else "a"


def _join_quoted(values: Collection[str]) -> str:
    *most, last = (f"'{value}'" for value in values)
    if len(most) > 1:
        return f"{', '.join(most)}, and {last}"
    return f"{most[0]} and {last}" if most else last
