"""uvicorn's WebSocket protocol, but connections end as docs/websocket.md promises, and messages
are bounded while they are incomplete."""

import asyncio
import logging
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from models.errors import ApiError, RequestTimeout
from web.websocket.messages import Messages

_CLOSE_TIMEOUT = 1.0
"""Seconds a client has to answer a close; a shutdown does not wait longer."""
_INVALID_PAYLOAD = 1007
_LEAST_PROGRESS = 1024
"""Bytes of an incomplete message that must arrive in `web.message_pause`."""
_SLICE_BYTES = 16 * 1024
"""Bytes that are read at a time: compressed ones can become a thousand times as many."""

_logger = logging.getLogger("web.routes.websocket")
_logger.setLevel(logging.WARNING)
"""At lower levels uvicorn logs every connection, with the query of its handshake."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.logger = self.conn.logger = _logger
        self.close_timeout = _CLOSE_TIMEOUT
        self._messages = Messages(self.conn)
        self._is_refused = False
        self._progress = 0
        """Bytes that have arrived since the timer was started."""
        self._message_timer: asyncio.TimerHandle | None = None
        """Runs while a message is incomplete."""

    async def send(self, message: ASGISendEvent) -> None:
        """Sends a message of the application.

        A refusal completes the handshake too. uvicorn does not count it, and would log an error for
        each one.
        """
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

    async def receive(self) -> ASGIReceiveEvent:
        """The client's next message. Before its key is known, nothing more is read."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty() and self._messages.has_begun:
            self.read_paused = False
            self.transport.resume_reading()
        return message

    def shutdown(self) -> None:
        """The server stops.

        `SocketSession` closes an open socket, after it has sent the last events.
        """
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    def keepalive_timeout(self) -> None:
        """No pong came. Aborts, because unsent data would keep the connection open for ever."""
        super().keepalive_timeout()
        self.loop.call_later(self.close_timeout, self.transport.abort)

    def handle_connect(self, event: Request) -> None:
        """The handshake was received. The application gets `Messages`, to let them begin."""
        super().handle_connect(event)
        if not self.close_sent:
            # Its task begins in the next turn of the event loop.
            self.scope["state"]["messages"] = self._messages
            self.read_paused = True
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Releases what an incomplete message has."""
        self._messages.drop()
        self._stop_message_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads frames, and checks what is incomplete afterwards."""
        for start in range(0, len(data), _SLICE_BYTES):
            if self._is_refused or self.transport.is_closing():
                return
            super().data_received(data[start : start + _SLICE_BYTES])
        if self.close_sent:
            self._messages.drop()
        elif (error := self._messages.count()) is not None:
            self._refuse(error)
        else:
            self._progress += len(data)
            self._watch_message()

    def _watch_message(self) -> None:
        """Lets the timer run as long as a message is incomplete."""
        if not self._messages.is_incomplete:
            self._stop_message_timer()
        elif self._message_timer is None and self._messages.has_begun:
            self._progress = 0
            self._message_timer = self.loop.call_later(self._messages.pause, self._check_progress)

    def _check_progress(self) -> None:
        self._message_timer = None
        if self.close_sent or self.transport.is_closing():
            return
        # While the application does not read, nothing can arrive.
        if self._progress < _LEAST_PROGRESS and not self.read_paused:
            self._refuse(RequestTimeout("The rest of the message did not arrive in time."))
            return
        self._watch_message()

    def _stop_message_timer(self) -> None:
        if self._message_timer is not None:
            self._message_timer.cancel()
            self._message_timer = None

    def handle_text(self, event: Frame) -> None:
        """A text message begins."""
        self._add(event)

    def handle_bytes(self, event: Frame) -> None:
        """A binary message begins."""
        self._add(event)

    def handle_cont(self, event: Frame) -> None:
        """A message goes on."""
        self._add(event)

    def _add(self, event: Frame) -> None:
        """Gives a complete message to the application. Text that is not UTF-8 closes the connection
        (RFC 6455, 8.1)."""
        if self.close_sent:
            return
        if (complete := self._messages.add(event)) is None:
            return
        content, is_text = complete
        if (error := self._messages.hold(len(content))) is not None:
            self._refuse(error)
            return
        message: dict[str, Any] = {"type": "websocket.receive", "held": self._messages.take_held()}
        try:
            message |= {"text": content.decode()} if is_text else {"bytes": bytes(content)}
        except UnicodeDecodeError:
            self._messages.drop()
            self.conn.send_close(_INVALID_PAYLOAD)
            self.handle_parser_exception()
            return
        self.queue.put_nowait(message)  # type: ignore[arg-type]
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _refuse(self, error: ApiError) -> None:
        """Closes the connection: the rest of the message would have to be read to go on. It is
        dropped for a moment, because a connection that is closed while data arrives is reset, and
        the client loses the error."""
        self._is_refused = self.close_sent = True
        self._stop_message_timer()
        self.transport.write(b"".join(self._messages.refuse(error)))
        self.queue.put_nowait({"type": "websocket.disconnect", "code": CloseCode.TRY_AGAIN_LATER})
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
