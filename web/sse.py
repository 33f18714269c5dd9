"""The stream on the wire: bytes that are ready, a comment when it is quiet, and nothing in between (contract §4.1)."""

from collections.abc import AsyncIterator

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent

from models.settings import WebSettings

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def sse_answer(frames: AsyncIterator[bytes], settings: WebSettings) -> EventSourceResponse:
    """Streams `frames`. At shutdown the frames' source is told by its own side (`Relay.close`) and has the grace period to end."""
    return EventSourceResponse(
        frames,
        headers=_HEADERS,
        sep="\n",
        ping=int(settings.ping.total_seconds()),
        ping_message_factory=_keep_alive,
        send_timeout=settings.send_timeout.total_seconds(),
        shutdown_event=anyio.Event(),
        shutdown_grace_period=settings.grace.total_seconds(),
    )


def _keep_alive() -> ServerSentEvent:
    return ServerSentEvent(comment="keep-alive", sep="\n")
