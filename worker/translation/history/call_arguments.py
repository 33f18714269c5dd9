"""The arguments of calls in a history, as upstreams accept them: always a JSON object."""

import json
from collections.abc import Mapping
from typing import Any

INVALID_ARGUMENTS = "invalid_arguments"
"""The key under which the model finds arguments that are no JSON object."""


def object_arguments(arguments: str) -> str:
    """The arguments, unchanged if they are a JSON object.

    Templates of servers parse them, and anything but an object would make them refuse the whole
    conversation: also the half of an object that a length limit left. Raw line ends in strings, an
    object in a string, and a placeholder `{}` before the object are repaired. The text of what
    cannot be repaired is kept as a string in an object, so that the model sees what it wrote.
    """
    text = arguments.strip()
    if _parse(text, strict=True) is not None:
        return arguments
    if text in ("", "null"):
        return "{}"
    repaired = _parse(text, strict=False)
    if repaired is None and text.startswith("{}"):
        repaired = _parse(text[2:], strict=False)
    value = {INVALID_ARGUMENTS: arguments} if repaired is None else repaired
    # A lone surrogate has no UTF-8: it stays an escape.
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()


def _parse(text: str, *, strict: bool) -> Mapping[str, Any] | None:
    """The object that the text is; None if it is none. `strict`: as JSON's grammar has it."""
    if strict and not text.startswith("{"):
        return None
    try:
        value = json.loads(text, strict=strict, parse_constant=_refuse)
        if isinstance(value, str) and not strict:
            value = json.loads(value, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> None:
    """Refuses NaN and infinities, which are no JSON."""
    raise ValueError(constant)
