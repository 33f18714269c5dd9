"""Counts the values of JSON in its bytes, before objects are made of them: objects need up to
thirty times the memory."""

import re

_COMPLETE = re.compile(rb'[^"]*+(?:"(?:[^"\\\r\n]|\\[^\r\n])*+(?:"|\\?[\r\n])[^"]*+)*+', re.DOTALL)
"""Everything up to a string that does not end in these bytes. JSON has no line break in a string;
a line of an event stream that has another quote ends there too."""
_STRING = re.compile(rb'"(?:[^"\\\r\n]|\\[^\r\n])*+(?:"|\\?[\r\n])')


class ValueCounter:
    """Counts the values of JSON that arrives in pieces: commas and opening brackets outside of
    strings."""

    def __init__(self) -> None:
        self.count = 0
        self._open = b""
        """What stands for the beginning of a string that has not ended: a quote, and a backslash if
        the last byte escapes the next one."""

    def feed(self, piece: bytes | bytearray) -> None:
        """Counts the values in the next piece."""
        piece = self._open + piece
        match = _COMPLETE.match(piece)
        end = match.end() if match is not None else 0
        self.count += count_marks(_STRING.sub(b"", piece[:end]))
        unfinished = piece[end:]
        escapes = len(unfinished) - len(unfinished.rstrip(b"\\"))
        self._open = unfinished[:1] + b"\\" * (escapes % 2)


def count_marks(encoded: bytes | bytearray) -> int:
    """Commas and opening brackets, also in strings: never fewer than there are values."""
    return encoded.count(b",") + encoded.count(b"[") + encoded.count(b"{")
