"""HTTP for the tools' clients, through the guard (models/egress.py): an httpx2 transport that connects only to judged addresses.

As in worker/outbound/download.py, the address that is judged is the one that is connected to: names are looked up here, the guard sees each
numeric address, and the connection is opened to just that. Every request passes here, redirects too, so each is judged anew.

Faults of the network never leave as exceptions: an SDK on top would give up all that it does on the same connection. They become an
answer with status 424, and `Exchange` says what happened.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from ssl import SSLContext, SSLError

import httpcore2
import httpx2
from aiohttp.abc import AbstractResolver

from models.egress import EgressPolicy, EgressRefused
from worker.outbound.download import ThreadedResolver

UNREACHABLE_STATUS = 424
"""Failed Dependency: the status in which a fault of the network is told."""

_UNCOMPRESSED = ("", "identity")


class _BodyReadError(httpx2.StreamError):
    """The answer's body cannot be read to its end. A StreamError: readers of one answer expect those."""


@dataclass(slots=True)
class RequestOutcome:
    """What became of the requests that one question caused, for whoever asked it."""

    status: int | None = None
    """Of the last answer."""
    fault: str | None = None
    """What went wrong outside HTTP: completes a sentence about the server, names nothing that its client does not know."""
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request got no good answer."""

    @property
    def is_bad(self) -> bool:
        """Whether the last answer was none that can be used."""
        return self.fault is not None or (self.status is not None and self.status >= 300)

    def record_status(self, status: int) -> None:
        """An answer has begun."""
        self.status = status
        if status >= 300:
            self.failed.set()

    def record_fault(self, fault: str) -> None:
        """No answer, or not all of it. The first fault is the cause of those after it."""
        self.fault = self.fault or fault
        self.failed.set()


REQUEST_OUTCOME: ContextVar[RequestOutcome | None] = ContextVar("exchange", default=None)
"""The exchange that requests made in this context belong to. The MCP SDK sends a message in the context of whoever wrote it."""


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Requests of one client to one server. `most` is what one answer's body may hold, in bytes; None for bodies without an end."""

    def __init__(
        self,
        egress: EgressPolicy,
        *,
        connect: float,
        max_bytes: int,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._egress = egress
        self._max_bytes = max_bytes
        backend = _GuardedBackend(
            egress, ThreadedResolver() if resolver is None else resolver, connect
        )
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=_tls(),
            network_backend=backend,
            max_connections=None,
            max_keepalive_connections=4,
            keepalive_expiry=30,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, or one with UNREACHED."""
        outcome = REQUEST_OUTCOME.get() or RequestOutcome()
        request.headers["accept-encoding"] = "identity"  # what is limited in size must not unfold
        try:
            self._egress.check_url(str(request.url))
            response = await self._pool.handle_async_request(_core_request(request))
        except EgressRefused as refusal:
            return _unreachable_response(outcome, f"may not be reached: {refusal}")
        except (
            httpcore2.NetworkError,
            httpcore2.TimeoutException,
            httpcore2.ProtocolError,
            httpcore2.UnsupportedProtocol,
            OSError,
        ) as fault:
            return _unreachable_response(outcome, _describe_fault(fault))
        outcome.record_status(response.status)
        assert isinstance(response.stream, AsyncIterable)
        body = _Body(response.stream, outcome, None if request.method == "GET" else self._max_bytes)
        answer = httpx2.Response(
            response.status, headers=response.headers, stream=body, extensions=response.extensions
        )
        if answer.headers.get("content-encoding", "").lower() not in _UNCOMPRESSED:
            await body.aclose()
            return _unreachable_response(
                outcome, "sent its answer compressed although it was asked not to"
            )
        return answer

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    """An answer's body, up to a limit. The stream of a server's own messages (GET) has none: its events are limited one by one."""

    def __init__(
        self, stream: AsyncIterable[bytes], outcome: RequestOutcome, max_bytes: int | None
    ) -> None:
        self._stream = stream
        self._outcome = outcome
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        try:
            async for piece in self._stream:
                read += len(piece)
                if self._max_bytes is not None and read > self._max_bytes:
                    self._outcome.record_fault(f"answered with more than {self._max_bytes} bytes")
                    raise _BodyReadError("too large")
                yield piece
        except (
            httpcore2.NetworkError,
            httpcore2.TimeoutException,
            httpcore2.ProtocolError,
        ) as fault:
            self._outcome.record_fault("broke off in the middle of its answer")
            raise _BodyReadError("broke off") from fault

    async def aclose(self) -> None:
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()


class _GuardedBackend(httpcore2.AnyIOBackend):
    """Opens no socket that the guard refuses."""

    def __init__(self, egress: EgressPolicy, resolver: AbstractResolver, time_limit: float) -> None:
        super().__init__()
        self._egress = egress
        self._resolver = resolver
        self._time_limit = time_limit

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface has it; ours is fixed
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to the first of the name's addresses that takes one. Raises Refused when one of them may not be reached."""
        del timeout
        fault: Exception = httpcore2.ConnectError("no address")
        try:
            async with asyncio.timeout(self._time_limit):
                for address in await self._addresses(host.strip("[]"), port):
                    try:
                        return await super().connect_tcp(
                            address, port, None, local_address, socket_options
                        )
                    except httpcore2.ConnectError as refused:
                        fault = refused
        except TimeoutError:
            raise httpcore2.ConnectTimeout from None
        raise fault

    async def _addresses(self, host: str, port: int) -> list[str]:
        addresses = [entry["host"] for entry in await self._resolver.resolve(host, port)]
        if not self._egress.allows_host(host):
            for address in addresses:
                self._egress.check_address(address, port)
        return list(dict.fromkeys(addresses))


@cache
def _tls() -> SSLContext:
    """One for the process: loading the certificates takes tens of milliseconds."""
    return httpx2.create_ssl_context(trust_env=False)


def _core_request(request: httpx2.Request) -> httpcore2.Request:
    url = httpcore2.URL(
        scheme=request.url.raw_scheme,
        host=request.url.raw_host,
        port=request.url.port,
        target=request.url.raw_path,
    )
    assert isinstance(request.stream, AsyncIterable)
    return httpcore2.Request(
        request.method,
        url,
        headers=request.headers.raw,
        content=request.stream,
        extensions=request.extensions,
    )


def _unreachable_response(outcome: RequestOutcome, fault: str) -> httpx2.Response:
    outcome.record_fault(fault)
    outcome.record_status(UNREACHABLE_STATUS)
    return httpx2.Response(UNREACHABLE_STATUS)


def _describe_fault(fault: Exception) -> str:
    """What happened, without the names and numbers of our own network that libraries put into their messages."""
    if isinstance(fault, httpcore2.ConnectTimeout):
        return "did not take the connection in time"
    if isinstance(fault, httpcore2.ConnectError | OSError):
        cause = fault.__cause__ or fault.__context__
        return "has no valid certificate" if isinstance(cause, SSLError) else "could not be reached"
    return "broke off before it answered"
