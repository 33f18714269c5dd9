"""An upstream whose answers never end: each request gets one piece of text, and then silence.

It runs in the process of the benchmark, and costs little: thousands of requests come at once when
their worker was killed.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import httptools
import orjson

from cli.embedded.process import free_port

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"m",'
    b'"choices":[{"index":0,"delta":{"role":"assistant","content":"%d"},"finish_reason":null}]}\n\n'
)


@dataclass(slots=True)
class HeldUpstream:
    """What it was asked for, by model. Each response of a benchmark has a model of its own."""

    url: str = ""
    requests: dict[str, int] = field(default_factory=dict)
    """How many requests it got."""
    closed: dict[str, float] = field(default_factory=dict)
    """When (monotonic clock) the client closed the connection of the last one that was closed."""


class _Server(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, upstream: HeldUpstream) -> None:
        self._upstream = upstream
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._model = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, _: Exception | None) -> None:
        if self._model:
            self._upstream.closed[self._model] = time.monotonic()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        """Answers with the number of the request as text."""
        self._model = orjson.loads(self._body)["model"]
        requests = self._upstream.requests
        number = requests[self._model] = requests.get(self._model, 0) + 1
        chunk = _CHUNK % number
        self._transport.write(_HEAD + b"%x\r\n%s\r\n" % (len(chunk), chunk))


@asynccontextmanager
async def held_upstream() -> AsyncIterator[HeldUpstream]:
    """Serves any model."""
    upstream = HeldUpstream()
    port = free_port()
    upstream.url = f"http://127.0.0.1:{port}/v1"
    server = await asyncio.get_running_loop().create_server(
        lambda: _Server(upstream), "127.0.0.1", port, backlog=4096
    )
    try:
        yield upstream
    finally:
        server.close()
