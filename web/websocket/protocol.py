"""uvicorn's WebSocket protocol, but connections end as docs/websocket.md promises."""

import logging
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

_CLOSE_TIMEOUT = 1.0
"""Seconds a client has to answer a close; a shutdown does not wait longer."""
_INVALID_PAYLOAD = 1007

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

    async def send(self, message: ASGISendEvent) -> None:
        """Sends a message of the application.

        A refusal completes the handshake too. uvicorn does not count it, and would log an error for
        each one.
        """
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

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

    def send_receive_event_to_app(self) -> None:
        """A message is complete.

        Text that is not UTF-8 closes the connection (RFC 6455, 8.1), without an error in the log.
        """
        if self.curr_msg_data_type == "text" and not _is_utf8(self.frames):
            self.frames = []
            self.conn.send_close(_INVALID_PAYLOAD)
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()


def _is_utf8(pieces: list[bytes]) -> bool:
    try:
        b"".join(pieces).decode()
    except UnicodeDecodeError:
        return False
    return True
