"""Puts what a reader yields into pieces of one form, and limits it."""

from collections.abc import Iterable, Iterator
from io import IncrementalNewlineDecoder
from typing import Final

from features.retrieval.extract.extraction_failed import NO_TEXT, ExtractionFailed
from features.retrieval.extract.limits import shown

_CHARACTERS: Final = 16_000
"""Of one piece: less than 64 KiB in UTF-8."""


def text_pieces(texts: Iterable[str], most: int) -> Iterator[bytes]:
    """The joined texts in UTF-8, in pieces of at most 64 KiB. Lines end with LF, U+0000 is left
    out, and what cannot be encoded is replaced.

    Raises ExtractionFailed for more than `most` bytes, and at the end if there was no text.
    """
    sent = 0
    has_text = False
    for text in _joined(texts):
        piece = text.encode(errors="replace")
        sent += len(piece)
        if sent > most:
            raise too_much_text(most)
        has_text = has_text or not text.isspace()
        yield piece
    if not has_text:
        raise ExtractionFailed("invalid_file", NO_TEXT)


def too_much_text(most: int) -> ExtractionFailed:
    """The failure of a file with more than so many bytes of text."""
    return ExtractionFailed(
        "invalid_file",
        "The file could not be parsed because it is too large: "
        f"it has more than {shown(most)} of text.",
    )


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """The same text in strings of at most `_CHARACTERS`; short ones are joined."""
    newlines = IncrementalNewlineDecoder(None, translate=True)
    waiting: list[str] = []
    count = 0
    for text in texts:
        for start in range(0, len(text), _CHARACTERS):
            part = newlines.decode(text[start : start + _CHARACTERS].replace("\0", ""))
            if count + len(part) > _CHARACTERS:
                yield "".join(waiting)
                waiting, count = [], 0
            waiting.append(part)
            count += len(part)
    waiting.append(newlines.decode("", final=True))
    if rest := "".join(waiting):
        yield rest
