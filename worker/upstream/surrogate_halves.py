"""Characters whose two halves come in two payloads of a stream.

A server that cuts its text by UTF-16 units sends the first half of a surrogate pair at the end of
one delta and the second half at the beginning of the next. The first half waits here for the second
one. A half that stays alone becomes U+FFFD.
"""

from typing import Any

Path = tuple[str | int, ...]


class SurrogateHalves:
    """The halves that wait, in one stream."""

    def __init__(self) -> None:
        self._waiting: dict[Path, str] = {}
        """Where a text stands in a delta -> the half at its end."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def join(self, value: Any, path: Path = ()) -> Any:
        """A delta with whole characters: without a half at the end of a text, and with the half
        that waited for it."""
        kind = type(value)
        if kind is str:
            return self._join_text(value, path)
        if kind is dict:
            return {name: self.join(inner, (*path, name)) for name, inner in value.items()}
        if kind is list:
            return [
                self.join(inner, (*path, _number(inner, position)))
                for position, inner in enumerate(value)
            ]
        return value

    def rest(self) -> list[dict[str, Any]]:
        """A delta for each half that stayed alone. None waits after that."""
        paths, self._waiting = list(self._waiting), {}
        return [_delta_at(path) for path in paths]

    def _join_text(self, text: str, path: Path) -> str:
        if not text or (text.isascii() and path not in self._waiting):
            return text
        text = self._waiting.pop(path, "") + text
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        if "\ud800" <= text[-1] <= "\udbff":
            self._waiting[path], text = text[-1], text[:-1]
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
