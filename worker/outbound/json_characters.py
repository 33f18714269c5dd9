"""Replaces what parsers of JSON refuse in the characters of an answer: bytes that are not UTF-8, a
byte order mark, and halves of surrogate pairs, of which JavaScript writes some."""

import codecs
import re
from collections.abc import AsyncIterable, AsyncIterator

_HALF = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_OPEN = r"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z"
_ESCAPE = re.compile(rf"{_PAIR}|(?P<open>(?=\\){_OPEN})|(?P<half>{_HALF})|\\.", re.DOTALL)
"""An escape in a string. `open`: it may go on in the next piece."""

_LONGEST = 11
"""Characters of an escape that can go on."""


class _Repair:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._open = ""

    def feed(self, piece: bytes, *, final: bool = False) -> bytes:
        """What can be sent on of this piece and of the ones before it."""
        text = self._open + self._decoder.decode(piece, final)
        self._open = ""
        if "\\ud" in text or "\\uD" in text or "\\" in text[-_LONGEST:]:
            text = _ESCAPE.sub(self._replace, text)
        if final:
            text += re.sub(_HALF, r"\\ufffd", self._open)
        return text.encode()

    def _replace(self, found: re.Match[str]) -> str:
        if found["open"]:
            self._open = found["open"]
            return ""
        return "\\ufffd" if found["half"] else found[0]


async def with_valid_characters(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The pieces of an answer, which is JSON or events of JSON, with U+FFFD for each such
    character. Each piece is sent on at once, but for an escape that it breaks off."""
    repair = _Repair()
    async for piece in pieces:
        if repaired := repair.feed(piece):
            yield repaired
    if rest := repair.feed(b"", final=True):
        yield rest
