"""The way of a chat completion through this server: to the model's upstream, and its answer back, byte for byte (docs/adr/0016).

No more is held of an answer than one read: while the client takes nothing, nothing is read. Who is told what: the upstream the operator's
credential and headers and nothing of the client's but the body; the client the upstream's status, its body, and of its headers those that
say how to read it or when to come again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
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
from models.errors import ApiError, RunFailed
from web.http.connection import wait_for_disconnect

logger = structlog.get_logger()

_READ_BUFFER = 64 * 1024
"""Bytes of an answer that wait here at most; aiohttp stops reading at twice that."""
_MAX_ERROR_BODY = 1024 * 1024
"""Bytes of a refusal's body: what is longer is cut."""
_FORWARDED_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry", "content-length")
"""Headers of the upstream that the client gets, besides the content type."""
_FORWARDED_CONTENT_TYPES = (
    "application/json",
    "text/event-stream",
    "text/plain",
    "application/problem+json",
)
"""Content types that are passed on; what calls itself otherwise (a proxy's HTML) is plain text here."""
_CREDENTIAL_STATUSES = frozenset({401, 403})
"""The upstream's words about our credential are for operators, not for clients."""
_TRY_NEXT_STATUSES = frozenset({401, 403, 404, 405, 408, 429})
"""Statuses below 500 after which another upstream may do better with the same request."""
_MIN_SECRET_LENGTH = 8
"""Characters from which a credential is one: local servers are given words such as `none`."""
_EVENT_END = b"\n\n"

_CONNECTION_ERRORS = (aiohttp.ClientError, OSError, ValueError)


class ChatProxy:
    """The connections to all upstreams that serve chat completions."""

    def __init__(self, settings: Settings, grace_expired: asyncio.Event) -> None:
        """`drained`: set when the process gives up what is still under way."""
        self._settings = settings
        self._grace_expired = grace_expired
        self._routes = Routes(settings)
        self._session: aiohttp.ClientSession | None = None

    def has_route(self, model: str) -> bool:
        """Whether a route leads anywhere; where none are configured, one does for every name."""
        return bool(self._routes.find(model))

    async def forward(self, body: dict[str, Any], *, large: bool) -> Response:
        """The answer of the first of the model's upstreams that gives one. Cancelling closes the connection.

        Raises RunFailed (502, 504) when none does. `body` is what the client sent, `model` a string with a route; a `large` one is not
        encoded in the event loop.
        """
        *others, last = self._routes.find(body["model"])
        for destination in others:
            try:
                proxied = await self._send(destination, body, large=large)
            except RunFailed as failure:
                logger.info(
                    "upstream_passed_over",
                    upstream=destination.upstream.name,
                    reason=failure.message,
                )
                continue
            if not proxied.should_try_next:
                return proxied
            await proxied.close()
            logger.info(
                "upstream_passed_over",
                upstream=destination.upstream.name,
                reason=f"status {proxied.status_code}",
            )
        return await self._send(last, body, large=large)

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()

    async def _send(
        self, destination: Destination, body: dict[str, Any], *, large: bool
    ) -> "ProxiedResponse":
        routed_body = {**body, "model": destination.model}
        encoded = (
            await asyncio.to_thread(orjson.dumps, routed_body)
            if large
            else orjson.dumps(routed_body)
        )
        upstream, limits = (
            destination.upstream,
            limits_of(self._settings.limits, destination.upstream),
        )
        # A stream begins soon; an answer that comes in one piece begins when the model is done.
        timeout = (
            limits.first_token if body.get("stream") is True else limits.turn
        ).total_seconds()
        connect = aiohttp.ClientTimeout(
            total=None, connect=None, sock_connect=upstream.connect_timeout.total_seconds()
        )
        request = self._get_session().post(
            f"{upstream.base_url.rstrip('/')}/chat/completions",
            params=upstream.query,
            data=encoded,
            headers={
                "authorization": f"Bearer {upstream.api_key.get_secret_value()}",
                **{name: value.get_secret_value() for name, value in upstream.headers.items()},
                "content-type": "application/json",
                "accept": "text/event-stream, application/json",
                "accept-encoding": "identity",
            },
            allow_redirects=False,
            timeout=connect,
        )
        try:
            async with asyncio.timeout(timeout):
                upstream_response = await request
        except TimeoutError:
            raise _upstream_error(504, "The upstream did not answer in time.") from None
        except _CONNECTION_ERRORS as error:
            logger.info("upstream_unreachable", upstream=upstream.name, error=type(error).__name__)
            raise _upstream_error(
                502, "The upstream could not be reached, or hung up before it answered."
            ) from None
        proxied = ProxiedResponse(
            upstream_response,
            upstream,
            limits,
            self._settings.web.send_timeout.total_seconds(),
            self._grace_expired,
        )
        try:
            return await proxied.check_head()
        except BaseException:
            await proxied.close()
            raise

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),  # one client's must not become another's
                auto_decompress=False,
                read_bufsize=_READ_BUFFER,
                trust_env=True,
            )
        return self._session


