"""The stream on the wire: bytes that are ready, a comment when it is quiet, and nothing in between (contract §4.1)."""

from collections.abc import AsyncIterator

import anyio
import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from models.config.groups import WebSettings

logger = structlog.get_logger()

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class TimeoutEventResponse(EventSourceResponse):
    """A stream whose reader may take nothing for as long as `send_timeout`, and is then let go: it can resume by number."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As every ASGI application; the server closes the connection of an answer that was not completed."""
        try:
            await super().__call__(scope, receive, send)
        except* SendTimeoutError:
            logger.info("reader_let_go", path=scope["path"])


def sse_response(frames: AsyncIterator[bytes], settings: WebSettings) -> EventSourceResponse:
    """Streams `frames`. At shutdown the frames' source is told by its own side (`Relay.close`) and has the grace period to end."""
    return TimeoutEventResponse(
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
