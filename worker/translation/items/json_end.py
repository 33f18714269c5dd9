"""Where does a JSON object end that arrives in pieces?"""

import re

_MARKS = re.compile(r'["\\{}\[\]]')


class JsonEnd:
    """Follows the nesting of JSON that arrives in pieces, in time proportional to each piece.

    It does not check the JSON: what ends here may still be invalid.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._escaped = 0
        """Characters of the next piece that a backslash at the end of the last one escapes."""

    def feed(self, piece: str) -> bool:
        """Whether every object, array and string that was opened is closed after this piece."""
        start = self._escaped
        self._escaped = 0
        for mark in _MARKS.finditer(piece):
            at, character = mark.start(), mark[0]
            if at < start:
                continue
            if character == '"':
                self._is_in_string = not self._is_in_string
            elif self._is_in_string:
                start = at + 2 if character == "\\" else start
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
        self._escaped = max(0, start - len(piece))
        return self._depth <= 0 and not self._is_in_string


def is_cut_off(text: str) -> bool:
    """Whether the text is JSON that ended in the middle: an object, list or string is open. Text
    that is no JSON at all is not cut off, as far as can be known."""
    return text.lstrip()[:1] in ("{", "[", '"') and not JsonEnd().feed(text)
