"""The arguments of calls in a history, as upstreams accept them: always a JSON object."""

import json
import re
from typing import Any

import msgspec

INVALID_ARGUMENTS = "invalid_arguments"
"""The key under which the model finds arguments that are no JSON object."""

_PLACEHOLDER = re.compile(r'\A\s*(?:\{\s*\}|\[\s*\]|null|"")\s*(?=\{)')

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Checks the grammar and makes no values: a history may have megabytes of arguments."""


def object_arguments(arguments: str) -> str:
    """The arguments, unchanged if they are a JSON object.

    Templates of servers parse them, and anything but an object would make them refuse the whole
    conversation: also the half of an object that a length limit left. Raw line ends in strings, an
    object in a string, a placeholder before the object and halves of surrogate pairs are
    repaired. The text of what cannot be repaired is kept as a string in an object, so that the
    model sees what it wrote.
    """
    if _is_object(arguments):
        return arguments
    text = arguments.strip()
    if text in ("", "null"):
        return "{}"
    repaired = _repair(text)
    if repaired is None:
        repaired = _repair(without_placeholder(text))
    value = {INVALID_ARGUMENTS: arguments} if repaired is None else repaired
    encoded = json.dumps(value, ensure_ascii=False)
    return encoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def without_placeholder(arguments: str) -> str:
    """The arguments without what some upstreams write before the object: `{}`, `[]`, `null` or an
    empty string."""
    return _PLACEHOLDER.sub("", arguments)


def _is_object(text: str) -> bool:
    try:
        _OBJECT.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def _repair(text: str) -> dict[str, Any] | None:
    """The object that the text means; None if it means none."""
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse)
        if isinstance(value, str):
            value = json.loads(value, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> None:
    """Refuses NaN and infinities, which are no JSON."""
    raise ValueError(constant)
