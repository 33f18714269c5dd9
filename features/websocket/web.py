"""uvicorn's WebSocket protocol, but connections end as docs/websocket.md promises, messages are
bounded while they are incomplete, and many frames leave time for other connections."""

import asyncio
import logging
from typing import Any
from weakref import WeakKeyDictionary

from prometheus_client import Gauge
from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from features.websocket.messages import Messages
from models.errors import ApiError, RequestTimeout
from models.load.budget import SharedBudget
from models.load.pacing import Pacer
from web.counters import REGISTRY
from web.state import AppState, Feature

_CLOSE_TIMEOUT = 1.0
"""Seconds a client has to answer a close; a shutdown does not wait longer."""
_INVALID_PAYLOAD = 1007
_LEAST_PROGRESS = 1024
"""Bytes of an incomplete message that must arrive in `web.message_pause`."""
_PIECE_BYTES = 1024
"""Bytes that are parsed at a time: 170 frames at most."""
_CONTENT_PIECE_BYTES = 4 * 1024
"""The same while a frame with more than a piece goes on."""
_TURN_WORK = 64 * 1024
"""`Messages.work`, and bytes, of one connection in one turn of the event loop."""
_CONNECTIONS_IN_TURN = 2
"""Connections that go on with what has arrived in one turn of the event loop."""

_pacers: WeakKeyDictionary[asyncio.AbstractEventLoop, Pacer] = WeakKeyDictionary()
"""Of a process: it has one event loop."""

_logger = logging.getLogger("features.websocket.routes")
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
        self._unread = bytearray()
        """What has arrived and is parsed in later turns of the event loop."""
        self._reading: asyncio.Task[None] | None = None
        """Waits for such a turn."""
        self._is_congested = False
        """A pong did not fit in the write buffer. Nothing is read until the client has read."""
        self._arrived = 0
        """`Messages.arrived` when the timer was started."""
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
        if self.close_sent:
            self._go_on()  # uvicorn waits for the client's close

    async def receive(self) -> ASGIReceiveEvent:
        """The client's next message. Before its key is known, nothing more is read."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty() and self._messages.has_begun:
            self.read_paused = False
            self._go_on()
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
        self._unread.clear()
        if self._reading is not None:
            self._reading.cancel()
        self._messages.drop()
        self._stop_message_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses what fits in one piece at once, and everything else in later turns of the event
        loop."""
        if self._is_refused or self.transport.is_closing():
            return
        self._unread += data
        if self._reading is None and (
            len(self._unread) <= _PIECE_BYTES or not self.handshake_initiated
        ):
            self._read_some()
        else:
            self._go_on()

    def resume_writing(self) -> None:
        """The client has read what was sent."""
        super().resume_writing()
        self._is_congested = False
        self._go_on()

    @property
    def _is_blocked(self) -> bool:
        """The application, or the client, has to read first."""
        return self.read_paused or self._is_congested

    def _go_on(self) -> None:
        """Goes on with what has arrived, then with what will arrive."""
        if self.transport.is_closing() or self._is_blocked or self._reading is not None:
            return
        if self._unread:
            self.transport.pause_reading()
            self._reading = self.loop.create_task(self._read_in_turn())
        else:
            self.transport.resume_reading()

    async def _read_in_turn(self) -> None:
        pacer = _pacers.setdefault(self.loop, Pacer(_CONNECTIONS_IN_TURN))
        try:
            await pacer.wait(self._messages.project)
            self._reading = None
            self._read_some()
        except Exception:
            self.transport.abort()
            raise

    def _read_some(self) -> None:
        """Parses as much as one turn has time for, and checks what is incomplete afterwards."""
        work = 0
        if self.transport.is_closing():
            self._unread.clear()
        while self._unread and work < _TURN_WORK and not self._is_blocked:
            is_content = self._messages.incomplete_frame >= _PIECE_BYTES
            size = _CONTENT_PIECE_BYTES if is_content else _PIECE_BYTES
            piece = bytes(self._unread[:size])
            del self._unread[:size]
            before = self._messages.work
            super().data_received(piece)
            if self._is_refused or self.transport.is_closing():
                self._unread.clear()
                return
            work += len(piece) + self._messages.work - before
        if self.close_sent:
            self._messages.drop()
        elif (error := self._count()) is not None:
            self._refuse(error)
            return
        else:
            self._watch_message()
        self._go_on()

    def _count(self) -> ApiError | None:
        # While the client does not read, what it has sent may stay here for a minute.
        return self._messages.count(len(self._unread) if self._is_congested else 0)

    def _watch_message(self) -> None:
        """Lets the timer run as long as a message is incomplete."""
        if not self._messages.is_incomplete:
            self._stop_message_timer()
        elif self._message_timer is None and self._messages.has_begun:
            self._arrived = self._messages.arrived
            self._message_timer = self.loop.call_later(self._messages.pause, self._check_progress)

    def _check_progress(self) -> None:
        self._message_timer = None
        if self.close_sent or self.transport.is_closing():
            return
        progress = self._messages.arrived - self._arrived
        # What waits here is not late.
        if progress < _LEAST_PROGRESS and not (self._is_blocked or self._unread):
            self._refuse(RequestTimeout("The rest of the message did not arrive in time."))
            return
        self._watch_message()

    def _stop_message_timer(self) -> None:
        if self._message_timer is not None:
            self._message_timer.cancel()
            self._message_timer = None

    def handle_ping(self) -> None:
        """uvicorn sends the pong without a look at the write buffer. A client that reads nothing
        would fill the memory with them."""
        self._count_control_frame()
        if self.close_sent:
            return
        super().handle_ping()
        if not self.writable.is_set():
            self._is_congested = True
            self.transport.pause_reading()

    def handle_pong(self, event: Frame) -> None:
        """A pong, whether a ping was sent or not."""
        self._count_control_frame()
        super().handle_pong(event)

    def _count_control_frame(self) -> None:
        if not self.close_sent and (error := self._messages.count_frame()) is not None:
            self._refuse(error)

    def handle_text(self, event: Frame) -> None:
        """A message begins or goes on. Gives a complete one to the application. Text that is not
        UTF-8 closes the connection (RFC 6455, 8.1)."""
        if self.close_sent:
            return
        error = self._messages.count_frame(len(event.data), completes=event.fin)
        if error is not None:
            self._refuse(error)
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

    handle_bytes = handle_cont = handle_text

    def _refuse(self, error: ApiError) -> None:
        """Closes the connection: the rest of the message would have to be read to go on. It is
        dropped for a moment, because a connection that is closed while data arrives is reset, and
        the client loses the error."""
        self._is_refused = self.close_sent = True
        self._is_congested = False
        self._unread.clear()
        self._stop_message_timer()
        self.transport.write(b"".join(self._messages.refuse(error)))
        self.queue.put_nowait({"type": "websocket.disconnect", "code": CloseCode.TRY_AGAIN_LATER})
        self.read_paused = False
        self.transport.resume_reading()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
        # A client that reads nothing does not get the error either.
        self.loop.call_later(2 * self.close_timeout, self.transport.abort)


SOCKETS = Gauge("backburner_sockets", "Open WebSockets of this process.", registry=REGISTRY)


class WebSockets(Feature):
    """The class with which uvicorn serves them, and how many may be open."""

    socket_protocol = WebSocketProtocol

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        web = state.settings.web
        self.open = SharedBudget("open WebSockets", web.sockets, web.sockets_per_project)

    def start(self) -> None:
        """Shows their number."""
        SOCKETS.set_function(lambda: self.open.used)


FEATURE = WebSockets
