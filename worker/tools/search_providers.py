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

from models.config.groups import WebSearchSettings
from worker.translation.items.citations import SearchResult


@dataclass(frozen=True, slots=True)
class SearchQuery:
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
class SearchRequest:
    """An HTTP request."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    """Hold the key."""
    body: dict[str, Any] | None = None
    """JSON of a POST; None for a GET."""


class SearchProvider(Protocol):
    """A search engine's API."""

    def build_request(self, search: SearchQuery) -> SearchRequest:
        """The request for a question. Domains may be left out of it where there is no room: results are sifted afterwards."""
        ...

    def parse_results(self, body: Any) -> Iterator[SearchResult]:
        """The results in an answer. Raises LookupError, TypeError or AttributeError for what is no answer of this provider."""
        ...


class Tavily:
    """`POST /search`, domains as lists of their own."""

    def __init__(self, settings: WebSearchSettings) -> None:
        self._base = settings.base_url or "https://api.tavily.com"
        self._headers = {"authorization": f"Bearer {settings.api_key.get_secret_value()}"}

    def build_request(self, search: SearchQuery) -> SearchRequest:
        body: dict[str, Any] = {
            "query": search.query,
            "max_results": search.count,
            "search_depth": "advanced" if search.is_thorough else "basic",
        }
        if search.allowed:
            body["include_domains"] = list(search.allowed)
        if search.blocked:
            body["exclude_domains"] = list(search.blocked)
        return SearchRequest(f"{self._base.rstrip('/')}/search", self._headers, body)

    def parse_results(self, body: Any) -> Iterator[SearchResult]:
        for found in body["results"]:
            yield SearchResult(
                _text(found.get("title")), _text(found["url"]), _text(found.get("content"))
            )


class Brave:
    """`GET /web/search`; a question has at most 400 characters and 50 words, the domains among them."""

    def __init__(self, settings: WebSearchSettings) -> None:
        self._base = settings.base_url or "https://api.search.brave.com/res/v1"
        self._headers = {"x-subscription-token": settings.api_key.get_secret_value()}

    def build_request(self, search: SearchQuery) -> SearchRequest:
        parameters = {
            "q": _with_domains(search, characters=400, words=50),
            "count": min(search.count, 20),
            "text_decorations": "false",
        }
        if search.country:
            parameters["country"] = search.country
        return SearchRequest(
            f"{self._base.rstrip('/')}/web/search?{urlencode(parameters)}", self._headers
        )

    def parse_results(self, body: Any) -> Iterator[SearchResult]:
        # a search without any web results has no "web", but it does say that it is one
        results = body["web"]["results"] if "web" in body or body.get("type") != "search" else []
        for found in results:
            content = [
                _text(found.get("description")),
                *(_text(snippet) for snippet in found.get("extra_snippets") or ()),
            ]
            yield SearchResult(
                _without_html(found.get("title")),
                _text(found["url"]),
                _without_html("\n".join(piece for piece in content if piece)),
            )


class SearXNG:
    """`GET /search?format=json`, of an instance of one's own; a key is sent as a bearer token, for the proxy in front of it."""

    def __init__(self, settings: WebSearchSettings) -> None:
        self._base = settings.base_url
        key = settings.api_key.get_secret_value()
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def build_request(self, search: SearchQuery) -> SearchRequest:
        parameters = {"q": _with_domains(search, characters=2000, words=300), "format": "json"}
        return SearchRequest(
            f"{self._base.rstrip('/')}/search?{urlencode(parameters)}", self._headers
        )

    def parse_results(self, body: Any) -> Iterator[SearchResult]:
        for found in body["results"]:
            yield SearchResult(
                _text(found.get("title")), _text(found["url"]), _text(found.get("content"))
            )


SEARCH_PROVIDERS: dict[str, type[Tavily] | type[Brave] | type[SearXNG]] = {
    "tavily": Tavily,
    "brave": Brave,
    "searxng": SearXNG,
}


def _with_domains(search: SearchQuery, *, characters: int, words: int) -> str:
    """The query with the domains as search engines write them, within the provider's bounds: what has no room is left out."""
    filters = [
        " OR ".join(f"site:{domain}" for domain in search.allowed),
        " ".join(f"-site:{domain}" for domain in search.blocked),
    ]
    query = " ".join(search.query.split()[:words])[:characters]
    for rule in filter(None, filters):
        longer = f"{query} {rule}"
        if len(longer) <= characters and len(longer.split()) <= words:
            query = longer
    return query


_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,100}>")


def _without_html(value: Any) -> str:
    """A text without HTML."""
    return html.unescape(_TAG.sub("", _text(value)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
