"""WebSockets as uvicorn speaks them, except where our promises need another way of ending one (docs/websocket.md)."""

import logging
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

_CLOSE_TIMEOUT = 1.0
"""Seconds a client has to answer our close; at shutdown nobody waits longer for one that is gone."""
_INVALID_PAYLOAD = 1007

_logger = logging.getLogger("web.routes.websocket")
_logger.setLevel(logging.WARNING)
"""Else there would be lines for each connection, and the query of its handshake in one of them."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.logger = self.conn.logger = _logger
        self.close_timeout = _CLOSE_TIMEOUT

    def shutdown(self) -> None:
        """The server stops. A socket in use is closed by its own side, which was told (`Front.stop_soon`) and may still have to say an ending."""
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    def keepalive_timeout(self) -> None:
        """No pong came. What such a peer did not take would keep the connection for ever."""
        super().keepalive_timeout()
        self.loop.call_later(self.close_timeout, self.transport.abort)

    def send_receive_event_to_app(self) -> None:
        """A message is whole. Text that is no UTF-8 ends the connection (RFC 6455, 8.1), in silence: it is the client's fault."""
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
