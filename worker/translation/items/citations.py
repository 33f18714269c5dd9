"""Citations of search results in a text: markdown links to a result, recognised while the text
streams.

The prompt asks the model to cite that way (worker/tools/web_search.py). The text is not changed. A
link to a result becomes a `url_citation`; its indices are characters of the part's text and cover
the whole link: `text[start_index:end_index]`. Other links are no citations.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from models.wire.events import Item
from worker.translation.items.file_citations import CitedFile, citable_files, passages_of

_MAX_LINK_LENGTH = 4096
"""Characters of a link. A longer link is no citation."""

_LINK = re.compile(
    r"\[(?P<label>(?:[^\[\]\n]|\[[^\[\]\n]*\](?!\())*)\]"
    r"\(<?(?P<url>https?://(?:[^\s()<>\[\]]|\([^\s()<>\[\]]*\))+)>?(?:[ \t]+\"[^\"\n]*\")?[ \t]*\)"
)
"""No link contains the start of another one, and each ends at the first bracket that can close
it. So the result does not depend on how much of the text after it has already arrived."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What a text may cite."""

    pages: Mapping[str, str] = field(default_factory=dict)
    """URL -> title, of results of web searches"""
    files: Mapping[str, CitedFile] = field(default_factory=dict)
    """what a marker may name -> the file, of results of file searches
    (worker/translation/items/file_citations.py)"""


NO_SOURCES = Sources()


class CitationFinder:
    """The citations of web pages in one text part, as it grows."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        """`pages`: URL -> title of what may be cited."""
        self._pages = pages
        self._tail = ""
        """The end of the text so far that may contain the start of a link."""
        self._tail_start = 0
        """Position of the tail in the text, in characters."""

    def find(self, text: str) -> list[dict[str, Any]]:
        """The annotations that the next piece of the text completes."""
        self._tail += text
        annotations = []
        end = 0
        if ")" in text:
            for link in _LINK.finditer(self._tail):
                end = link.end()
                annotation = self._annotation(link)
                if annotation is not None:
                    annotations.append(annotation)
        end = max(end, self._tail.rfind("\n", end) + 1, len(self._tail) - _MAX_LINK_LENGTH)
        self._tail_start += end
        self._tail = self._tail[end:]
        return annotations

    def _annotation(self, link: re.Match[str]) -> dict[str, Any] | None:
        url = link["url"]
        title = self._pages.get(_normalise_url(url))
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


def citation_sources(history: Iterable[Item]) -> Sources:
    """All results of the searches in this history that the model was shown."""
    pages: dict[str, str] = {}
    files: dict[str, CitedFile] = {}
    for item in history:
        if item["type"] == "web_search_call" and isinstance(item.get("answer"), str):
            results = _results(item["answer"])
            pages |= {_normalise_url(result.url): result.title for result in results}
        elif item["type"] == "file_search_call":
            files |= citable_files(passages_of(item) or ())
    return Sources(pages, files)


class WebSearchResult(msgspec.Struct, frozen=True):
    """One result of a search."""

    title: str
    url: str
    content: str


class SearchOutput(msgspec.Struct, frozen=True):
    """The output of a search as the model gets it, as JSON."""

    results: list[WebSearchResult]
    note: str = ""


def _results(output: str) -> list[WebSearchResult]:
    try:
        return msgspec.json.decode(output, type=SearchOutput).results
    except msgspec.MsgspecError:  # an error's text, or JSON that was cut because it was too long
        return []


def _normalise_url(url: str) -> str:
    return url.rstrip("/")
