"""An upstream's answer on its way to the client, unchanged but for this server's credentials in
errors (docs/proxied-endpoints.md).

At most one read of it is in memory: while the client does not receive, nothing is read. The client
gets the upstream's status and body, and the few headers that it needs to read or to retry.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import anyio
import orjson
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from features.proxy.endpoints import ProxiedEndpoint
from features.proxy.requests import ProxiedRequest
from models.config.groups import LimitSettings
from models.config.routes import Destination
from models.config.upstream import UpstreamSettings
from models.config.upstream_access import (
    CREDENTIAL_STATUSES,
    StreamedSecrets,
    credential_message,
    excerpt,
    secrets_of,
    without_secrets,
)
from models.errors import UPSTREAM_ENDED_EARLY, ApiError, NotFound, RunFailed
from models.http_bodies import is_uncompressed
from models.upstream_errors.frames import report_of
from models.upstream_errors.words import is_refused
from models.wire.json_input import clean_text
from models.wire.token_counts import USAGE_PIECE, TokenUsage, find_usage
from web.http.body import drain
from web.http.connection import wait_for_disconnect
from web.stream.sse import SSE_HEADERS

logger = structlog.get_logger()

_MAX_ERROR_BODY = 1024 * 1024
"""Bytes of an error response's body; a longer one is cut."""
_FORWARDED_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry", "content-length")
"""Headers of the upstream that the client gets, besides the content type."""
_TRY_NEXT_STATUSES = frozenset({401, 403, 404, 405, 408, 429})
"""Statuses below 500 after which another upstream may accept the same request."""
_ABSENT_STATUSES = frozenset({404, 405})
"""Statuses of an upstream that does not have the endpoint."""
_MAX_MODEL = 100
"""Characters of a model's name that an error repeats."""
_EVENT_END = b"\n\n"
_JSON_TYPE, _STREAM_TYPE = "application/json", "text/event-stream"

