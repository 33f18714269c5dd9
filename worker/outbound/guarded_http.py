"""HTTP for the SDKs of tools: an httpx2 transport that connects only to addresses that the egress
policy allows (models/egress.py).

As in worker/outbound/guarded_session.py, the address that is checked is the address that is
connected to. Every request passes here, redirects too, so each one is checked.

Network errors do not become exceptions: an SDK would end everything that it does on the same
connection. They become a response with status 424, and `RequestOutcome` tells the caller what
happened.

How much an answer may hold is judged in its bytes before they are parsed. Objects need more memory
than their JSON, up to thirty times: 200 000 empty content blocks are six megabytes. So values are
counted too. Commas and brackets in strings do not count. Characters that parsers of JSON refuse are
replaced: bytes that are not UTF-8, a byte order mark, and halves of surrogate pairs, of which
JavaScript writes some.
"""

import asyncio
import codecs
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from ssl import SSLContext, SSLError

import httpcore2
import httpx2
from aiohttp.abc import AbstractResolver

from models.egress import NOT_REACHED, EgressPolicy, EgressRefused
from models.fence import pass_fence
from models.http_bodies import is_uncompressed
from models.wire.json_input import ValueCounter
from worker.outbound.guarded_session import ThreadedResolver, check_connection

_END_OF_EVENT = re.compile(rb"(?:\r\n|\r|\n){2}")


class AnswerTooLarge(Exception):
    """The answer is beyond a limit. The message completes "answered with more than "."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Limits of one answer, or of each event of a stream without end."""

    size: int
    """bytes"""
    values: int
    """JSON values"""


async def limited(
    chunks: AsyncIterable[bytes], limits: AnswerLimits, *, is_endless: bool
) -> AsyncIterator[bytes]:
    """The chunks of an answer, or of a stream of events that has no end: then the limits hold for
    each event. Raises AnswerTooLarge."""
    size, counter = 0, ValueCounter()
    async for chunk in chunks:
        size += len(chunk)
        events = _END_OF_EVENT.split(chunk) if is_endless else [chunk]
        if len(events) > 1:
            size, counter = len(events[-1]), ValueCounter()
        if size > limits.size:
            raise AnswerTooLarge(f"{limits.size} bytes")
        # The events before the last one are in this chunk, which has some kilobytes.
        counter.feed(events[-1])
        if counter.count > limits.values:
            raise AnswerTooLarge(f"{limits.values} JSON values")
        yield chunk


_HALF = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_OPEN = r"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z"
_ESCAPE = re.compile(rf"{_PAIR}|(?P<open>(?=\\){_OPEN})|(?P<half>{_HALF})|\\.", re.DOTALL)
"""An escape in a string. `open`: it may go on in the next piece."""

_LONGEST = 11
"""Characters of an escape that can go on."""


class _Repair:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._open = ""

    def feed(self, piece: bytes, *, final: bool = False) -> bytes:
        """What can be sent on of this piece and of the ones before it."""
        text = self._open + self._decoder.decode(piece, final)
        self._open = ""
        if "\\ud" in text or "\\uD" in text or "\\" in text[-_LONGEST:]:
            text = _ESCAPE.sub(self._replace, text)
        if final:
            text += re.sub(_HALF, r"\\ufffd", self._open)
        return text.encode()

    def _replace(self, found: re.Match[str]) -> str:
        if found["open"]:
            self._open = found["open"]
            return ""
        return "\\ufffd" if found["half"] else found[0]


