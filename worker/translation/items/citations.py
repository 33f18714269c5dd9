"""Where a text cites what a search found: markdown links to one of the results, found while the text is being said (contract §4.4). Pure.

The model is told to cite that way (worker/tools/web_search.py). The text stays as it is; a link becomes a `url_citation` whose indices,
in characters of the part's text, cut out the whole link: `text[start_index:end_index]`. A link to anywhere else is only a link.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from models.wire.events import Item

_MAX_LINK_LENGTH = 4096
"""Characters of a link; what is longer is none."""

_LINK = re.compile(
    r"\[(?P<label>(?:[^\[\]\n]|\[[^\[\]\n]*\](?!\())*)\]"
    r"\(<?(?P<url>https?://(?:[^\s()<>\[\]]|\([^\s()<>\[\]]*\))+)>?(?:[ \t]+\"[^\"\n]*\")?[ \t]*\)"
)
"""No link holds the beginning of another, and each ends at the first closing bracket that can end it, so that it does not matter how much
of the text behind it is there already."""


class CitationFinder:
    """The citations in one text part, as it grows."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        """`sources`: URL -> title of what may be cited (`sources_of`)."""
        self._sources = sources
        self._tail = ""
        """The end of the text so far in which a link may have begun."""
        self._tail_start = 0
        """Characters of the text before that."""

    def find(self, text: str) -> list[dict[str, Any]]:
        """The annotations that this further piece of the text completes."""
        self._tail += text
        found = []
        end = 0
        if ")" in text:
            for link in _LINK.finditer(self._tail):
                end = link.end()
                annotation = self._annotation(link)
                if annotation is not None:
                    found.append(annotation)
        end = max(end, self._tail.rfind("\n", end) + 1, len(self._tail) - _MAX_LINK_LENGTH)
        self._tail_start += end
        self._tail = self._tail[end:]
        return found

    def _annotation(self, link: re.Match[str]) -> dict[str, Any] | None:
        url = link["url"]
        title = self._sources.get(_normalise_url(url))
        if title is None or link.end() - link.start() > _MAX_LINK_LENGTH:
            return None
        start = self._tail_start + link.start()
        return {
            "type": "url_citation",
            "url": url,
            "title": title or link["label"],
            "start_index": start,
            "end_index": self._tail_start + link.end(),
        }


def citation_sources(history: Iterable[Item]) -> dict[str, str]:
    """URL -> title of all that the searches in this history have found, as the model was told (worker/tools/web_search.py)."""
    sources: dict[str, str] = {}
    for item in history:
        answer = item.get("answer")
        if item["type"] == "web_search_call" and isinstance(answer, str):
            sources |= {_normalise_url(result.url): result.title for result in _results(answer)}
    return sources


class SearchResult(msgspec.Struct, frozen=True):
    """One thing a search has found."""

    title: str
    url: str
    content: str


class SearchOutput(msgspec.Struct, frozen=True):
    """What the model is told of a search, as JSON."""

    results: list[SearchResult]
    note: str = ""


def _results(output: str) -> list[SearchResult]:
    try:
        return msgspec.json.decode(output, type=SearchOutput).results
    except msgspec.MsgspecError:  # an error's words, or cut off for being too long
        return []


def _normalise_url(url: str) -> str:
    return url.rstrip("/")
