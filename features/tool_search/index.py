"""The index of a list of tools: which of them fit a query, by their words (BM25) and, where there
are embeddings, by their meaning.

Pure. Building it takes a second for the largest lists, so callers use a thread. No part of a query
is a pattern: it is words only, so its cost is linear.
"""

import hashlib
import math
import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_TOOLS = 16_384
"""Tools of an index; further ones are not found."""
_MAX_TEXT = 2_000
"""Characters of one tool."""
_MAX_QUERY = 1_000
"""Characters of a query."""
_MAX_PARAMETERS = 64
_MAX_WORDS = 200_000
"""Words of an index: some 20 MB, and half a second of CPU. Of the tools of a longer list fewer
words count, at first those of the name."""
_MIN_WORDS = 12
"""Words of a tool that always count."""
_LONG_WORD = 16
"""Characters."""
_K1, _B = 1.2, 0.6
_RANK_OFFSET = 60
"""Of reciprocal rank fusion."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_STOP_WORDS = (
    "a an the of to in on for with and or by from at is are be this that it its as my me i we our "
    "you your all any some can will would should which what who when where how please tool tools "
    "use using want need given specific new"
)
_STOP = frozenset(_STOP_WORDS.split())
_GROUPS = (
    "create add make insert open new register compose draft",
    "delete remove erase drop destroy discard",
    "get fetch read retrieve show view see display describe detail information info inspect",
    "list enumerate browse",
    "update edit change modify alter set rename adjust",
    "search find look lookup query locate",
    "send post deliver write publish share",
    "upload put store save",
    "schedule book plan arrange",
    "cancel abort stop terminate end kill",
    "run execute start launch trigger",
    "event meeting appointment",
    "issue ticket bug task",
    "message chat dm text",
    "user person people member colleague someone",
    "file document object blob",
    "folder directory",
    "table relation",
    "comment reply note remark answer",
    "invite attendee participant guest",
    "merge combine",
    "email mail",
    "picture image photo",
    "copy duplicate clone",
    "database db",
    "repository repo",
)
_PHRASES = {
    "set up": "create",
    "look at": "get",
    "look up": "search",
    "look for": "search",
    "get rid of": "delete",
    "take down": "delete",
    "shut down": "stop",
    "what are": "list",
    "which are": "list",
    "find out": "get",
    "turn off": "disable",
    "turn on": "enable",
}
_PHRASE = re.compile(rf"\b({'|'.join(_PHRASES)})\b", re.IGNORECASE)
"""Verbs of two words, of which each alone would mean something else."""
_SAME = {word: group.split()[0] for group in _GROUPS for word in group.split()}
"""Word -> the word that stands for it. Models name what a tool does in their own words."""


@dataclass(frozen=True, slots=True)
class Document:
    """A tool as the index knows it."""

    place: str
    """the label of its MCP server, or its namespace; empty: none"""
    name: str
    description: str
    parameters: tuple[str, ...]

    @classmethod
    def of(cls, place: str, tool: Mapping[str, Any], schema: Any) -> "Document":
        """The document of a tool. Only the start of long texts counts."""
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        names = list(properties)[:_MAX_PARAMETERS] if isinstance(properties, Mapping) else ()
        return cls(
            place,
            str(tool["name"])[:_MAX_TEXT],
            str(tool.get("description") or "")[:_MAX_TEXT],
            tuple(str(name)[:100] for name in names),
        )

    @property
    def text(self) -> str:
        """What an embedding is made of."""
        return f"{self.place} {self.name}: {self.description}"


def list_hash(documents: Iterable[Document]) -> bytes:
    """The hash of a list of tools."""
    digest = hashlib.sha256()
    for each in documents:
        digest.update(repr((each.place, each.name, each.description, each.parameters)).encode())
    return digest.digest()


class ToolIndex:
    """The words of some tools, and their embeddings."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents
        self.vectors: list[Sequence[float]] = []
        """One of each document, of length 1; or none at all."""
        self._most = max(_MIN_WORDS, _MAX_WORDS // max(1, len(documents)))
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._lengths = [self._add(at, document) for at, document in enumerate(documents)]
        self._mean = math.fsum(self._lengths) / max(1, len(documents)) or 1.0

    def _add(self, at: int, document: Document) -> float:
        weights: dict[str, float] = defaultdict(float)
        left = self._most
        for text, weight in (
            (document.name, 3.0),
            (document.place, 2.0),
            (document.description, 1.0),
            (" ".join(document.parameters), 0.5),
        ):
            found = words(text[: left * _LONG_WORD])[:left]
            left -= len(found)
            for word in found:
                weights[word] += weight
        for word, weight in weights.items():
            self._postings[word].append((at, weight))
        return math.fsum(weights.values())

    def find(self, query: str, count: int, vector: Sequence[float] = ()) -> list[int]:
        """The positions of the tools that fit best. `vector`: the embedding of the query."""
        by_words = self._by_words(query)[: count * 4]
        if not vector or not self.vectors:
            return by_words[:count]
        scores: dict[int, float] = defaultdict(float)
        for ranking in (by_words, self._by_meaning(vector)[: count * 4]):
            for rank, at in enumerate(ranking):
                scores[at] += 1 / (_RANK_OFFSET + rank)
        return sorted(scores, key=lambda at: (-scores[at], at))[:count]

    def _by_words(self, query: str) -> list[int]:
        scores: dict[int, float] = defaultdict(float)
        total = len(self.documents)
        for word in dict.fromkeys(words(query[:_MAX_QUERY])):
            postings = self._postings.get(word, ())
            rarity = math.log(1 + (total - len(postings) + 0.5) / (len(postings) + 0.5))
            for at, weight in postings:
                norm = 1 - _B + _B * self._lengths[at] / self._mean
                scores[at] += rarity * weight * (_K1 + 1) / (weight + _K1 * norm)
        return sorted(scores, key=lambda at: (-scores[at], at))

    def _by_meaning(self, vector: Sequence[float]) -> list[int]:
        near = [sum(map(operator.mul, vector, each)) for each in self.vectors]
        return sorted(range(len(near)), key=lambda at: -near[at])


def unit(vector: Sequence[float]) -> Sequence[float]:
    """The vector with the length 1."""
    length = math.hypot(*vector) or 1.0
    return [number / length for number in vector]


def words(text: str) -> list[str]:
    """The words of a text as the index compares them: parts of `camelCase` and `snake_case`,
    without their endings, one for all that mean the same."""
    text = _PHRASE.sub(lambda phrase: _PHRASES[phrase[0].lower()], text)
    found = (word.lower() for word in _WORD.findall(text))
    return [_SAME.get(stem, stem) for stem in map(_stem, found) if stem not in _STOP]


def _stem(word: str) -> str:
    """The word without a plural or the ending of a verb, roughly."""
    if word in _SAME or len(word) < 4:
        return word
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("s", "")):
        if word.endswith(ending) and not word.endswith("ss"):
            root = word.removesuffix(ending) + instead
            if f"{root}e" in _SAME:
                return f"{root}e"
            return root if len(root) > 2 else word
    return word
