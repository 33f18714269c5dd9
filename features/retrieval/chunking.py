"""Cuts a text into overlapping chunks while it is read. Pure.

Tokens are estimated: four bytes of UTF-8 each, as everywhere where no tokenizer is set
(`estimate_tokens`). A chunk ends where a paragraph, a line or a sentence ends, if one does in its
last fifth, else between two words. The chunks depend only on the text and the strategy, not on the
pieces in which the text comes: so a second run over a file makes the same chunks, with the same
numbers.
"""

import math
import re
import unicodedata
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

LEAST_TOKENS = 100
MOST_TOKENS = 4096
"""Limits of `max_chunk_size_tokens` (OpenAI's API)."""

_WIDE = "\u2e80-\ua4cf\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of scripts without spaces: each is a word."""
_LONGEST_WORD = 24
_UNIT = re.compile(rf"[{_WIDE}]\s{{0,8}}|[^\s{_WIDE}]{{1,{_LONGEST_WORD}}}\s{{0,8}}|\s{{1,8}}")
"""A word with the space behind it; parts of what is longer."""
_LONGEST_EXTENSION = 16
_LOOK_AHEAD = _LONGEST_WORD + 8 + _LONGEST_EXTENSION + 1
"""Characters that must be known to find the end of a unit."""
_JOINER = "\u200d"
_MODIFIER = re.compile(f"[{_JOINER}\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
"""Belong to the character before them, as all combining marks (Unicode's categories M) do."""

_PARAGRAPH = re.compile(r"\n[^\S\n]*\n")
_SENTENCE = re.compile(r"[.!?…][\"')\]’”»]*\s|[。！？]")
_WIDE_CHARACTER = re.compile(f"[{_WIDE}]")
_SHORTEST_SHARE = 0.8
"""Of a chunk's tokens, so many come before the first place where it may end."""


@dataclass(frozen=True, slots=True)
class ChunkingStrategy:
    """How large the chunks of a file are."""

    max_tokens: int = 800
    overlap_tokens: int = 400
    """Tokens at the end of a chunk that begin the next one, too."""

    def __post_init__(self) -> None:
        """Raises ValueError for what OpenAI's API refuses."""
        if not LEAST_TOKENS <= self.max_tokens <= MOST_TOKENS:
            raise ValueError(f"max_tokens must be between {LEAST_TOKENS} and {MOST_TOKENS}")
        if not 0 <= self.overlap_tokens <= self.max_tokens / 2:
            raise ValueError("overlap_tokens must be between 0 and half of max_tokens")


AUTO = ChunkingStrategy()
"""The strategy `auto` of OpenAI's API."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a file's text."""

    number: int
    """From 0."""
    text: str
    tokens: int


class _Unit(NamedTuple):
    text: str
    tokens: float
    border: int
    """How good it is to end a chunk behind it: 3 a paragraph, 2 a line or sentence, 1 a word, 0 the
    middle of one."""


class Chunker:
    """Cuts one text. Holds a chunk and the last piece; a second of CPU for about 2 MB of text, so
    call it in a thread."""

    def __init__(self, strategy: ChunkingStrategy = AUTO) -> None:
        self._strategy = strategy
        self._text = ""
        """What is not divided into units yet."""
        self._units: list[_Unit] = []
        """Of the next chunk; the first `_repeated` are in the last one, too."""
        self._repeated = 0
        self._tokens = 0.0
        self._number = 0

    def feed(self, text: str) -> list[Chunk]:
        """The next piece of the text: the chunks that are complete now."""
        self._text += text
        return self._take(len(self._text) - _LOOK_AHEAD)

    def finish(self) -> list[Chunk]:
        """The text has ended: the last chunks."""
        chunks = self._take(len(self._text))
        if any(not unit.text.isspace() for unit in self._units[self._repeated :]):
            chunks += self._cut(len(self._units))
        self._units = []
        return chunks

    def _take(self, end: int) -> list[Chunk]:
        """Takes the units that begin before `end`."""
        chunks: list[Chunk] = []
        start = 0
        while start < end:
            start, unit = self._unit(start)
            self._units.append(unit)
            self._tokens += unit.tokens
            if self._tokens > self._strategy.max_tokens and len(self._units) > 1:
                chunks += self._cut(self._best_end())
        self._text = self._text[start:]
        return chunks

    def _unit(self, start: int) -> tuple[int, _Unit]:
        """The unit that begins at `start`, and where it ends."""
        match = _UNIT.match(self._text, start)
        assert match is not None
        end = _end_of_character(self._text, match.end())
        text = self._text[start:end]
        return end, _Unit(text, _estimate(text), _border(text))

    def _best_end(self) -> int:
        """How many units the chunk has: all but the last one, or fewer that end better."""
        count = len(self._units) - 1
        tokens = self._tokens - self._units[count].tokens
        best = count
        while (
            count > self._repeated + 1
            and self._units[best - 1].border < 3
            and tokens >= _SHORTEST_SHARE * self._strategy.max_tokens
        ):
            if self._units[count - 1].border > self._units[best - 1].border:
                best = count
            count -= 1
            tokens -= self._units[count].tokens
        return best

    def _cut(self, count: int) -> list[Chunk]:
        """Makes a chunk of the first units, and keeps those with which the next one begins. A chunk
        of space is none."""
        units = self._units[:count]
        start = self._start_of_next(units)
        self._units = self._units[start:]
        self._repeated = count - start
        self._tokens = sum(unit.tokens for unit in self._units)
        text = "".join(unit.text for unit in units).rstrip().lstrip("\n")
        if not text:
            return []
        chunk = Chunk(self._number, text, math.ceil(sum(unit.tokens for unit in units)))
        self._number += 1
        return [chunk]

    def _start_of_next(self, units: list[_Unit]) -> int:
        """The first of the units that are repeated: as many as the overlap has tokens for, from the
        beginning of a word on."""
        tokens = accumulate(unit.tokens for unit in reversed(units))
        most = sum(each <= self._strategy.overlap_tokens for each in tokens)
        first = max(len(units) - most, 1)
        words = (at for at in range(first, len(units)) if units[at - 1].border)
        return next(words, first)


def _end_of_character(text: str, end: int) -> int:
    """`end`, or the end of the character that would be cut there."""
    last = min(len(text), end + _LONGEST_EXTENSION)
    while end < last and (
        text[end - 1] == _JOINER
        or unicodedata.category(text[end])[0] == "M"
        or _MODIFIER.match(text, end)
    ):
        end += 1
    return end


def _estimate(word: str) -> float:
    """Tokens of a word: a quarter for each byte of UTF-8."""
    return len(word.encode(errors="replace")) / 4


def _border(text: str) -> int:
    last = text[-1]
    if not last.isspace():
        return 2 if last in "。！？" else bool(_WIDE_CHARACTER.match(last))
    if "\n" in text:
        return 3 if _PARAGRAPH.search(text) else 2
    return 2 if _SENTENCE.search(text) else 1
