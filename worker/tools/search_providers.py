"""How each search provider is asked and what it answers: one question in, one HTTP request out; one JSON document in, results out.

Tavily: https://docs.tavily.com/documentation/api-reference/endpoint/search
Brave: https://api-dashboard.search.brave.com/api-reference/web/search/get
SearXNG: https://docs.searxng.org/dev/search_api
"""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode

from models.config.settings import WebSearchSettings
from worker.translation.items.citations import SearchResult


@dataclass(frozen=True, slots=True)
class Question:
    """What is searched for."""

    query: str
    count: int
    """The most results that are of use."""
    is_thorough: bool = False
    allowed: tuple[str, ...] = ()
    """Only results from these domains and those below them; empty: from everywhere."""
    blocked: tuple[str, ...] = ()
    """No results from these."""
    country: str = ""
    """Where the user is: two letters (ISO 3166-1), or empty."""


@dataclass(frozen=True, slots=True)
class Ask:
    """An HTTP request."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    """Hold the key."""
    body: dict[str, Any] | None = None
    """JSON of a POST; None for a GET."""


class Provider(Protocol):
    """A search engine's API."""

    def ask(self, question: Question) -> Ask:
        """The request for a question. Domains may be left out of it where there is no room: results are sifted afterwards."""
        ...

    def read(self, answer: Any) -> Iterator[SearchResult]:
        """The results in an answer. Raises LookupError, TypeError or AttributeError for what is no answer of this provider."""
        ...


class Tavily:
    """`POST /search`, domains as lists of their own."""

    def __init__(self, settings: WebSearchSettings) -> None:
        self._base = settings.base_url or "https://api.tavily.com"
        self._headers = {"authorization": f"Bearer {settings.api_key.get_secret_value()}"}

    def ask(self, question: Question) -> Ask:
        body: dict[str, Any] = {
            "query": question.query,
            "max_results": question.count,
            "search_depth": "advanced" if question.is_thorough else "basic",
        }
        if question.allowed:
            body["include_domains"] = list(question.allowed)
        if question.blocked:
            body["exclude_domains"] = list(question.blocked)
        return Ask(f"{self._base.rstrip('/')}/search", self._headers, body)

    def read(self, answer: Any) -> Iterator[SearchResult]:
        for found in answer["results"]:
            yield SearchResult(
                _text(found.get("title")), _text(found["url"]), _text(found.get("content"))
            )


class Brave:
    """`GET /web/search`; a question has at most 400 characters and 50 words, the domains among them."""

    def __init__(self, settings: WebSearchSettings) -> None:
        self._base = settings.base_url or "https://api.search.brave.com/res/v1"
        self._headers = {"x-subscription-token": settings.api_key.get_secret_value()}

    def ask(self, question: Question) -> Ask:
        asked = {
            "q": _with_domains(question, characters=400, words=50),
            "count": min(question.count, 20),
            "text_decorations": "false",
        }
        if question.country:
            asked["country"] = question.country
        return Ask(f"{self._base.rstrip('/')}/web/search?{urlencode(asked)}", self._headers)

    def read(self, answer: Any) -> Iterator[SearchResult]:
        # a search without any web results has no "web", but it does say that it is one
        results = (
            answer["web"]["results"] if "web" in answer or answer.get("type") != "search" else []
        )
        for found in results:
            content = [
                _text(found.get("description")),
                *(_text(snippet) for snippet in found.get("extra_snippets") or ()),
            ]
            yield SearchResult(
                _plain(found.get("title")),
                _text(found["url"]),
                _plain("\n".join(piece for piece in content if piece)),
            )


class SearXNG:
    """`GET /search?format=json`, of an instance of one's own; a key is sent as a bearer token, for the proxy in front of it."""

    def __init__(self, settings: WebSearchSettings) -> None:
        self._base = settings.base_url
        key = settings.api_key.get_secret_value()
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def ask(self, question: Question) -> Ask:
        asked = {"q": _with_domains(question, characters=2000, words=300), "format": "json"}
        return Ask(f"{self._base.rstrip('/')}/search?{urlencode(asked)}", self._headers)

    def read(self, answer: Any) -> Iterator[SearchResult]:
        for found in answer["results"]:
            yield SearchResult(
                _text(found.get("title")), _text(found["url"]), _text(found.get("content"))
            )


PROVIDERS: dict[str, type[Tavily] | type[Brave] | type[SearXNG]] = {
    "tavily": Tavily,
    "brave": Brave,
    "searxng": SearXNG,
}


def _with_domains(question: Question, *, characters: int, words: int) -> str:
    """The query with the domains as search engines write them, within the provider's bounds: what has no room is left out."""
    rules = [
        " OR ".join(f"site:{domain}" for domain in question.allowed),
        " ".join(f"-site:{domain}" for domain in question.blocked),
    ]
    query = " ".join(question.query.split()[:words])[:characters]
    for rule in filter(None, rules):
        longer = f"{query} {rule}"
        if len(longer) <= characters and len(longer.split()) <= words:
            query = longer
    return query


_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,100}>")


def _plain(value: Any) -> str:
    """A text without HTML."""
    return html.unescape(_TAG.sub("", _text(value)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
