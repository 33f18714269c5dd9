"""WebSockets in a web process."""

from features.websocket.protocol import WebSocketProtocol
from web.state import Feature


class WebSockets(Feature):
    """The class with which uvicorn serves them."""

    socket_protocol = WebSocketProtocol


FEATURE = WebSockets
