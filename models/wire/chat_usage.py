"""The usage in the bytes of a chat completion that passes unchanged."""

import json
from dataclasses import dataclass
from typing import Any

USAGE_TAIL = 8 * 1024
"""Bytes of the end of a body in which its usage is looked for."""
_FIELD = '"usage"'
_MAX_COUNT = 2**53


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """What a chat completion has used, as its upstream says."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


def find_usage(tail: bytes) -> ChatUsage | None:
    """The last usage in the end of a body, JSON or a stream; None if there is none."""
    text = tail.decode(errors="replace")
    at = text.rfind(_FIELD)
    while at >= 0:
        usage = _object_behind(text, at + len(_FIELD))
        if usage is not None:
            return _usage(usage)
        at = text.rfind(_FIELD, 0, at)
    return None


def _object_behind(text: str, at: int) -> dict[str, Any] | None:
    rest = text[at:].lstrip()
    if not rest.startswith(":"):
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(rest[1:].lstrip())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _usage(usage: dict[str, Any]) -> ChatUsage:
    return ChatUsage(
        _count(usage, "prompt_tokens"),
        _count(usage.get("prompt_tokens_details"), "cached_tokens"),
        _count(usage, "completion_tokens"),
        _count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(counts: object, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return min(max(value, 0), _MAX_COUNT) if type(value) is int else 0
