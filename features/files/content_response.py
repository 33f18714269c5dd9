"""The content of a file as a response: all of it, or a range (RFC 9110, section 14)."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from urllib.parse import quote

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from models.errors import ApiError, InvalidRequest
from models.files.kinds import TEXT
from models.files.storage import StorageError
from models.tasks import IdleTimeout
from web.http.connection import wait_for_disconnect

logger = structlog.get_logger()

_RANGE = re.compile(r"bytes\s*=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A part of a content."""

    start: int
    length: int


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The range that the header `Range` asks for. None: the whole content, also for several ranges
    and for what is no range. Raises InvalidRequest (416)
    for one that begins behind the end."""
    match = _RANGE.fullmatch(header or "")
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        if not length:
            raise _not_satisfiable(size)
        return ByteRange(size - length, length)
    start = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < start:
        return None
    if start >= size:
        raise _not_satisfiable(size)
    return ByteRange(start, last - start + 1)


def _not_satisfiable(size: int) -> ApiError:
    error = InvalidRequest(
        f"The range begins behind the end of the file, which has {size} bytes.",
        param="Range",
        code="invalid_range",
    )
    error.status = 416
    error.headers = {"content-range": f"bytes */{size}"}
    return error


def content_headers(filename: str, media_type: str | None, size: int) -> dict[str, str]:
    """The headers of a content of `size` bytes. A browser saves it as a file: it shows nothing that
    a client has uploaded."""
    kind = f"{TEXT}; charset=utf-8" if media_type == TEXT else media_type
    return {
        "content-type": kind or "application/octet-stream",
        "content-length": str(size),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(filename, safe='')}",
        "x-content-type-options": "nosniff",
        "accept-ranges": "bytes",
    }


class ContentResponse(Response):
    """Sends chunks as they are read, while the client receives."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        status: int,
        headers: dict[str, str],
        send_timeout: float,
    ) -> None:
        """`send_timeout`: seconds after which a client that does not receive is disconnected."""
        super().__init__(status_code=status, headers=headers)
        # `Response` announces an empty body.
        self.raw_headers = [(n.encode(), v.encode("latin-1")) for n, v in headers.items()]
        self._chunks = chunks
        self._send_timeout = send_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """If the client does not receive, or the storage fails, the response is not completed, so
        the web server closes the connection."""
        sending = asyncio.create_task(self._send(scope, send))
        watching = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            watching.cancel()
            await asyncio.wait((sending, watching))
        if not sending.cancelled():
            sending.result()

    async def _send(self, scope: Scope, send: Send) -> None:
        deadline = IdleTimeout()
        try:
            async with aclosing(self._chunks) as chunks:
                with deadline.extend():
                    await self._send_chunks(chunks, send, deadline)
        except TimeoutError:
            if not deadline.expired:
                raise
            logger.info("slow_client_disconnected", path=scope["path"])
        except StorageError as error:
            logger.error("file_storage_failed", error=str(error))  # noqa: TRY400

    async def _send_chunks(
        self, chunks: AsyncGenerator[bytes, None], send: Send, deadline: IdleTimeout
    ) -> None:
        loop = asyncio.get_running_loop()
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        async for chunk in chunks:
            deadline.set_deadline(loop.time() + self._send_timeout)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            deadline.pause()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