CONNECTION_ERRORS = (aiohttp.ClientError, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class ProxiedCall:
    """A request, and what is done with its answer."""

    endpoint: ProxiedEndpoint
    model: str
    """as the client names it"""
    upstreams: tuple[Destination, ...]
    """those of the model, in order; at least one"""
    request: ProxiedRequest
    on_usage: "OnUsage"
    """Called when all was sent, unless it is an error, with the upstream's name and what it says
    that the call has used; None if it does not."""


OnUsage = Callable[[ProxiedCall, str, TokenUsage | None], None]


class ProxiedResponse(Response):
    """The answer as an ASGI application that sends it to the client."""

    def __init__(
        self,
        call: ProxiedCall,
        upstream_response: aiohttp.ClientResponse,
        upstream: UpstreamSettings,
        limits: LimitSettings,
        send_timeout: float,
        grace_expired: asyncio.Event,
    ) -> None:
        """`send_timeout`: seconds after which a client that does not receive is disconnected."""
        super().__init__(status_code=upstream_response.status)
        self._call = call
        self._upstream_response = upstream_response
        self._upstream = upstream
        self._limits = limits
        self._send_timeout = send_timeout
        self._grace_expired = grace_expired
        self.end_connection: Callable[[], None] | None = None
        """Called at the end of the response, where a quota limits open streams."""
        self._error_body: bytes | None = None
        """The body of an error response, read completely before anything is sent."""
        self._is_about_model = False
        """Whether an error says that the upstream does not have the model."""
        self._is_refused = False
        """Whether the words of a server error blame the request: it can never succeed."""
        content_type = upstream_response.headers.get("content-type", _JSON_TYPE)
        self._content_type = (
            content_type
            if call.endpoint.forwards_type(content_type)
            else "text/plain; charset=utf-8"
        )

    async def check_head(self) -> "ProxiedResponse":
        """Checks the status and headers, and reads the body of an error.

        Raises RunFailed if the response cannot be forwarded.
        """
        status = self._upstream_response.status
        if not is_uncompressed(self._upstream_response.headers):
            raise upstream_error(
                502, "The upstream sent a compressed response although none was requested."
            )
        if 300 <= status < 400 or status < 200:
            raise upstream_error(
                502, f"The upstream answered with an unexpected redirect (HTTP {status})."
            )
        if status >= 400:
            self._error_body = await self._read_error_body()
        return self

    @property
    def should_try_next(self) -> bool:
        """Whether another upstream may accept the request: the error is not the request's."""
        status = self._upstream_response.status
        if self._is_about_model or self._is_refused or not self._call.request.may_repeat:
            return False
        return status in _TRY_NEXT_STATUSES or status >= 500

    async def close(self) -> None:
        """Releases the connection; closes it if the response was not read to its end."""
        self._upstream_response.close()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Sends the response, unless the client disconnects or the grace period ends first."""
        request = self._call.request
        try:
            if self._error_body is not None:
                await self._send_error(Request(scope, request.receive), send, self._error_body)
                return
            async with anyio.create_task_group() as group:
                for end in (
                    lambda: wait_for_disconnect(request.receive),
                    self._grace_expired.wait,
                ):
                    group.start_soon(_cancel_after, end, group.cancel_scope.cancel)
                await self._send_to_client(send, scope["path"])
                group.cancel_scope.cancel()
        finally:
            if self.end_connection is not None:
                self.end_connection()
            await self.close()

    async def _send_error(self, request: Request, send: Send, body: bytes) -> None:
        """Sends an error, and then reads what is left of the request, for some seconds: a client
        that still sends when its connection is closed may never see the answer."""
        # Nothing more of the request is sent.
        await self.close()
        self._call.request.stop()
        await send(self._head())
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await drain(request)
        await send({"type": "http.response.body", "body": b""})

    def _head(self) -> Message:
        return {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self._response_headers(),
        }

    async def _send_to_client(self, send: Send, path: str) -> None:
        """Sends head and body.

        If the upstream's body ends early, ours is not completed: the web server closes the
        connection.
        """
        await send(self._head())
        head, tail = b"", _EVENT_END
        try:
            async for chunk in self._read_pieces():
                if len(head) < USAGE_PIECE:
                    head += chunk[: USAGE_PIECE - len(head)]
                tail = (tail + chunk)[-USAGE_PIECE:]
                async with asyncio.timeout(self._send_timeout):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except RunFailed as failure:
            logger.info(
                "upstream_stream_aborted", upstream=self._upstream.name, reason=failure.message
            )
            if tail.endswith(_EVENT_END) and self._content_type.startswith(_STREAM_TYPE):
                event = b"data: %b\n\n" % orjson.dumps(failure.body())
                await send({"type": "http.response.body", "body": event})
            return
        except TimeoutError:
            logger.info("slow_client_disconnected", path=path)
            return
        finally:
            # Also of a stream that its client has left: the upstream counts what it has sent.
            self._report_usage(head, tail)
        await send({"type": "http.response.body", "body": b""})

    def _report_usage(self, head: bytes, tail: bytes) -> None:
        usage = None
        if self._content_type.startswith((_JSON_TYPE, _STREAM_TYPE)):
            usage = find_usage(tail)
        if usage is None and self._content_type.startswith(_JSON_TYPE):
            # llama.cpp writes the usage before the embeddings.
            usage = find_usage(head)
        self._call.on_usage(self._call, self._upstream.name, usage)

    async def _read_pieces(self) -> AsyncIterator[bytes]:
        """What is sent of the body: that of a stream without this server's credential in its
        errors, any other one as it is. Raises RunFailed as `_read_chunks` does."""
        if not self._content_type.startswith(_STREAM_TYPE):
            async for chunk in self._read_chunks():
                yield chunk
            return
        secrets = StreamedSecrets(secrets_of(self._upstream))
        try:
            async for chunk in self._read_chunks():
                if piece := secrets.feed(chunk):
                    yield piece
        except RunFailed:
            yield secrets.finish()
            raise
        yield secrets.finish()

    async def _read_chunks(self) -> AsyncIterator[bytes]:
        """The body, one read at a time.

        Raises RunFailed if the upstream sends nothing for too long, or too little.
        """
        loop = asyncio.get_running_loop()
        turn_end = loop.time() + self._limits.turn.total_seconds()
        while True:
            gap_end = loop.time() + self._limits.token_gap.total_seconds()
            try:
                async with asyncio.timeout_at(min(gap_end, turn_end)):
                    chunk = await self._upstream_response.content.readany()
            except TimeoutError:
                raise upstream_error(504, "The upstream sent no data for too long.") from None
            except CONNECTION_ERRORS:
                raise upstream_error(502, UPSTREAM_ENDED_EARLY) from None
            if not chunk:
                return
            yield chunk

    async def _read_error_body(self) -> bytes:
        """The body of an error, without this server's credential, which some upstreams repeat."""
        # The status alone is enough: a body that cannot be read is no further error.
        body = bytearray()
        with contextlib.suppress(TimeoutError, *CONNECTION_ERRORS):
            async with asyncio.timeout(self._limits.token_gap.total_seconds()):
                await self._read_into(body)
        text = bytes(body[:_MAX_ERROR_BODY]).decode(errors="surrogateescape")
        text = without_secrets(text, secrets_of(self._upstream))
        status = self._upstream_response.status
        self._is_about_model = status == 404 and "model" in text.lower()
        self._is_refused = status >= 500 and is_refused(_message_in(text))
        if status in CREDENTIAL_STATUSES:
            return self._replace_error(upstream_error(502, credential_message(_message_in(text))))
        if self._is_endpoint_absent:
            path = self._call.endpoint.path
            absent = _endpoint_not_offered(self._call.model, path, status, _message_in(text))
            return self._replace_error(absent)
        return text.encode(errors="surrogateescape")

    @property
    def _is_endpoint_absent(self) -> bool:
        return (
            self._call.endpoint.explains_absence
            and self._upstream_response.status in _ABSENT_STATUSES
            and not self._is_about_model
        )

    def _replace_error(self, error: ApiError) -> bytes:
        """Sends an error of ours instead of the upstream's."""
        self._content_type, self.status_code = _JSON_TYPE, error.status
        return orjson.dumps(error.body())

    async def _read_into(self, body: bytearray) -> None:
        async for chunk in self._upstream_response.content.iter_any():
            body += chunk
            if len(body) > _MAX_ERROR_BODY:
                return

    def _response_headers(self) -> list[tuple[bytes, bytes]]:
        headers = {
            name: self._upstream_response.headers[name]
            for name in _FORWARDED_HEADERS
            if name in self._upstream_response.headers
        }
        headers["content-type"] = self._content_type
        if self._is_refused or self._upstream_response.status in CREDENTIAL_STATUSES:
            headers["x-should-retry"] = "false"
        if self._content_type.startswith(_STREAM_TYPE):
            headers |= SSE_HEADERS
            headers.pop("content-length", None)  # an error in it may become shorter
        if self._error_body is not None:
            headers["content-length"] = str(len(self._error_body))
        return [
            (name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()
        ]


async def _cancel_after(end: Callable[[], Any], cancel: Callable[[], None]) -> None:
    await end()
    cancel()


def upstream_error(status: int, message: str) -> RunFailed:
    """The error if the upstream does not answer as it should."""
    return RunFailed(status, message, kind=ApiError.type, code=None)


def _endpoint_not_offered(model: str, path: str, status: int, upstream_message: str) -> NotFound:
    """The error if the model's upstream has nothing at this path. `upstream_message`: without
    credentials."""
    message = (
        f"The upstream of the model '{model[:_MAX_MODEL]}' does not offer /v1{path}: it has "
        f"nothing there (HTTP {status})."
    )
    if upstream_message:
        message = f"{message} It said: {excerpt(upstream_message)}"
    return NotFound(message, param="model", code="endpoint_not_offered")


def _message_in(body: str) -> str:
    """The message of an error's body in any vendor's frame; empty if it has none."""
    try:
        return clean_text(report_of(orjson.loads(body)).message)
    except orjson.JSONDecodeError:
        return ""
