"""Server-Sent Events: frames as they are, or padded, and a comment while there are none."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from models.config.web import WebSettings
from models.tasks import IdleTimeout
from models.wire.events import DONE, split_frames
from models.wire.request import CreateRequest
from web.http.connection import wait_for_disconnect

logger = structlog.get_logger()

SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers that keep caches and proxies from holding a stream back."""
_KEEP_ALIVE = ServerSentEvent(comment="keep-alive", sep="\n").encode()
_PADDING_STEP = 64
"""Bytes of which the length of every delta event becomes a multiple."""
_PADDING_FIELD = b',"obfuscation":"%b"}\n\n'
_END_OF_FRAME = b"}\n\n"


class StreamBroken(Exception):
    """Raised by the frames of a stream that must not look complete: the connection is closed."""


class EventStreamResponse(EventSourceResponse):
    """A stream of frames as sse-starlette sends it, with fewer tasks and timers.

    sse-starlette starts four tasks for a stream, a timer for each send, and takes a lock for each
    comment. Here two tasks and one timer serve a stream.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        settings: WebSettings,
        on_end: Callable[[], None] | None,
        keep_alive: bytes = _KEEP_ALIVE,
    ) -> None:
        super().__init__(frames, headers=SSE_HEADERS)
        self._keep_alive = keep_alive
        self._on_end = on_end
        self._frames = frames
        self._ping_seconds = settings.ping.total_seconds()
        self._send_seconds = settings.send_timeout.total_seconds()
        self._may_ping = False
        """The stream has begun, has not ended, and no frames are being sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream until its end, or until the client has disconnected, or has received
        nothing for the time limit. Then the response is not completed, so the web server closes the
        connection."""
        tasks = (
            asyncio.create_task(self._send_frames(scope, send)),
            asyncio.create_task(self._watch_client(scope, receive, send)),
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._on_end is not None:
                self._on_end()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _send_frames(self, scope: Scope, send: Send) -> None:
        """Sends all frames. After a timeout, and if it is broken, the stream ends without its
        end."""
        deadline = IdleTimeout()
        try:
            async with aclosing(self._frames) as blocks:
                with deadline.extend():
                    await self._send_blocks(blocks, send, deadline)
        except StreamBroken:
            logger.info("stream_broken", path=scope["path"])
        except TimeoutError:
            if not deadline.expired:
                raise
            _log_slow_client(scope)

    async def _send_blocks(
        self, blocks: AsyncGenerator[bytes], send: Send, deadline: IdleTimeout
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline.set_deadline(loop.time() + self._send_seconds)
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        while True:
            deadline.pause()
            self._may_ping = True
            block = await anext(blocks, b"")
            self._may_ping = False
            deadline.set_deadline(loop.time() + self._send_seconds)
            has_more = bool(block) and not block.endswith(DONE)
            await send({"type": "http.response.body", "body": block, "more_body": has_more})
            if not has_more:
                return
            del block  # an event may have 32 MiB, and the next one may take long

    async def _watch_client(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Waits until the client has disconnected, and sends a comment from time to time."""
        with suppress(SendTimeoutError):
            while not await _is_disconnected(receive, self._ping_seconds):
                if self._may_ping:
                    await self._send_comment(scope, send)

    async def _send_comment(self, scope: Scope, send: Send) -> None:
        """Raises SendTimeoutError."""
        try:
            async with asyncio.timeout(self._send_seconds):
                await send(
                    {"type": "http.response.body", "body": self._keep_alive, "more_body": True}
                )
        except TimeoutError:
            _log_slow_client(scope)
            raise SendTimeoutError from None


def sse_response(
    frames: AsyncGenerator[bytes],
    settings: WebSettings,
    on_end: Callable[[], None] | None = None,
    keep_alive: bytes = _KEEP_ALIVE,
) -> EventStreamResponse:
    """Streams `frames`, of which none is empty. `on_end`: called at the end. `keep_alive`: sent
    while there are none.

    At a stop, `EventReader.close` ends background streams. Foreground ones have the grace period,
    then `EventReader.abort` ends them too.
    """
    return EventStreamResponse(frames, settings, on_end, keep_alive)


async def _is_disconnected(receive: Receive, within: float) -> bool:
    """Whether the client disconnects within so many seconds."""
    try:
        async with asyncio.timeout(within):
            await wait_for_disconnect(receive)
    except TimeoutError:
        return False
    return True


def _log_slow_client(scope: Scope) -> None:
    logger.info("slow_client_disconnected", path=scope["path"])


def obfuscate_if_requested(
    blocks: AsyncGenerator[bytes], request: CreateRequest
) -> AsyncGenerator[bytes]:
    """The frames of a new response, padded if its request asks for it."""
    return (
        obfuscate(blocks)
        if request.parameters.get("stream_options", {}).get("include_obfuscation")
        else blocks
    )


async def obfuscate(blocks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The same frames, each delta with a field `obfuscation`. Closing it closes `blocks`.

    On an encrypted connection, the length of an event would reveal the length of the model's token.
    The padding is added while events are sent, never stored. It depends only on the event, so that
    every reader who asks for it gets the same bytes, live or replayed (I4).
    """
    async with aclosing(blocks):
        async for block in blocks:
            padded = b"".join(map(_pad, split_frames(block)))
            del block  # as in `_send_blocks`
            yield padded
            del padded


def _pad(frame: bytes) -> bytes:
    if not frame.partition(b"\n")[0].endswith(b".delta"):
        return frame
    size = len(frame) - len(_END_OF_FRAME) + len(_PADDING_FIELD) - len(b"%b")
    padding = hashlib.shake_128(frame, usedforsecurity=False).hexdigest(_PADDING_STEP // 2)[
        : -size % _PADDING_STEP
    ]
    return frame[: -len(_END_OF_FRAME)] + _PADDING_FIELD % padding.encode()
