"""A scripted search engine with the documented APIs of three: Tavily, Brave and SearXNG.

Which it is shows in the path it is asked on. What it answers stands under the query, so tests that
run side by side do not meet:

    engine.finds("weather", Page("Weather", "https://a.example/w", "It rains."))
    engine.answers("trouble", whole(500, b"{}"))
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from tests.support.api import JSON


@dataclass(frozen=True)
class Page:
    """A result."""

    title: str
    url: str
    content: str


@dataclass(frozen=True)
class SearchRequest:
    """A request to the engine."""

    method: str
    path: str
    parameters: JSON
    """The parameters of the query string or of the body."""
    headers: dict[str, str]
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the connection is closed."""

    @property
    def query(self) -> str:
        """The query."""
        return str(self.parameters.get("query", self.parameters.get("q", "")))


Responder = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def http_answer(
    status: int, body: bytes, content_type: str = "application/json", **headers: str
) -> Responder:
    """Sends this answer."""

    async def answering(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = (
            f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: "
            f"{len(body)}\r\n{more}\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()

    return answering


def cut_short() -> Responder:
    """Sends half an answer and ends the connection."""

    async def answering(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"results": [')
        await writer.drain()

    return answering


def endless() -> Responder:
    """Sends an answer without end."""

    async def answering(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{"results": ["')
        while not writer.is_closing():
            writer.write(b"x" * 65536)
            await writer.drain()

    return answering


def silent() -> Responder:
    """Sends nothing until the client closes the connection."""

    async def answering(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    return answering


class SearchEngine:
    """The server."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[SearchRequest] = []
        self._pages: dict[str, list[Page]] = {}
        self._responders: dict[str, list[Responder]] = {}

    def set_results(self, query: str, *pages: Page) -> None:
        """Registers the results of a query."""
        self._pages[query] = list(pages)

    def set_responders(self, query: str, *responders: Responder) -> None:
        """Registers faults of a query: the n-th request meets the n-th, later ones none."""
        self._responders[query] = list(responders)

    def requests_for(self, query: str) -> list[SearchRequest]:
        """The requests for this query, in order. Providers may have added text behind it."""
        return [
            search
            for search in self.requests
            if search.query == query or search.query.startswith(f"{query} ")
        ]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            search = await _request(reader)
            self.requests.append(search)
            words = next(
                (
                    known
                    for known in (*self._responders, *self._pages)
                    if search.query == known or search.query.startswith(f"{known} ")
                ),
                "",
            )
            waiting = self._responders.get(words, [])
            answer = (
                waiting.pop(0)
                if waiting
                else http_answer(
                    200, json.dumps(_results_json(search, self._pages.get(words, []))).encode()
                )
            )
            await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if self.requests:
                search.disconnected.set()
            writer.close()


async def _request(reader: asyncio.StreamReader) -> SearchRequest:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    parameters = (
        json.loads(body)
        if body
        else {name: listed[0] for name, listed in parse_qs(parts.query).items()}
    )
    return SearchRequest(method, parts.path, parameters, headers)


def _results_json(request: SearchRequest, pages: list[Page]) -> JSON:
    """The results in the format of the provider that the request is for."""
    listed: list[JSON] = [{"title": page.title, "url": page.url} for page in pages]
    if request.path.endswith("/web/search"):  # Brave
        rows = [
            {"type": "search_result", **one, "description": page.content}
            for one, page in zip(listed, pages, strict=True)
        ]
        web = {"web": {"type": "search", "results": rows, "family_friendly": True}} if pages else {}
        return {"type": "search", "query": {"original": request.query}, **web}
    if request.method == "POST":  # Tavily
        rows = [
            {**one, "content": page.content, "score": 0.9, "raw_content": None}
            for one, page in zip(listed, pages, strict=True)
        ]
        return {
            "query": request.query,
            "answer": None,
            "images": [],
            "results": rows,
            "response_time": 0.1,
            "request_id": "r",
        }
    rows = [
        {**one, "content": page.content, "engine": "x", "category": "general"}
        for one, page in zip(listed, pages, strict=True)
    ]
    return {
        "query": request.query,
        "number_of_results": 0,
        "results": rows,
        "answers": [],
        "infoboxes": [],
        "unresponsive_engines": [],
    }


@asynccontextmanager
async def running() -> AsyncIterator[SearchEngine]:
    """A search engine on this machine."""
    engine = SearchEngine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
