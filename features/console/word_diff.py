"""The words in which two texts differ. Pure."""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

MAX_WORDS = 1500
"""Words of each text that are compared: texts that are made to take long then take an eighth of a
second."""
_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text. `differs`: the other text does not have it there."""

    text: str
    differs: bool


@dataclass(frozen=True, slots=True)
class WordDiff:
    """Two texts, each in pieces that follow one another."""

    a: list[Piece]
    b: list[Piece]
    is_cut: bool
    """Behind MAX_WORDS words the texts were not compared; they are the last pieces."""


def word_diff(a: str, b: str) -> WordDiff:
    """Compares two texts word by word, without the space between them. Too slow for an event
    loop."""
    words_a, words_b = _WORD.findall(a), _WORD.findall(b)
    compared_a, compared_b = words_a[:MAX_WORDS], words_b[:MAX_WORDS]
    pieces_a, pieces_b = list[Piece](), list[Piece]()
    # Frequent words alone are no match: without this rule a text of few words takes minutes.
    matcher = SequenceMatcher(
        None,
        [word.rstrip() for word in compared_a],
        [word.rstrip() for word in compared_b],
        autojunk=True,
    )
    for kind, a_from, a_to, b_from, b_to in matcher.get_opcodes():
        _add(pieces_a, compared_a[a_from:a_to], differs=kind != "equal")
        _add(pieces_b, compared_b[b_from:b_to], differs=kind != "equal")
    is_cut = len(words_a) > MAX_WORDS or len(words_b) > MAX_WORDS
    _add(pieces_a, words_a[MAX_WORDS:], differs=False)
    _add(pieces_b, words_b[MAX_WORDS:], differs=False)
    return WordDiff(pieces_a, pieces_b, is_cut)


def _add(pieces: list[Piece], words: list[str], *, differs: bool) -> None:
    if words:
        pieces.append(Piece("".join(words), differs))
