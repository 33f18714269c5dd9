"""The text in `{"input": "…"}`, unwrapped while it streams.

A custom tool takes free text; a chat upstream sends a function's arguments as JSON. So the tool is
offered as a function with one string argument (worker/translation/tool_catalog.py), and the string
that the model writes is the call's input. While the JSON has exactly this shape, each piece is
decoded as it arrives. For another shape, the input is read when the arguments are complete.
"""

import json
import re

from models.wire.json_input import clean_text

CUSTOM_TOOL_ARGUMENT = "input"
"""The name of that one argument."""

_OPENING = f'{{"{CUSTOM_TOOL_ARGUMENT}":"'
_WHITESPACE_POSITIONS = frozenset((0, 1, len(_OPENING) - 2, len(_OPENING) - 1))
"""Positions in the opening before which white space is allowed: brace, quote, colon, quote."""

_SPECIAL = re.compile(r'["\\]')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_UNICODE_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


class InputUnwrapper:
    """Takes the JSON off one call's input.

    Escapes can spell characters that cannot be stored, so decoded text is cleaned here
    (`clean_text`).
    """

    def __init__(self) -> None:
        self._matched = 0
        """Characters of the opening that have arrived."""
        self._buffer = ""
        """The start of an escape whose end has not arrived."""
        self._is_other_shape = False
        self._is_closed = False

    def unwrap(self, arguments: str) -> str:
        """The input in the next piece of the arguments; often empty."""
        if self._is_other_shape or self._is_closed:
            return ""
        start = self._match_opening(arguments)
        if self._is_other_shape or self._matched < len(_OPENING):
            return ""
        return self._decode(self._buffer + arguments[start:])

    def flush(self, arguments: str) -> str:
        """The rest of the input, from the complete arguments: an unfinished escape, or all of it
        for another shape."""
        if self._matched == len(_OPENING) and not self._is_other_shape:
            return clean_text(self._buffer)
        return clean_text(_extract_input(arguments))

    def _match_opening(self, arguments: str) -> int:
        """Matches the opening; returns the position after it in `arguments`."""
        for position, character in enumerate(arguments):
            if self._matched == len(_OPENING):
                return position
            if character == _OPENING[self._matched]:
                self._matched += 1
            elif self._matched not in _WHITESPACE_POSITIONS or not character.isspace():
                self._is_other_shape = True
                return position
        return len(arguments)

    def _decode(self, text: str) -> str:
        """Decodes the string in `text`, up to its closing quote or to an escape whose end has
        not arrived."""
        decoded: list[str] = []
        at = 0
        self._buffer = ""
        while (special := _SPECIAL.search(text, at)) is not None:
            decoded.append(text[at : special.start()])
            at = special.start()
            if special[0] == '"':
                self._is_closed = True
                return "".join(decoded)
            escape = _decode_escape(text[at : at + 12])
            if escape is None:
                self._buffer = text[at:]
                return "".join(decoded)
            decoded.append(escape[0])
            at += escape[1]
        return "".join((*decoded, text[at:]))


def _decode_escape(text: str) -> tuple[str, int] | None:
    """An escape's character and its length; None while its end is missing. An escape that JSON
    does not know stays as it is."""
    if len(text) < 2:
        return None
    if text[1] != "u":
        return _ESCAPES.get(text[1], text[:2]), 2
    code = _UNICODE_ESCAPE.match(text)
    if code is None:
        return None if len(text) < 6 and re.fullmatch(r"[0-9a-fA-F]*", text[2:]) else (text[:2], 2)
    first = int(code[1], 16)
    if not 0xD800 <= first < 0xDC00:
        return clean_text(chr(first)), 6
    if len(text) < 12 and "\\u".startswith(text[6:8]) and re.fullmatch(r"[0-9a-fA-F]*", text[8:]):
        return None
    low = _UNICODE_ESCAPE.match(text, 6)
    if low is None or not 0xDC00 <= (second := int(low[1], 16)) < 0xE000:
        return "\ufffd", 6
    return chr(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)), 12


def _extract_input(arguments: str) -> str:
    """The input in arguments of any shape: the string named `input`, or the only string, else
    the arguments themselves."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments if arguments.strip() else ""
    if isinstance(parsed, str):
        return parsed
    if isinstance(parsed, dict):
        named = parsed.get(
            CUSTOM_TOOL_ARGUMENT, next(iter(parsed.values()), "") if len(parsed) < 2 else None
        )
        if isinstance(named, str):
            return named
    return arguments
