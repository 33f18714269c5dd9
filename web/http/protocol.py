"""uvicorn's HTTP protocol, with limits for what a client may do before its request is complete.

A client without an API key can open connections and send heads of requests. What that costs is
bounded here: by size, by time, and by number (docs/limits.md).
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from models.config.web import WebSettings
from models.errors import (
    ApiError,
    HeadTooLarge,
    InvalidRequest,
    RequestTimeout,
    TooManyConnections,
    UrlTooLong,
)
from models.ids import new_item_id
from web.http.body_deadline import BodyDeadline
from web.http.request_record import record_in
from web.http.response_transport import ResponseTransport, until_sent

_LINGER = 1.0
"""Seconds in which the rest of a refused request is read and dropped. A connection that is closed
while data arrives is reset, and the client loses the answer."""
_TLS_HANDSHAKE = b"\x16\x03"
"""The first bytes of a client that speaks TLS."""
_TLS_REFUSED = (
    "A client began a TLS handshake, but this port speaks plain HTTP: its base URL must begin with "
    "http://, or name a proxy that does TLS."
)


class Connections:
    """The HTTP connections of a process: how many, and how many of each address have not yet sent
    a valid API key."""

    def __init__(self, settings: WebSettings, on_refused: Callable[[ApiError, str], None]) -> None:
        """`on_refused` is called with the error and the request id of each request that does not
        reach the application."""
        self.settings = settings
        self.on_refused = on_refused
        self._open = 0
        self._unknown: Counter[str] = Counter()

    def admit(self, address: str) -> bool:
        """Counts a new connection. False, and nothing is counted, if there are too many."""
        limit = self.settings.connections_per_address
        if self._open >= self.settings.connections or 0 < limit <= self._unknown[address]:
            return False
        self._open += 1
        self._unknown[address] += 1
        return True

    def trust(self, address: str) -> None:
        """An admitted connection of this address has sent a valid API key, or is closed."""
        self._unknown[address] -= 1
        if self._unknown[address] <= 0:
            del self._unknown[address]

    def release(self) -> None:
        """An admitted connection is closed, or became a WebSocket."""
        self._open -= 1


class LimitedApplication(Protocol):
    """An ASGI application whose connections are limited."""

    connections: Connections


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        application: LimitedApplication = config.app  # type: ignore[assignment]
        self._connections = application.connections
        self._settings = self._connections.settings
        self._address = ""
        self._is_admitted = False
        self._is_trusted = False
        self._is_new = True
        """Nothing was received yet."""
        self._refusal: ApiError | None = None
        self._is_over = False
        """Nothing more is parsed here: the connection was refused, or became a WebSocket."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_deadline = BodyDeadline(
            self._settings.body_pause.total_seconds(),
            is_read=self._is_body_read,
            on_late=self._on_late_body,
        )
        self._in_head = False
        self._in_body = False
        self._parsed_head = 0
        """bytes of the head that the parser has delivered"""
        self._received_head = 0
        """bytes received since the head began, while it is incomplete"""

    # --- connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuses the connection if there are too many."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._is_admitted = self._connections.admit(self._address)
        if not self._is_admitted:
            self._refuse(TooManyConnections())
            return
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timers and the counting."""
        self._stop_timers()
        self._release()
        super().connection_lost(exc)
        self._forget_request()

    def handle_websocket_upgrade(self) -> None:
        """The connection becomes a WebSocket; their number has a limit of its own."""
        self._is_over = True
        self._stop_timers()
        self._release()
        super().handle_websocket_upgrade()
        self._forget_request()

    def trust(self) -> None:
        """The client has sent a valid API key."""
        if self._is_admitted and not self._is_trusted:
            self._is_trusted = True
            self._connections.trust(self._address)

    def close(self) -> None:
        """Closes the connection although its request is not answered: its key is not valid any
        more. What the client does not receive soon is dropped."""
        self.transport.close()
        self.loop.call_later(_LINGER, self.transport.abort)

    async def _until_sent(self) -> None:
        await until_sent(self.transport, self.flow, self._settings.send_timeout.total_seconds())

    def _forget_request(self) -> None:
        # It refers to the connection. What both have would be left to the garbage collector.
        self.cycle = self.scope = None  # type: ignore[assignment]

    def _release(self) -> None:
        if self._is_admitted:
            self.trust()
            self._is_admitted = False
            self._connections.release()

    # --- data ---

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, and checks what is incomplete afterwards."""
        if self._is_over:
            return
        if self._is_new:
            self._is_new = False
            if data.startswith(_TLS_HANDSHAKE):
                # In plain HTTP: TLS clients then report a "wrong version number".
                self._refuse(InvalidRequest(_TLS_REFUSED))
                return
        super().data_received(data)
        if self._is_over or self.transport.is_closing():
            return
        if self._in_body:
            self._body_deadline.start(self.loop)
        elif self._in_head or self.cycle is None or self.cycle.response_complete:
            # Also empty lines between two requests, of which the parser delivers nothing.
            self._received_head += len(data)
            if self._received_head > self._settings.head_bytes:
                self._refuse(HeadTooLarge(self._settings.head_bytes))
            elif self._head_timer is None:
                self._start_head_timer()

    def send_400_response(self, msg: str) -> None:
        """The parser has stopped: the head is over a limit, or this is not HTTP."""
        self._refuse(self._refusal or InvalidRequest(msg))

    # --- callbacks of the parser; what they raise ends in `send_400_response` ---

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head = True
        self._parsed_head = 0
        if not self._is_trusted:
            self.scope["state"]["trust_connection"] = self.trust
        self.scope["state"]["close_connection"] = self.close
        self.scope["state"]["until_sent"] = self._until_sent
        self.scope["state"]["peer_address"] = self._address

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        super().on_url(url)
        if len(self.url) > self._settings.url_bytes:
            self._refusal = UrlTooLong(self._settings.url_bytes)
            raise self._refusal

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field."""
        self._parsed_head += len(name) + len(value) + 4
        if self._parsed_head > self._settings.head_bytes:
            self._refusal = HeadTooLarge(self._settings.head_bytes)
            raise self._refusal
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._in_head, self._in_body = False, True
        self._received_head = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not None and self.cycle is not before:
            # Its task begins in the next turn of the event loop.
            self.cycle.transport = ResponseTransport(self.transport, self.cycle)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        super().on_body(body)
        self._body_deadline.received(len(body))

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._in_body = False
        self._body_deadline.stop()
        super().on_message_complete()

    # --- deadlines ---

    def _start_head_timer(self) -> None:
        seconds = self._settings.head_time.total_seconds()
        self._head_timer = self.loop.call_later(seconds, self._on_late_head)

    def _on_late_head(self) -> None:
        if self._in_head or self._received_head:
            self._refuse(RequestTimeout("The head of the request did not arrive in time."))
        else:
            self.transport.close()

    def _is_body_read(self) -> bool:
        # A client that waits for "100 Continue" sends nothing either.
        return not (self.flow.read_paused or self.cycle.waiting_for_100_continue)

    def _on_late_body(self) -> None:
        self._refuse(RequestTimeout("The body of the request did not arrive in time."))

    def _stop_timers(self) -> None:
        self._body_deadline.stop()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # --- refusal ---

    def _refuse(self, error: ApiError) -> None:
        """Answers with the error, drops what else arrives, and closes the connection."""
        self._is_over = True
        self._stop_timers()
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            # The answer to this request, or to the one before it, may have begun.
            if cycle.response_started or self.pipeline or not self._in_body:
                self.transport.close()
                return
        self.flow.resume_reading()
        body = orjson.dumps(error.body())
        record = None if cycle is None or cycle.response_complete else record_in(cycle.scope)
        if record is None:
            request_id = new_item_id("req")
            self._connections.on_refused(error, request_id)
        else:
            # Its line follows when the application has seen that the client is gone.
            request_id = record.id
            record.refuse(error, len(body))
        self.transport.write(_response_bytes(error, body, request_id))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER, self.transport.close)


def _response_bytes(error: ApiError, body: bytes, request_id: str) -> bytes:
    """An HTTP response with this body of the error, which closes the connection."""
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        "x-request-id": request_id,
        "openai-processing-ms": "0",
        **error.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return b"".join((STATUS_LINE[error.status], lines.encode(), b"\r\n", body))
