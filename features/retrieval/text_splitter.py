"""Texts that are too large for an upstream's embeddings, in parts that it takes.

Many models take 512 tokens at most, and some servers as many in a batch, while a chunk of a file
has 800. A text whose parts were embedded has the mean of their embeddings, each counting with its
length: so a chunk stays one chunk, with the number and the text that the file gives it. Pure.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

LEAST_CHARACTERS = 64
"""A text that is shorter is not divided."""


@dataclass(frozen=True, slots=True)
class _Part:
    text: str
    owner: int
    """the index of the text that it is a part of"""


class TextSplitter:
    """Gives the parts of some texts to embed, and gathers their embeddings.

    Bounded: each split halves a list or a text. After the first text that was too large all others
    are as short as its halves, so they need no failed request of their own.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._waiting = deque([[_Part(text, at) for at, text in enumerate(texts)]])
        """Batches, in order."""
        self._most = len(texts)
        """Parts in one batch."""
        self._embedded: list[list[tuple[int, str]]] = [[] for _ in texts]
        """Of each text: the lengths of its parts, and their embeddings as JSON."""
        self._limit: int | None = None
        """Characters that a part may have, once one was too large."""

    def next_batch(self) -> list[str] | None:
        """The texts that are to be embedded next; None if all are."""
        if not self._waiting:
            return None
        parts = [part for each in self._waiting.popleft() for part in self._cut(each)]
        starts = range(0, len(parts), self._most)
        self._waiting.extendleft(parts[at : at + self._most] for at in reversed(starts))
        return [part.text for part in self._waiting[0]]

    def split(self) -> bool:
        """The batch was too large: halves it. False if it cannot be halved any more."""
        batch = self._waiting[0]
        middle = len(batch) // 2
        if middle:
            self._waiting[0] = batch[middle:]
            self._waiting.appendleft(batch[:middle])
            return True
        size = len(batch[0].text)
        self._limit = math.ceil(size / 2)
        return size >= LEAST_CHARACTERS

    def take(self, vectors: Sequence[str]) -> None:
        """The embeddings of the batch."""
        for part, vector in zip(self._waiting.popleft(), vectors, strict=True):
            self._embedded[part.owner].append((len(part.text), vector))

    def vectors(self) -> list[str]:
        """The embedding of each text, as JSON. Takes milliseconds for long lists of parts."""
        return [parts[0][1] if len(parts) == 1 else _mean(parts) for parts in self._embedded]

    def _cut(self, part: _Part) -> list[_Part]:
        """The part, or shorter ones if it is longer than the limit. None of them is of spaces."""
        if self._limit is None or len(part.text) <= self._limit:
            return [part]
        middle = len(part.text) // 2
        space = part.text.rfind(" ", middle - middle // 4, middle)
        at = middle if space < 0 else space + 1
        halves = (part.text[:at], part.text[at:])
        return [
            piece
            for half in halves
            if not half.isspace()
            for piece in self._cut(_Part(half, part.owner))
        ]


def _mean(parts: Sequence[tuple[int, str]]) -> str:
    """The mean of embeddings, weighted by length, as long as they are on average."""
    vectors = [orjson.loads(vector) for _, vector in parts]
    weights = [weight / sum(length for length, _ in parts) for weight, _ in parts]
    mean = [
        math.fsum(map(math.prod, zip(weights, numbers, strict=True)))
        for numbers in zip(*vectors, strict=True)
    ]
    size = math.hypot(*mean)
    if not size:
        return parts[0][1]  # opposite directions: any of them
    wanted = math.fsum(w * math.hypot(*v) for w, v in zip(weights, vectors, strict=True))
    return orjson.dumps([number * wanted / size for number in mean]).decode()
