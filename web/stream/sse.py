"""Server-Sent Events: frames as they are, and a comment while there are none."""

from collections.abc import AsyncIterator

import anyio
import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from models.config.groups import WebSettings

logger = structlog.get_logger()

SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers that keep caches and proxies from holding a stream back."""


class TimeoutEventResponse(EventSourceResponse):
    """A stream that disconnects a client which receives nothing for `send_timeout` seconds."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream.

        After a timeout the response is not completed, so the web server closes the connection.
        """
        try:
            await super().__call__(scope, receive, send)
        except* SendTimeoutError:
            logger.info("slow_client_disconnected", path=scope["path"])


def sse_response(frames: AsyncIterator[bytes], settings: WebSettings) -> EventSourceResponse:
    """Streams `frames`.

    At a stop, `EventReader.close` ends background streams, and foreground ones have the grace
    period.
    """
    return TimeoutEventResponse(
        frames,
        headers=SSE_HEADERS,
        sep="\n",
        ping=int(settings.ping.total_seconds()),
        ping_message_factory=_keep_alive,
        send_timeout=settings.send_timeout.total_seconds(),
        shutdown_event=anyio.Event(),
        shutdown_grace_period=settings.grace.total_seconds(),
    )


def _keep_alive() -> ServerSentEvent:
    return ServerSentEvent(comment="keep-alive", sep="\n")
