"""Values from JSON of any shape, for chat upstreams: a value that makes no sense counts as
absent."""

import math
from typing import Any

REASONING_PARTS = ("thinking", "reasoning")
"""Types of content parts with reasoning (Mistral and others send content as a list)."""


def lenient_text(raw: Any) -> str:
    """The text of a string, a number, a content part, or a list of these; empty for anything
    else."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, list):
        return "".join(map(lenient_text, raw))
    if isinstance(raw, dict):
        return lenient_text(raw.get("text")) if raw.get("type") not in REASONING_PARTS else ""
    return str(raw) if type(raw) in (int, float) else ""


def lenient_int(raw: Any) -> int | None:
    """The integer in a number or in a string of digits, of any size; None for anything else.

    The Responses API's events have a stricter rule (worker/upstream/responses_events.py): no digits
    in strings.
    """
    if type(raw) is str and raw.isascii() and raw.isdigit() and len(raw) < 20:
        return int(raw)
    if type(raw) is float and math.isfinite(raw):
        return int(raw)
    return raw if type(raw) is int else None


def objects_in(raw: Any) -> list[dict[str, Any]]:
    """The objects of a list. A single object counts as a list of one."""
    if isinstance(raw, dict):
        return [raw]
    return [value for value in raw if isinstance(value, dict)] if isinstance(raw, list) else []
