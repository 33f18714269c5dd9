"""Fields that an upstream must not get: its setting `omit`."""

from collections.abc import Collection
from typing import Any

_NEEDED = frozenset(
    ("role", "content", "tool_calls", "tool_call_id", "name", "parameters", "schema")
)
"""Fields inside of the body without which their objects mean nothing."""


def without_fields(body: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The body of a chat request without these fields: its own, and those of its messages, of the
    functions in it and of `json_schema` in `response_format`."""
    inner = frozenset(names) - _NEEDED
    kept = {name: value for name, value in body.items() if name not in names}
    kept["messages"] = [_without(message, inner) for message in body["messages"]]
    if "tools" in kept:
        kept["tools"] = [
            {**tool, "function": _without(tool["function"], inner)} for tool in kept["tools"]
        ]
    response_format = kept.get("response_format", {})
    if "json_schema" in response_format:
        schema = _without(response_format["json_schema"], inner)
        kept["response_format"] = {**response_format, "json_schema": schema}
    return kept


def _without(fields: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
