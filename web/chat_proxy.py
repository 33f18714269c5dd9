"""Forwards chat completions to upstreams, and their responses to clients unchanged (ADR 0016).

At most one read of a response is in memory: while the client does not receive, nothing is read. The
upstream gets the operator's credential and headers, and of the client's request only the body. The
client gets the upstream's status and body, and the few headers that it needs to read or to retry.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import aiohttp
import anyio
import orjson
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from models.config.groups import LimitSettings
from models.config.routes import Destination, Routes, limits_of
from models.config.settings import Settings
from models.config.upstream import UpstreamSettings
from models.config.upstream_access import (
    CREDENTIAL_STATUSES,
    credential_message,
    request_headers,
    secrets_of,
    without_secrets,
)
from models.errors import UPSTREAM_ENDED_EARLY, UPSTREAM_UNREACHABLE, ApiError, RunFailed
from models.http_bodies import is_uncompressed
from models.wire.chat_usage import USAGE_TAIL, ChatUsage, find_usage
from models.wire.json_input import clean_text
from web.http.body import run_sized
from web.http.connection import wait_for_disconnect
from web.quotas.connections import OpenConnection
from web.stream.sse import SSE_HEADERS

logger = structlog.get_logger()

_READ_BUFFER = 64 * 1024
"""Bytes that may wait to be read; aiohttp stops receiving at twice that."""
_MAX_ERROR_BODY = 1024 * 1024
"""Bytes of an error response's body; a longer one is cut."""
_FORWARDED_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry", "content-length")
"""Headers of the upstream that the client gets, besides the content type."""
_FORWARDED_CONTENT_TYPES = (
    "application/json",
    "text/event-stream",
    "text/plain",
    "application/problem+json",
)
"""Content types that are forwarded; any other, such as a proxy's HTML, becomes plain text."""
_TRY_NEXT_STATUSES = frozenset({401, 403, 404, 405, 408, 429})
"""Statuses below 500 after which another upstream may accept the same request."""
_EVENT_END = b"\n\n"

OnUsage = Callable[[str, ChatUsage], None]
_CONNECTION_ERRORS = (aiohttp.ClientError, OSError, ValueError)


class ChatProxy:
    """The connections to all upstreams that serve chat completions."""

    def __init__(self, settings: Settings, routes: Routes, grace_expired: asyncio.Event) -> None:
        """`grace_expired`: set when the process ends requests that are still running."""
        self._settings = settings
        self._grace_expired = grace_expired
        self._routes = routes
        self._session: aiohttp.ClientSession | None = None

    def has_route(self, model: str) -> bool:
        """Whether an upstream serves the model. Without configured routes one serves all."""
        return bool(self._routes.find(model))

    async def forward(
        self, body: dict[str, Any], *, size: int, on_usage: OnUsage
    ) -> "ProxiedResponse":
        """The response of the first upstream of the model that accepts the request.

        Cancelling closes the connection. `body` is the client's, with a model that has a route;
        `size` is its size in bytes. `on_usage`: called with the upstream's name and what the
        upstream says that the completion has used, if it does, when all was sent. Raises RunFailed
        (502, 504) if no upstream responds.
        """
        *others, last = self._routes.find(body["model"])
        for destination in others:
            try:
                proxied = await self._send(destination, body, size, on_usage)
            except RunFailed as failure:
                _log_skipped(destination, failure.message)
                continue
            if not proxied.should_try_next:
                return proxied
            await proxied.close()
            _log_skipped(destination, f"status {proxied.status_code}")
        return await self._send(last, body, size, on_usage)

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()

    async def _send(
        self, destination: Destination, body: dict[str, Any], size: int, on_usage: OnUsage
    ) -> "ProxiedResponse":
        encoded = await run_sized(partial(orjson.dumps, {**body, "model": destination.model}), size)
        upstream = destination.upstream
        limits = limits_of(self._settings.limits, upstream)
        # A stream begins soon; a response in one piece begins when the model has finished.
        timeout = limits.first_token if body.get("stream") is True else limits.turn
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                upstream_response = await self._post(upstream, encoded)
        except TimeoutError:
            raise _upstream_error(504, "The upstream did not answer in time.") from None
        except _CONNECTION_ERRORS as error:
            logger.info("upstream_unreachable", upstream=upstream.name, error=type(error).__name__)
            raise _upstream_error(502, UPSTREAM_UNREACHABLE) from None
        proxied = ProxiedResponse(
            upstream_response,
            upstream,
            limits,
            self._settings.web.send_timeout.total_seconds(),
            self._grace_expired,
            partial(on_usage, upstream.name),
        )
        try:
            return await proxied.check_head()
        except BaseException:
            await proxied.close()
            raise

    async def _post(self, upstream: UpstreamSettings, encoded: bytes) -> aiohttp.ClientResponse:
        return await self._get_session().post(
            f"{upstream.base_url.rstrip('/')}/chat/completions",
            params=upstream.plain_query,
            data=encoded,
            headers={
                **request_headers(upstream),
                "accept": "text/event-stream, application/json",
            },
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                total=None, connect=None, sock_connect=upstream.connect_timeout.total_seconds()
            ),
        )

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),  # no client may get another client's cookies
                auto_decompress=False,
                read_bufsize=_READ_BUFFER,
                trust_env=True,
            )
        return self._session


