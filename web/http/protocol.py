"""uvicorn's HTTP protocol, with limits for what a client may do before its request is complete.

A client without an API key can open connections and send heads of requests. What that costs is
bounded here: by size, by time, and by number (docs/limits.md).
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from models.errors import (
    ApiError,
    HeadTooLarge,
    InvalidRequest,
    RequestTimeout,
    ShareUsedUp,
    TooManyConnections,
    UrlTooLong,
)
from models.ids import new_item_id
from models.load.budget import Reservation
from web.http.clients import Connections, client_network
from web.http.request_record import record_in
from web.http.transport import (
    WORK_OF_A_TURN,
    BodyDeadline,
    ReadingControl,
    ResponseTransport,
    is_line_end,
    portion_end,
    until_sent,
)

_LINGER = 1.0
"""Seconds in which the rest of a refused request is read and dropped. A connection that is closed
while data arrives is reset, and the client loses the answer."""
_TLS_HANDSHAKE = b"\x16\x03"
"""The first bytes of a client that speaks TLS."""
_TLS_REFUSED = (
    "A client began a TLS handshake, but this port speaks plain HTTP: its base URL must begin with "
    "http://, or name a proxy that does TLS."
)


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
        self._network = ""
        self._is_admitted = False
        self._is_trusted = False
        self._of_project: Reservation | None = None
        """This connection in the budget of its project; None before authentication."""
        self._rest = b""
        """received, and not given to the parser yet"""
        self._rest_task: asyncio.Task[None] | None = None
        """Gives it to the parser."""
        self._work = 0
        """portions and calls of the parser in this turn of the event loop"""
        self._body_left = 0
        """bytes of the body that are still to come, if it has a length"""
        self._unconfirmed: list[Callable[[], None]] = []
        """To be called if the client leaves before it sends another request."""
        self._has_left = False
        """The client, or the network, has closed the connection."""
        self._is_new = True
        """Nothing was received yet."""
        self._refusal: ApiError | None = None
        self._is_over = False
        """Nothing more is parsed here: the connection was refused, or became a WebSocket."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        """Runs while a client without a key does not take what is sent."""
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
        self.flow = ReadingControl(transport)
        self._address = self.client[0] if self.client else ""
        self._network = client_network(self._address)
        self._is_admitted = self._connections.admit(self._network)
        if not self._is_admitted:
            self._refuse(TooManyConnections())
            return
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timers and the counting."""
        self._has_left = self._has_left or exc is not None
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for on_lost in unconfirmed if self._has_left else ():
            on_lost()
        self._rest = b""
        self._stop_timers()
        self._body_deadline.close()
        self._stop_write_timer()
        self._release()
        super().connection_lost(exc)
        self._forget_request()

    def eof_received(self) -> None:
        """The client has closed the connection, which then ends."""
        self._has_left = True

    def when_lost(self, on_lost: Callable[[], None]) -> None:
        """Calls `on_lost` if the client closes the connection before it sends another request."""
        if self._has_left:
            on_lost()
        else:
            self._unconfirmed.append(on_lost)

    def handle_websocket_upgrade(self) -> None:
        """The connection becomes a WebSocket; their number has a limit of its own."""
        self._is_over = True
        self._stop_timers()
        self._stop_write_timer()
        self._release()
        self._drop_rest()
        super().handle_websocket_upgrade()
        self._forget_request()

    def trust(self) -> None:
        """The client has sent a valid API key, from now on the connection counts for its project.
        Raises ShareUsedUp if the project has too many; the connection is closed then."""
        if not self._is_admitted or self._is_trusted:
            return
        record = record_in(self.cycle.scope)
        if record is not None and record.project is not None:
            try:
                self._of_project = self._connections.of_projects.reserve(record.project)
            except ShareUsedUp:
                self.cycle.keep_alive = False
                raise
        self._is_trusted = True
        self._connections.trust(self._network)

    def close(self) -> None:
        """Closes the connection although its request is not answered: its key is not valid any
        more. What the client does not receive soon is dropped."""
        self.transport.close()
        self.loop.call_later(_LINGER, self.transport.abort)

    def pause_writing(self) -> None:
        """The client takes less than is sent. Without a key it has `web.send_timeout` to go on."""
        super().pause_writing()
        if not self._is_trusted:
            seconds = self._settings.send_timeout.total_seconds()
            self._write_timer = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has taken what was sent."""
        super().resume_writing()
        self._stop_write_timer()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    async def _until_sent(self) -> None:
        await until_sent(self.transport, self.flow, self._settings.send_timeout.total_seconds())

    def _forget_request(self) -> None:
        # It refers to the connection. What both have would be left to the garbage collector.
        self.cycle = self.scope = None  # type: ignore[assignment]

    def _release(self) -> None:
        if not self._is_admitted:
            return
        self._is_admitted = False
        if not self._is_trusted:
            self._connections.trust(self._network)
        if self._of_project is not None:
            self._of_project.release()
        self._connections.release()

    # --- data ---

    def data_received(self, data: bytes) -> None:
        """Parses it, or keeps it until the request before is answered."""
        if self._is_over:
            return
        if self._is_new:
            self._is_new = False
            if data.startswith(_TLS_HANDSHAKE):
                # In plain HTTP: TLS clients then report a "wrong version number".
                self._refuse(InvalidRequest(_TLS_REFUSED))
                return
        self._rest = self._rest + data if self._rest else data
        if self._rest_task is None:
            self._parse()

    def _parse(self) -> None:
        """Gives the parser what was received, up to the end of the request, or as much as one turn
        of the event loop has time for. The next request waits for the response to this one."""
        data, start = self._rest, 0
        self._work = 0
        while start < len(data) and self._may_parse(data, start):
            if self._work >= WORK_OF_A_TURN:
                break
            end = portion_end(data, start, self._body_left if self._in_body else 0)
            self._feed(data[start:end])
            start = end
        if self._is_over or self.transport.is_closing():
            self._rest = b""
            return
        self._rest = data[start:]
        self._reading.hold(bool(self._rest))
        self._start_rest_task()

    def _may_parse(self, data: bytes, start: int) -> bool:
        if self._is_over or self.transport.is_closing():
            return False
        is_answered = self.cycle is None or self.cycle.response_complete
        return is_answered or self._in_body or is_line_end(data, start)

    def _start_rest_task(self) -> None:
        if self._rest and self._rest_task is None and self._may_parse(self._rest, 0):
            self._rest_task = self.loop.create_task(self._parse_rest())

    async def _parse_rest(self) -> None:
        while self._rest and self._may_parse(self._rest, 0):
            await self._connections.pacer.wait(self._network)
            self._parse()
        self._rest_task = None

    def _feed(self, portion: bytes) -> None:
        """Feeds the parser, and checks what is incomplete afterwards."""
        self._work += 1
        super().data_received(portion)
        if self._is_over or self.transport.is_closing():
            return
        if self._in_body:
            self._body_deadline.start(self.loop)
        elif self._in_head or self.cycle is None or self.cycle.response_complete:
            # Also empty lines between two requests, of which the parser delivers nothing.
            self._received_head += len(portion)
            if self._received_head > self._settings.head_bytes:
                self._refuse(HeadTooLarge(self._settings.head_bytes))
            elif self._head_timer is None:
                self._start_head_timer()

    @property
    def _reading(self) -> ReadingControl:
        assert isinstance(self.flow, ReadingControl)
        return self.flow

    def _drop_rest(self) -> None:
        """What was received and not parsed is not wanted; what follows is read."""
        self._rest = b""
        self._reading.hold(False)
        self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """The response is complete: the next request, if it has arrived, may begin."""
        super().on_response_complete()
        self._start_rest_task()

    def send_400_response(self, msg: str) -> None:
        """The parser has stopped: the head is over a limit, or this is not HTTP."""
        self._refuse(self._refusal or InvalidRequest(msg))

    # --- callbacks of the parser; what they raise ends in `send_400_response` ---

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head = True
        self._unconfirmed.clear()
        self._parsed_head = self._body_left = 0
        if not self._is_trusted:
            self.scope["state"]["trust_connection"] = self.trust
        self.scope["state"]["close_connection"] = self.close
        self.scope["state"]["when_lost"] = self.when_lost
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
        self._work += 1
        self._parsed_head += len(name) + len(value) + 4
        if self._parsed_head > self._settings.head_bytes:
            self._refusal = HeadTooLarge(self._settings.head_bytes)
            raise self._refusal
        super().on_header(name, value)
        if self.headers[-1][0] == b"content-length":
            # The parser has refused anything but digits.
            self._body_left = int(value)

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
        self._work += 1
        self._body_left -= min(self._body_left, len(body))
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
        self._drop_rest()
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
