"""What upstreams get wrong in JSON: values of any shape, of which one that makes no sense counts as
absent; and characters whose two halves come in two payloads of a stream.

A server that cuts its text by UTF-16 units sends the first half of a surrogate pair at the end of
one delta and the second half at the beginning of the next. The first half waits here for the second
one. A half that stays alone becomes U+FFFD.
"""

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


Path = tuple[str | int, ...]

_ENDS_OTHERS = ("content", "refusal", "tool_calls", "function_call")
"""Fields of a delta behind which the text of no other field goes on."""


class SurrogateHalves:
    """The halves that wait, in one stream."""

    def __init__(self) -> None:
        self.waiting: dict[Path, str] = {}
        """Where a text stands in a delta -> the half at its end."""

    def join(self, delta: Any) -> Any:
        """A delta with whole characters: without a half at the end of a text, and with the half
        that waited for it. A half waits until another field goes on."""
        waiting = list(self.waiting)
        whole = self._join(delta, ())
        if type(whole) is not dict or not any(whole.get(name) for name in _ENDS_OTHERS):
            return whole
        for path in waiting:
            if path in self.waiting and not whole.get(str(path[0])):
                del self.waiting[path]
                whole |= _delta_at(path)
        return whole

    def _join(self, value: Any, path: Path) -> Any:
        kind = type(value)
        if kind is str:
            return self.join_text(value, path)
        if kind is dict:
            return {name: self._join(inner, (*path, name)) for name, inner in value.items()}
        if kind is list:
            return [
                self._join(inner, (*path, _number(inner, position)))
                for position, inner in enumerate(value)
            ]
        return value

    def rest(self) -> list[dict[str, Any]]:
        """A delta for each half that stayed alone. None waits after that."""
        paths, self.waiting = list(self.waiting), {}
        return [_delta_at(path) for path in paths]

    def join_text(self, text: str, path: Path) -> str:
        """A text with whole characters. `path`: where it stands in the stream."""
        if not text or (text.isascii() and path not in self.waiting):
            return text
        text = self.waiting.pop(path, "") + text
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        if "\ud800" <= text[-1] <= "\udbff":
            self.waiting[path], text = text[-1], text[:-1]
        return text


def _number(value: Any, position: int) -> int:
    """What identifies an element of a list in the next delta: its `index`, else its place."""
    index = value.get("index") if type(value) is dict else None
    return index if type(index) is int else position


def _delta_at(path: Path) -> dict[str, Any]:
    value: Any = "\ufffd"
    for key in reversed(path):
        if type(key) is not int:
            value = {key: value}
        else:
            value = [{**value, "index": key} if type(value) is dict else value]
    delta: dict[str, Any] = value
    return delta