class ProxiedResponse(Response):
    """An upstream's response as an ASGI application that sends it to the client."""

    def __init__(
        self,
        upstream_response: aiohttp.ClientResponse,
        upstream: UpstreamSettings,
        limits: LimitSettings,
        send_timeout: float,
        grace_expired: asyncio.Event,
        on_usage: Callable[[ChatUsage], None],
    ) -> None:
        """`send_timeout`: seconds after which a client that does not receive is disconnected."""
        super().__init__(status_code=upstream_response.status)
        self._upstream_response = upstream_response
        self._upstream = upstream
        self._limits = limits
        self._send_timeout = send_timeout
        self._grace_expired = grace_expired
        self._on_usage = on_usage
        self.connection: OpenConnection | None = None
        """Closed with the response, where a quota limits them."""
        self._error_body: bytes | None = None
        """The body of an error response, read completely before anything is sent."""
        content_type = upstream_response.headers.get("content-type", "application/json")
        self._content_type = (
            content_type
            if content_type.partition(";")[0].strip().lower() in _FORWARDED_CONTENT_TYPES
            else "text/plain; charset=utf-8"
        )

    async def check_head(self) -> "ProxiedResponse":
        """Checks the status and headers, and reads the body of an error.

        Raises RunFailed if the response cannot be forwarded.
        """
        status = self._upstream_response.status
        if not is_uncompressed(self._upstream_response.headers):
            raise _upstream_error(
                502, "The upstream sent a compressed response although none was requested."
            )
        if 300 <= status < 400 or status < 200:
            raise _upstream_error(
                502, f"The upstream answered with an unexpected redirect (HTTP {status})."
            )
        if status >= 400:
            self._error_body = await self._read_error_body()
        return self

    @property
    def should_try_next(self) -> bool:
        """Whether another upstream may accept the request: the error is not the request's."""
        status = self._upstream_response.status
        if status == 404 and b"model" in (self._error_body or b"").lower():
            return False
        return status in _TRY_NEXT_STATUSES or status >= 500

    async def close(self) -> None:
        """Releases the connection; closes it if the response was not read to its end."""
        self._upstream_response.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response, unless the client disconnects or the grace period ends first."""
        try:
            async with anyio.create_task_group() as group:
                for end in (lambda: wait_for_disconnect(receive), self._grace_expired.wait):
                    group.start_soon(_cancel_after, end, group.cancel_scope.cancel)
                await self._send_to_client(send, scope["path"])
                group.cancel_scope.cancel()
        finally:
            if self.connection is not None:
                self.connection.close()
            await self.close()

    async def _send_to_client(self, send: Send, path: str) -> None:
        """Sends head and body.

        If the upstream's body ends early, ours is not completed: the web server closes the
        connection.
        """
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self._response_headers(),
            }
        )
        if self._error_body is not None:
            await send({"type": "http.response.body", "body": self._error_body})
            return
        tail = _EVENT_END
        try:
            async for chunk in self._read_chunks():
                tail = (tail + chunk)[-USAGE_TAIL:]
                async with asyncio.timeout(self._send_timeout):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except RunFailed as failure:
            logger.info(
                "upstream_stream_aborted", upstream=self._upstream.name, reason=failure.message
            )
            if tail.endswith(_EVENT_END) and self._content_type.startswith("text/event-stream"):
                event = b"data: %b\n\n" % orjson.dumps(failure.body())
                await send({"type": "http.response.body", "body": event})
            return
        except TimeoutError:
            logger.info("slow_client_disconnected", path=path)
            return
        finally:
            # Also of a stream that its client has left: the upstream counts what it has sent.
            if (usage := find_usage(tail)) is not None:
                self._on_usage(usage)
        await send({"type": "http.response.body", "body": b""})

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
                raise _upstream_error(504, "The upstream sent no data for too long.") from None
            except _CONNECTION_ERRORS:
                raise _upstream_error(502, UPSTREAM_ENDED_EARLY) from None
            if not chunk:
                return
            yield chunk

    async def _read_error_body(self) -> bytes:
        """The body of an error, without this server's credential, which some upstreams repeat."""
        # The status alone is enough: a body that cannot be read is no further error.
        body = bytearray()
        with contextlib.suppress(TimeoutError, *_CONNECTION_ERRORS):
            async with asyncio.timeout(self._limits.token_gap.total_seconds()):
                await self._read_into(body)
        text = bytes(body[:_MAX_ERROR_BODY]).decode(errors="surrogateescape")
        text = without_secrets(text, secrets_of(self._upstream))
        if self._upstream_response.status not in CREDENTIAL_STATUSES:
            return text.encode(errors="surrogateescape")
        self._content_type, self.status_code = "application/json", 502
        error = _upstream_error(502, credential_message(_message_in(text)))
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
        if self._upstream_response.status in CREDENTIAL_STATUSES:
            headers["x-should-retry"] = "false"
        if self._error_body is not None:
            headers["content-length"] = str(len(self._error_body))
        if self._content_type.startswith("text/event-stream"):
            headers |= SSE_HEADERS
        return [
            (name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()
        ]


async def _cancel_after(end: Callable[[], Any], cancel: Callable[[], None]) -> None:
    await end()
    cancel()


def _log_skipped(destination: Destination, reason: str) -> None:
    logger.info("upstream_skipped", upstream=destination.upstream.name, reason=reason)


def _message_in(body: str) -> str:
    """The message of an error's body in OpenAI's envelope; empty if it has none."""
    try:
        message = orjson.loads(body)["error"]["message"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return ""
    return clean_text(message) if isinstance(message, str) else ""


def _upstream_error(status: int, message: str) -> RunFailed:
    return RunFailed(status, message, kind=ApiError.type, code=None)
