"""The APIs of search providers: a query becomes an HTTP request, a JSON document becomes results.

Tavily: https://docs.tavily.com/documentation/api-reference/endpoint/search
Brave: https://api-dashboard.search.brave.com/api-reference/web/search/get
SearXNG: https://docs.searxng.org/dev/search_api
"""

import html
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode

from models.config.groups import WebSearchSettings
from worker.translation.items.citations import WebSearchResult


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A query and its limits."""

    query: str
    count: int
    """The maximum number of results."""
    is_thorough: bool = False
    allowed: tuple[str, ...] = ()
    """Only results from these domains and their subdomains; empty: from all domains."""
    blocked: tuple[str, ...] = ()
    """No results from these domains and their subdomains."""
    country: str = ""
    """The user's country: two letters (ISO 3166-1), or empty."""


@dataclass(frozen=True, slots=True)
class WebSearchRequest:
    """An HTTP request."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    """With the key."""
    body: dict[str, Any] | None = None
    """JSON of a POST; None for a GET."""


class SearchProvider(Protocol):
    """A search engine's API."""

    def build_request(self, search: SearchQuery) -> WebSearchRequest:
        """The request for a query. Domains that exceed its limits may be left out: the caller
        filters the results."""
        ...

    def parse_results(self, body: Any) -> Iterator[WebSearchResult]:
        """The results in a response. Raises LookupError, TypeError or AttributeError for a
        response of another shape."""
        ...


class Tavily:
    """`POST /search`, with lists of domains."""

    def __init__(self, settings: WebSearchSettings) -> None:
        self._base = settings.base_url or "https://api.tavily.com"
        self._headers = {"authorization": f"Bearer {settings.api_key.get_secret_value()}"}

    def build_request(self, search: SearchQuery) -> WebSearchRequest:
        body: dict[str, Any] = {
            "query": search.query,
            "max_results": search.count,
            "search_depth": "advanced" if search.is_thorough else "basic",
        }
        if search.allowed:
            body["include_domains"] = list(search.allowed)
        if search.blocked:
            body["exclude_domains"] = list(search.blocked)
        return WebSearchRequest(f"{self._base.rstrip('/')}/search", self._headers, body)

    def parse_results(self, body: Any) -> Iterator[WebSearchResult]:
        return _plain_results(body["results"])


class Brave:
    """`GET /web/search`. A query has at most 400 characters and 50 words, including its domains."""

    def __init__(self, settings: WebSearchSettings) -> None:
        self._base = settings.base_url or "https://api.search.brave.com/res/v1"
        self._headers = {"x-subscription-token": settings.api_key.get_secret_value()}

    def build_request(self, search: SearchQuery) -> WebSearchRequest:
        parameters = {
            "q": _with_domains(search, characters=400, words=50),
            "count": min(search.count, 20),
            "text_decorations": "false",
        }
        if search.country:
            parameters["country"] = search.country
        return WebSearchRequest(
            f"{self._base.rstrip('/')}/web/search?{urlencode(parameters)}", self._headers
        )

    def parse_results(self, body: Any) -> Iterator[WebSearchResult]:
        # A response without web results has no "web", but the type "search".
        results = body["web"]["results"] if "web" in body or body.get("type") != "search" else []
        for result in _entries(results):
            snippets = result.get("extra_snippets")
            content = [
                _text(result.get("description")),
                *(map(_text, snippets) if isinstance(snippets, list) else ()),
            ]
            yield WebSearchResult(
                _without_html(result.get("title")),
                result["url"],
                _without_html("\n".join(piece for piece in content if piece)),
            )


class SearXNG:
    """`GET /search?format=json` of a self-hosted instance. A key is sent as a bearer token, for
    a proxy in front of it."""

    def __init__(self, settings: WebSearchSettings) -> None:
        self._base = settings.base_url
        key = settings.api_key.get_secret_value()
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def build_request(self, search: SearchQuery) -> WebSearchRequest:
        parameters = {"q": _with_domains(search, characters=2000, words=300), "format": "json"}
        return WebSearchRequest(
            f"{self._base.rstrip('/')}/search?{urlencode(parameters)}", self._headers
        )

    def parse_results(self, body: Any) -> Iterator[WebSearchResult]:
        return _plain_results(body["results"])


SEARCH_PROVIDERS: dict[str, Callable[[WebSearchSettings], SearchProvider]] = {
    "tavily": Tavily,
    "brave": Brave,
    "searxng": SearXNG,
}
"""The setting `web_search.provider` -> its API."""


def _with_domains(search: SearchQuery, *, characters: int, words: int) -> str:
    """The query with `site:` filters for the domains, within the provider's limits. Filters that
    exceed them are left out."""
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


def _plain_results(results: Any) -> Iterator[WebSearchResult]:
    for result in _entries(results):
        yield WebSearchResult(
            _text(result.get("title")), result["url"], _text(result.get("content"))
        )


_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,100}>")


def _without_html(value: Any) -> str:
    """The text without tags, and with entities replaced."""
    return html.unescape(_TAG.sub("", _text(value)))


def _entries(results: Any) -> list[dict[str, Any]]:
    """The entries of a list that have an address; others are left out. Raises TypeError if there
    are only others, or no list."""
    entries = list(results)
    usable = [each for each in entries if isinstance(each, dict) and _text(each.get("url"))]
    if entries and not usable:
        raise TypeError
    return usable


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
