"""The text in `{"input": "…"}`, unwrapped while it is being said.

A custom tool takes free text, a chat upstream sends functions' arguments as JSON; so the tool is offered as a function with one string
argument (worker/translation/chat/request.py), and what the model writes into that string is the call's input. As long as the JSON has just
this shape, each piece of it is decoded as it comes. A model may write another shape all the same: then nothing is said before the end,
when the whole can be looked at.
"""

import json
import re

CUSTOM_TOOL_ARGUMENT = "input"
"""The name of that one argument."""

_OPENING = f'{{"{CUSTOM_TOOL_ARGUMENT}":"'
_WHITESPACE_POSITIONS = frozenset((0, 1, len(_OPENING) - 2, len(_OPENING) - 1))
"""Where white space may stand in the opening: before its brace, quote, colon and quote."""

_SPECIAL = re.compile(r'["\\]')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_UNICODE_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""What neither Postgres nor strict JSON takes (design §9); an escape can spell it where the raw text had been cleaned of it."""


class InputUnwrapper:
    """The JSON around one call's input, on its way past."""

    def __init__(self) -> None:
        self._matched = 0
        """Characters of the opening that have come."""
        self._buffer = ""
        """The beginning of an escape."""
        self._is_other_shape = False
        self._is_closed = False

    def unwrap(self, arguments: str) -> str:
        """What the next piece of the arguments says of the input; often nothing yet."""
        if self._is_other_shape or self._is_closed:
            return ""
        start = self._match_opening(arguments)
        if self._is_other_shape or self._matched < len(_OPENING):
            return ""
        return self._decode(self._buffer + arguments[start:])

    def flush(self, arguments: str) -> str:
        """What is still to be said at the end, given all arguments: the rest of an escape, or everything where the shape was another."""
        if self._matched == len(_OPENING) and not self._is_other_shape:
            return _UNSTORABLE.sub("\ufffd", self._buffer)
        return _UNSTORABLE.sub("\ufffd", _extract_input(arguments))

    def _match_opening(self, arguments: str) -> int:
        """Follows the opening; the position behind it in `arguments`."""
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
        """The characters that the string in `text` stands for, up to its closing quote or to an escape whose end is still to come."""
        said: list[str] = []
        at = 0
        self._buffer = ""
        while (special := _SPECIAL.search(text, at)) is not None:
            said.append(text[at : special.start()])
            at = special.start()
            if special[0] == '"':
                self._is_closed = True
                return "".join(said)
            escape = _decode_escape(text[at : at + 12])
            if escape is None:
                self._buffer = text[at:]
                return "".join(said)
            said.append(escape[0])
            at += escape[1]
        return "".join((*said, text[at:]))


def _decode_escape(text: str) -> tuple[str, int] | None:
    """What an escape means and how long it is; None while its end is missing. One that JSON does not know means itself."""
    if len(text) < 2:
        return None
    if text[1] != "u":
        return _ESCAPES.get(text[1], text[:2]), 2
    code = _UNICODE_ESCAPE.match(text)
    if code is None:
        return None if len(text) < 6 and re.fullmatch(r"[0-9a-fA-F]*", text[2:]) else (text[:2], 2)
    first = int(code[1], 16)
    if not 0xD800 <= first < 0xDC00:
        return _UNSTORABLE.sub("\ufffd", chr(first)), 6
    if len(text) < 12 and "\\u".startswith(text[6:8]) and re.fullmatch(r"[0-9a-fA-F]*", text[8:]):
        return None
    low = _UNICODE_ESCAPE.match(text, 6)
    if low is None or not 0xDC00 <= (second := int(low[1], 16)) < 0xE000:
        return "\ufffd", 6
    return chr(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)), 12


def _extract_input(arguments: str) -> str:
    """The input in arguments of whatever shape: the string under its name or the only string there is, else the arguments themselves."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments if arguments.strip() else ""
    if isinstance(found, str):
        return found
    if isinstance(found, dict):
        named = found.get(
            CUSTOM_TOOL_ARGUMENT, next(iter(found.values()), "") if len(found) < 2 else None
        )
        if isinstance(named, str):
            return named
    return arguments