async def with_valid_characters(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The pieces of an answer, which is JSON or events of JSON, with U+FFFD for each such
    character. Each piece is sent on at once, but for an escape that it breaks off."""
    repair = _Repair()
    async for piece in pieces:
        if repaired := repair.feed(piece):
            yield repaired
    if rest := repair.feed(b"", final=True):
        yield rest


UNREACHABLE_STATUS = 424
"""Failed Dependency: the status of a response that stands for a network error."""

_NETWORK_ERRORS = (
    httpcore2.NetworkError,
    httpcore2.TimeoutException,
    httpcore2.ProtocolError,
)


_IDLE = 4.0
"""Seconds after which an idle connection is not used any more. Many servers close theirs after 5
(Node.js, uvicorn), and a request that is sent in that moment is lost."""
UNANSWERED = "broke off before it answered"
"""The fault of a request whose connection ended before a byte of the response. A server that closes
an idle connection just as a request is sent on it looks the same."""


class _BodyReadError(httpx2.StreamError):
    """The response's body cannot be read to its end. Readers of a response expect a StreamError."""


@dataclass(slots=True)
class RequestOutcome:
    """The results of the HTTP requests that one call of an SDK causes."""

    status: int | None = None
    """Status of the last response."""
    posted_status: int | None = None
    """Status of the last response to a POST, unless an earlier one was accepted: whether the
    message itself was handled. A GET only reads its answer."""
    fault: str | None = None
    """What went wrong outside HTTP. It completes a sentence about the server and contains
    nothing that its client does not know."""
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request failed."""
    max_bytes: int | None = None
    """Most bytes of the answer, if the transport's own limit is higher."""

    @property
    def is_bad(self) -> bool:
        """Whether the last request failed."""
        return self.fault is not None or (self.status is not None and self.status >= 300)

    def record_status(self, status: int, method: str | None = None) -> None:
        """A response has begun. `method`: of the request, if it reached the server."""
        self.status = status
        if method == "POST" and (self.posted_status is None or self.posted_status >= 300):
            self.posted_status = status
        if status >= 300:
            self.failed.set()

    def record_fault(self, fault: str) -> None:
        """There was no response, or only a part of it. The first fault is the cause of later
        ones."""
        self.fault = self.fault or fault
        self.failed.set()


REQUEST_OUTCOME: ContextVar[RequestOutcome | None] = ContextVar("request_outcome", default=None)
"""The outcome that requests in this context are recorded in. The MCP SDK sends a message in the
context of the task that wrote it."""


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Requests of one client to one server. `limits`: of each response's body, or of each event in
    that of a GET request, whose stream has no end.

    `connect`: seconds for a connection. `resolver` replaces the system's, in tests.
    """

    def __init__(
        self,
        egress: EgressPolicy,
        *,
        connect: float,
        limits: AnswerLimits,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._egress = egress
        self._limits = limits
        backend = _GuardedBackend(
            egress, ThreadedResolver() if resolver is None else resolver, connect
        )
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=_tls(),
            network_backend=backend,
            max_connections=None,
            max_keepalive_connections=4,
            keepalive_expiry=_IDLE,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The response, or one with UNREACHABLE_STATUS."""
        outcome = REQUEST_OUTCOME.get() or RequestOutcome()
        request.headers["accept-encoding"] = "identity"
        try:
            self._egress.check_url(str(request.url))
            response = await self._pool.handle_async_request(_core_request(request))
        except EgressRefused as refusal:
            return _unreachable_response(outcome, f"may not be reached: {refusal}")
        except (*_NETWORK_ERRORS, httpcore2.UnsupportedProtocol, OSError) as fault:
            return _unreachable_response(outcome, _describe_fault(fault))
        outcome.record_status(response.status, request.method)
        assert isinstance(response.stream, AsyncIterable)
        size = min(self._limits.size, outcome.max_bytes or self._limits.size)
        limits = AnswerLimits(size, self._limits.values)
        body = _Body(response.stream, outcome, limits, is_endless=request.method == "GET")
        guarded_response = httpx2.Response(
            response.status, headers=response.headers, stream=body, extensions=response.extensions
        )
        if not is_uncompressed(guarded_response.headers):
            await body.aclose()
            return _unreachable_response(
                outcome, "sent its answer compressed although it was asked not to"
            )
        return guarded_response

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    """A response's body, up to its limits. `is_endless`: a server's stream of messages, whose
    events have these limits."""

    def __init__(
        self,
        stream: AsyncIterable[bytes],
        outcome: RequestOutcome,
        limits: AnswerLimits,
        *,
        is_endless: bool,
    ) -> None:
        self._stream = stream
        self._outcome = outcome
        self._limits = limits
        self._is_endless = is_endless

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            chunks = limited(self._stream, self._limits, is_endless=self._is_endless)
            async for chunk in with_valid_characters(chunks):
                yield chunk
        except AnswerTooLarge as fault:
            self._outcome.record_fault(f"answered with more than {fault}")
            raise _BodyReadError("too large") from None
        except _NETWORK_ERRORS as fault:
            self._outcome.record_fault("broke off in the middle of its answer")
            raise _BodyReadError("broke off") from fault

    async def aclose(self) -> None:
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()


class _GuardedBackend(httpcore2.AnyIOBackend):
    """Opens no socket that the egress policy refuses."""

    def __init__(self, egress: EgressPolicy, resolver: AbstractResolver, time_limit: float) -> None:
        super().__init__()
        self._egress = egress
        self._resolver = resolver
        self._time_limit = time_limit

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface has it
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to the first of the host's addresses that accepts one, within the
        transport's own time limit. Raises ConnectError also if the policy refuses any of the
        addresses."""
        del timeout
        try:
            async with asyncio.timeout(self._time_limit):
                addresses = await self._addresses(host.strip("[]"), port)
                return await self._connect_first(addresses, port, local_address, socket_options)
        except TimeoutError:
            raise httpcore2.ConnectTimeout from None

    async def _connect_first(
        self,
        addresses: list[str],
        port: int,
        local_address: str | None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None,
    ) -> httpcore2.AsyncNetworkStream:
        fault = httpcore2.ConnectError("no address")
        for address in addresses:
            try:
                return await super().connect_tcp(address, port, None, local_address, socket_options)
            except httpcore2.ConnectError as error:
                fault = error
        raise fault

    async def _addresses(self, host: str, port: int) -> list[str]:
        """The host's numeric addresses, without duplicates. Raises ConnectError."""
        addresses = [entry["host"] for entry in await self._resolver.resolve(host, port)]
        try:
            for address in addresses:
                check_connection(self._egress, host, address, port)
        except EgressRefused:
            raise httpcore2.ConnectError(NOT_REACHED) from None
        return list(dict.fromkeys(addresses))


@cache
def _tls() -> SSLContext:
    """The TLS context of the process: loading the certificates takes tens of milliseconds."""
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
        extensions={**request.extensions, "trace": _before_head},
    )


async def _before_head(event: str, _: object) -> None:
    """Called with what happens on the request's connection."""
    if event == "http11.send_request_headers.started":
        await pass_fence()


def _unreachable_response(outcome: RequestOutcome, fault: str) -> httpx2.Response:
    outcome.record_fault(fault)
    outcome.record_status(UNREACHABLE_STATUS)
    return httpx2.Response(UNREACHABLE_STATUS)


def _describe_fault(fault: Exception) -> str:
    """A description without the names and addresses of our own network that libraries write into
    their messages."""
    if isinstance(fault, httpcore2.ConnectTimeout):
        return "did not take the connection in time"
    if isinstance(fault, httpcore2.ConnectError | OSError):
        cause = fault.__cause__ or fault.__context__
        return "has no valid certificate" if isinstance(cause, SSLError) else NOT_REACHED
    return UNANSWERED
