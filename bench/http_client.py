"""A small HTTP/1.1 client, so that the load costs little of the cores that the servers use.

One connection carries one request at a time. A reply's body goes to a callback as it arrives.
"""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, cast

import httptools
import orjson

OnData = Callable[[bytes], object]


_MAX_IDLE = 2.0
"""Seconds after which a connection is not used again; servers close idle ones, often after 5 s."""


class RequestFailed(Exception):
    """A reply with another status than 200, or a connection that ended before the reply."""


class HttpConnection(asyncio.Protocol):
    """One kept-alive connection to a server on this host."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reply: asyncio.Future[int] | None = None
        self._on_data: OnData = _ignore
        self._error: bytes | None = None
        """The body of a reply with another status than 200, as far as it has arrived."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(RequestFailed(f"the connection was closed: {error}"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self._error = None if self._parser.get_status_code() == 200 else b""

    def on_body(self, body: bytes) -> None:
        if self._error is None:
            self._on_data(body)
        else:
            self._error += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._parser = httptools.HttpResponseParser(self)
        assert self._reply is not None
        self._reply.set_result(status)

    async def send(self, request: bytes, on_data: OnData) -> None:
        """Sends a request; returns when its reply is complete. `on_data` gets the parts of the
        body as they arrive. Raises RequestFailed."""
        assert self._transport is not None
        self._on_data = on_data
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        status = await self._reply
        if self._error is not None:
            raise RequestFailed(f"the reply has status {status}: {self._error.decode()[:500]}")

    @property
    def is_open(self) -> bool:
        """Whether the server has not closed it."""
        return self._transport is not None

    def close(self) -> None:
        """Closes the connection; a server sees that as a client that has left."""
        if self._transport is not None:
            self._transport.close()


class Client:
    """Requests to one server. As a context manager it closes its idle connections at the end."""

    def __init__(self, port: int, key: str = "") -> None:
        """`port` on 127.0.0.1; `key` is sent as the bearer token."""
        self._port = port
        self._authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        self._idle: list[tuple[HttpConnection, float]] = []
        """connections, and when their last reply was complete"""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection, _ in self._idle:
            connection.close()

    def encode(self, method: str, path: str, body: Any = None) -> bytes:
        """The bytes of a request, to be sent often."""
        content = b"" if body is None else orjson.dumps(body)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{self._authorization}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    async def connect(self) -> HttpConnection:
        """An idle connection, or a new one. `release` returns it."""
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_open and time.monotonic() - since < _MAX_IDLE:
                return connection
            connection.close()
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(HttpConnection, "127.0.0.1", self._port)
        return made

    def release(self, connection: HttpConnection) -> None:
        """Keeps a connection whose last reply is complete, for the next request."""
        self._idle.append((connection, time.monotonic()))

    async def stream(self, request: bytes, on_data: OnData) -> None:
        """Sends an encoded request and passes the body of its reply on as it arrives."""
        connection = await self.connect()
        try:
            await connection.send(request, on_data)
        except BaseException:
            connection.close()
            raise
        self.release(connection)

    async def call(self, request: bytes) -> bytes:
        """Sends an encoded request and returns the body of its reply."""
        parts: list[bytes] = []
        await self.stream(request, parts.append)
        return b"".join(parts)

    async def json(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON body of the reply to a request."""
        return orjson.loads(await self.call(self.encode(method, path, body)))


def _ignore(_: bytes) -> None:
    pass
