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

from models.config.routes import Destination, Routes, limits_of
from models.config.settings import LimitSettings, Settings, UpstreamSettings
from models.errors import ApiError, RunFailed
from web.http.connection import gone

logger = structlog.get_logger()

_READ = 64 * 1024
"""Bytes of an answer that wait here at most; aiohttp stops reading at twice that."""
_ERROR = 1024 * 1024
"""Bytes of a refusal's body: what is longer is cut."""
_KEPT = ("retry-after", "retry-after-ms", "x-should-retry", "content-length")
"""Headers of the upstream that the client gets, besides the content type."""
_TYPES = ("application/json", "text/event-stream", "text/plain", "application/problem+json")
"""Content types that are passed on; what calls itself otherwise (a proxy's HTML) is plain text here."""
_UNSPOKEN = frozenset({401, 403})
"""The upstream's words about our credential are for operators, not for clients."""
_ELSEWHERE = frozenset({401, 403, 404, 405, 408, 429})
"""Statuses below 500 after which another upstream may do better with the same request."""
_SECRET = 8
"""Characters from which a credential is one: local servers are given words such as `none`."""
_EVENT_END = b"\n\n"

_FAULTS = (aiohttp.ClientError, OSError, ValueError)


class Passage:
    """The connections to all upstreams that serve chat completions."""

    def __init__(self, settings: Settings, drained: asyncio.Event) -> None:
        """`drained`: set when the process gives up what is still under way."""
        self._settings = settings
        self._drained = drained
        self._routes = Routes(settings)
        self._session: aiohttp.ClientSession | None = None

    def knows(self, model: str) -> bool:
        """Whether a route leads anywhere; where none are configured, one does for every name."""
        return bool(self._routes.find(model))

    async def answer(self, body: dict[str, Any], *, large: bool) -> Response:
        """The answer of the first of the model's upstreams that gives one. Cancelling closes the connection.

        Raises RunFailed (502, 504) when none does. `body` is what the client sent, `model` a string with a route; a `large` one is not
        encoded in the event loop.
        """
        *others, last = self._routes.find(body["model"])
        for way in others:
            try:
                answer = await self._asked(way, body, large=large)
            except RunFailed as failure:
                logger.info(
                    "upstream_passed_over", upstream=way.upstream.name, reason=failure.message
                )
                continue
            if not answer.is_for_another:
                return answer
            await answer.close()
            logger.info(
                "upstream_passed_over",
                upstream=way.upstream.name,
                reason=f"status {answer.status_code}",
            )
        return await self._asked(last, body, large=large)

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()

    async def _asked(self, way: Destination, body: dict[str, Any], *, large: bool) -> "Handed":
        named = {**body, "model": way.model}
        encoded = await asyncio.to_thread(orjson.dumps, named) if large else orjson.dumps(named)
        upstream, limits = way.upstream, limits_of(self._settings.limits, way.upstream)
        # A stream begins soon; an answer that comes in one piece begins when the model is done.
        patience = (
            limits.first_token if body.get("stream") is True else limits.turn
        ).total_seconds()
        connect = aiohttp.ClientTimeout(
            total=None, connect=None, sock_connect=upstream.connect_timeout.total_seconds()
        )
        request = self._connected().post(
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
            async with asyncio.timeout(patience):
                answer = await request
        except TimeoutError:
            raise _failed(504, "The upstream did not answer in time.") from None
        except _FAULTS as error:
            logger.info("upstream_unreachable", upstream=upstream.name, error=type(error).__name__)
            raise _failed(
                502, "The upstream could not be reached, or hung up before it answered."
            ) from None
        handed = Handed(
            answer, upstream, limits, self._settings.web.send_timeout.total_seconds(), self._drained
        )
        try:
            return await handed.begun()
        except BaseException:
            await handed.close()
            raise

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),  # one client's must not become another's
                auto_decompress=False,
                read_bufsize=_READ,
                trust_env=True,
            )
        return self._session


