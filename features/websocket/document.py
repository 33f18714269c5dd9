"""The errors of WebSockets in the API document, which has no operation for them."""

from typing import Any

CODES = {
    "invalid_stream_id": "over WebSocket: the name of a lane has a wrong form",
    "websocket_stream_limit_reached": "over WebSocket: the connection has used the largest number "
    "of lane names",
    "websocket_too_many_frames": "over WebSocket: the client has sent too many frames without "
    "content",
    "websocket_queue_full": "over WebSocket: too many requests are queued on the connection",
    "websocket_connection_limit_reached": "over WebSocket: the connection has reached its maximum "
    "age",
}


def operations() -> dict[str, Any]:
    """None: OpenAPI has no words for a WebSocket."""
    return {}


def components(_deployment: object) -> dict[str, Any]:
    """None."""
    return {}