class ProxiedResponse(Response):
    """An upstream's answer on its way to the client, as an ASGI application."""

    def __init__(
        self,
        upstream_response: aiohttp.ClientResponse,
        upstream: UpstreamSettings,
        limits: LimitSettings,
        send_timeout: float,
        grace_expired: asyncio.Event,
    ) -> None:
        """`send_timeout`: seconds a client may take nothing."""
        super().__init__(status_code=upstream_response.status)
        self._upstream_response = upstream_response
        self._upstream = upstream
        self._limits = limits
        self._send_timeout = send_timeout
        self._grace_expired = grace_expired
        self._error_body: bytes | None = None
        """The body of an answer that is no success: short, and read whole before anything is passed on."""
        content_type = upstream_response.headers.get("content-type", "application/json")
        self._content_type = (
            content_type
            if content_type.partition(";")[0].strip().lower() in _FORWARDED_CONTENT_TYPES
            else "text/plain; charset=utf-8"
        )

    async def check_head(self) -> "ProxiedResponse":
        """Looks at the head, and at all of a refusal. Raises RunFailed for what is no answer to pass on."""
        upstream_response = self._upstream_response
        if upstream_response.headers.get("content-encoding", "identity").strip().lower() not in (
            "",
            "identity",
        ):
            raise _upstream_error(
                502, "The upstream sent a compressed answer although none was asked for."
            )
        if 300 <= upstream_response.status < 400 or upstream_response.status < 200:
            raise _upstream_error(
                502,
                f"The upstream answered with an unexpected redirect (HTTP {upstream_response.status}).",
            )
        if upstream_response.status >= 400:
            self._error_body = await self._read_error_body()
        return self

    @property
    def should_try_next(self) -> bool:
        """Whether another upstream may do better: it is not the request that was refused."""
        status = self._upstream_response.status
        if status == 404 and b"model" in (self._error_body or b"").lower():
            return False
        return status in _TRY_NEXT_STATUSES or status >= 500

    async def close(self) -> None:
        """Gives the connection back; closes it when the answer was not read to its end."""
        self._upstream_response.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on until the end, or until either side, or this process, has had enough."""
        try:
            async with anyio.create_task_group() as group:
                for end in (lambda: wait_for_disconnect(receive), self._grace_expired.wait):
                    group.start_soon(_cancel_after, end, group.cancel_scope.cancel)
                await self._stream_to_client(send, scope["path"])
                group.cancel_scope.cancel()
        finally:
            await self.close()

    async def _stream_to_client(self, send: Send, path: str) -> None:
        """An answer that breaks off is broken off here too: it is not completed, and the server closes the connection."""
        await send(
            {
                "type": "http.response.start",
                "status": self._upstream_response.status,
                "headers": self._response_headers(),
            }
        )
        if self._error_body is not None:
            await send({"type": "http.response.body", "body": self._error_body})
            return
        last = _EVENT_END
        try:
            async for chunk in self._read_chunks():
                last = (last + chunk)[-2:]
                async with asyncio.timeout(self._send_timeout):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except RunFailed as failure:
            logger.info("upstream_broke_off", upstream=self._upstream.name, reason=failure.message)
            if last == _EVENT_END and self._content_type.startswith("text/event-stream"):
                event = b"data: %b\n\n" % orjson.dumps(failure.body())
                await send({"type": "http.response.body", "body": event})
            return
        except TimeoutError:
            logger.info("reader_let_go", path=path)
            return
        await send({"type": "http.response.body", "body": b""})

    async def _read_chunks(self) -> AsyncIterator[bytes]:
        """What each read brings. Raises RunFailed when the upstream falls silent or breaks off."""
        loop = asyncio.get_running_loop()
        turn_end = loop.time() + self._limits.turn.total_seconds()
        while True:
            silence = loop.time() + self._limits.token_gap.total_seconds()
            try:
                async with asyncio.timeout_at(min(silence, turn_end)):
                    chunk = await self._upstream_response.content.readany()
            except TimeoutError:
                raise _upstream_error(504, "The upstream was silent for too long.") from None
            except _CONNECTION_ERRORS:
                raise _upstream_error(502, "The connection to the upstream broke off.") from None
            if not chunk:
                return
            yield chunk

    async def _read_error_body(self) -> bytes:
        """Its beginning, without this server's credential, which some upstreams repeat."""
        if self._upstream_response.status in _CREDENTIAL_STATUSES:
            self._content_type = "application/json"
            error = RunFailed(
                self._upstream_response.status,
                "The upstream refused this server's credential.",
                kind="authentication_error",
                code=None,
            )
            return orjson.dumps(error.body())
        body = bytearray()
        with contextlib.suppress(
            TimeoutError, *_CONNECTION_ERRORS
        ):  # its status is the answer, whatever else there was to say
            async with asyncio.timeout(self._limits.token_gap.total_seconds()):
                async for chunk in self._upstream_response.content.iter_any():
                    body += chunk
                    if len(body) > _MAX_ERROR_BODY:
                        break
        secret = self._upstream.api_key.get_secret_value()
        beginning = bytes(body[:_MAX_ERROR_BODY])
        return (
            beginning.replace(secret.encode(), b"...")
            if len(secret) >= _MIN_SECRET_LENGTH
            else beginning
        )

    def _response_headers(self) -> list[tuple[bytes, bytes]]:
        headers = {
            name: self._upstream_response.headers[name]
            for name in _FORWARDED_HEADERS
            if name in self._upstream_response.headers
        }
        headers["content-type"] = self._content_type
        if self._error_body is not None:
            headers["content-length"] = str(len(self._error_body))
        if self._content_type.startswith("text/event-stream"):
            headers |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return [
            (name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()
        ]


async def _cancel_after(end: Callable[[], Any], cancel: Callable[[], None]) -> None:
    await end()
    cancel()


def _upstream_error(status: int, message: str) -> RunFailed:
    return RunFailed(status, message, kind=ApiError.type, code=None)