class Handed(Response):
    """An upstream's answer on its way to the client, as an ASGI application."""

    def __init__(
        self,
        answer: aiohttp.ClientResponse,
        upstream: UpstreamSettings,
        limits: LimitSettings,
        send_timeout: float,
        drained: asyncio.Event,
    ) -> None:
        """`send_timeout`: seconds a client may take nothing."""
        super().__init__(status_code=answer.status)
        self._answer = answer
        self._upstream = upstream
        self._limits = limits
        self._send_timeout = send_timeout
        self._drained = drained
        self._refusal: bytes | None = None
        """The body of an answer that is no success: short, and read whole before anything is passed on."""
        kind = answer.headers.get("content-type", "application/json")
        self._kind = (
            kind
            if kind.partition(";")[0].strip().lower() in _TYPES
            else "text/plain; charset=utf-8"
        )

    async def begun(self) -> "Handed":
        """Looks at the head, and at all of a refusal. Raises RunFailed for what is no answer to pass on."""
        answer = self._answer
        if answer.headers.get("content-encoding", "identity").strip().lower() not in (
            "",
            "identity",
        ):
            raise _failed(502, "The upstream sent a compressed answer although none was asked for.")
        if 300 <= answer.status < 400 or answer.status < 200:
            raise _failed(
                502, f"The upstream answered with an unexpected redirect (HTTP {answer.status})."
            )
        if answer.status >= 400:
            self._refusal = await self._read_refusal()
        return self

    @property
    def is_for_another(self) -> bool:
        """Whether another upstream may do better: it is not the request that was refused."""
        status = self._answer.status
        if status == 404 and b"model" in (self._refusal or b"").lower():
            return False
        return status in _ELSEWHERE or status >= 500

    async def close(self) -> None:
        """Gives the connection back; closes it when the answer was not read to its end."""
        self._answer.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on until the end, or until either side, or this process, has had enough."""
        try:
            async with anyio.create_task_group() as group:
                for end in (lambda: gone(receive), self._drained.wait):
                    group.start_soon(_ended_by, end, group.cancel_scope.cancel)
                await self._pass_on(send, scope["path"])
                group.cancel_scope.cancel()
        finally:
            await self.close()

    async def _pass_on(self, send: Send, path: str) -> None:
        """An answer that breaks off is broken off here too: it is not completed, and the server closes the connection."""
        await send(
            {"type": "http.response.start", "status": self._answer.status, "headers": self._head()}
        )
        if self._refusal is not None:
            await send({"type": "http.response.body", "body": self._refusal})
            return
        last = _EVENT_END
        try:
            async for piece in self._pieces():
                last = (last + piece)[-2:]
                async with asyncio.timeout(self._send_timeout):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except RunFailed as failure:
            logger.info("upstream_broke_off", upstream=self._upstream.name, reason=failure.message)
            if last == _EVENT_END and self._kind.startswith("text/event-stream"):
                told = b"data: %b\n\n" % orjson.dumps(failure.body())
                await send({"type": "http.response.body", "body": told})
            return
        except TimeoutError:
            logger.info("reader_let_go", path=path)
            return
        await send({"type": "http.response.body", "body": b""})

    async def _pieces(self) -> AsyncIterator[bytes]:
        """What each read brings. Raises RunFailed when the upstream falls silent or breaks off."""
        loop = asyncio.get_running_loop()
        turn_end = loop.time() + self._limits.turn.total_seconds()
        while True:
            silence = loop.time() + self._limits.token_gap.total_seconds()
            try:
                async with asyncio.timeout_at(min(silence, turn_end)):
                    piece = await self._answer.content.readany()
            except TimeoutError:
                raise _failed(504, "The upstream was silent for too long.") from None
            except _FAULTS:
                raise _failed(502, "The connection to the upstream broke off.") from None
            if not piece:
                return
            yield piece

    async def _read_refusal(self) -> bytes:
        """Its beginning, without this server's credential, which some upstreams repeat."""
        if self._answer.status in _UNSPOKEN:
            self._kind = "application/json"
            error = RunFailed(
                self._answer.status,
                "The upstream refused this server's credential.",
                kind="authentication_error",
                code=None,
            )
            return orjson.dumps(error.body())
        said = bytearray()
        with contextlib.suppress(
            TimeoutError, *_FAULTS
        ):  # its status is the answer, whatever else there was to say
            async with asyncio.timeout(self._limits.token_gap.total_seconds()):
                async for piece in self._answer.content.iter_any():
                    said += piece
                    if len(said) > _ERROR:
                        break
        secret = self._upstream.api_key.get_secret_value()
        beginning = bytes(said[:_ERROR])
        return beginning.replace(secret.encode(), b"...") if len(secret) >= _SECRET else beginning

    def _head(self) -> list[tuple[bytes, bytes]]:
        kept = {name: self._answer.headers[name] for name in _KEPT if name in self._answer.headers}
        kept["content-type"] = self._kind
        if self._refusal is not None:
            kept["content-length"] = str(len(self._refusal))
        if self._kind.startswith("text/event-stream"):
            kept |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return [(name.encode(), value.encode("latin-1", "replace")) for name, value in kept.items()]


async def _ended_by(end: Callable[[], Any], cancel: Callable[[], None]) -> None:
    await end()
    cancel()


def _failed(status: int, message: str) -> RunFailed:
    return RunFailed(status, message, kind=ApiError.type, code=None)
