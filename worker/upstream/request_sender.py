"""Sends the requests of one upstream: each first try prepared, further tries by openai's SDK.

The SDK builds address, headers and options of each request anew, and its HTTP client handles
redirects, cookies and authentication of which we use none. That takes three times as long as
sending. So the SDK makes one request, which is not sent, and all requests are that one with another
body. They are sent by the transport of the SDK's HTTP client, which has the connections and the
proxies. A first try that fails is handed to the SDK as its own: it decides whether to try again,
waits, counts, and raises its errors (docs/adr/0026).
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import httpx2
import orjson
from openai import AsyncAPIResponse, AsyncOpenAI
from prometheus_client import Counter

from models.side_tasks import cancel_all
from worker.upstream.failures import sanitise_error

if TYPE_CHECKING:
    from openai._vendor.httpx_aiohttp import AiohttpTransport

_END_WAIT = 0.1
"""Seconds, at least, that an upstream has to end a body of which all has been read."""

MaySend = Callable[[], Awaitable[None]]
"""Waits until this process may send a request. Awaited after everything that takes time, because
the process may have been suspended meanwhile: after a new connection is open, and before each
further try."""

_TRACEPARENT = "traceparent"
_RETRYABLE = (httpx2.RequestError, ssl.SSLError)
"""What the SDK's transport raises and the SDK turns into an error of its own."""


class RequestSender:
    """Sends bodies to one upstream."""

    def __init__(
        self,
        client: AsyncOpenAI,
        http: httpx2.AsyncClient,
        retries: Counter,
        may_send: MaySend,
        *,
        native: bool,
    ) -> None:
        """`client` uses `http`. `retries` counts what is sent again. `native`: the upstream speaks
        the Responses API."""
        self._client = client
        self._retries = retries
        self._may_send = may_send
        self._http = http
        self._native = native
        self._prepared: _PreparedRequest | None = None
        self._preparing = asyncio.Lock()
        self._read_responses: list[httpx2.Response] = []
        self._older_read_responses: list[httpx2.Response] = []
        self._closing: asyncio.Task[None] | None = None

    async def send(self, body: dict[str, Any], traceparent: str | None = None) -> httpx2.Response:
        """A successful response whose body was not read; the caller closes it.

        `traceparent`: a header that is added. Raises the SDK's errors, and what the transport
        raises for a response that is no HTTP.
        """
        prepared = self._prepared or await self._prepare(body["model"])
        try:
            response = await prepared.send(body, traceparent)
        except _RETRYABLE as error:
            return await self._continue(prepared.transport, error, body, traceparent)
        if response.is_success:
            return response
        return await self._continue(prepared.transport, response, body, traceparent)

    def close_soon(self, response: httpx2.Response) -> None:
        """Closes a response whose body was read up to the upstream's `[DONE]`.

        The end of the body often comes a moment later. Closed before, its connection could not be
        used again, and the next call would need a new one, with all messages of TLS.
        """
        self._read_responses.append(response)
        if self._closing is None or self._closing.done():
            self._closing = asyncio.create_task(self._close_read_responses())

    async def _close_read_responses(self) -> None:
        while self._read_responses or self._older_read_responses:
            await asyncio.sleep(_END_WAIT)
            older = self._older_read_responses
            self._older_read_responses, self._read_responses = self._read_responses, []
            for response in older:
                await response.aclose()

    async def close(self) -> None:
        """Closes all connections."""
        if self._closing is not None:
            await cancel_all([self._closing])
        await self._http.aclose()

    async def _prepare(self, model: str) -> "_PreparedRequest":
        """Has the SDK make a request, and keeps it."""
        async with self._preparing:
            if self._prepared is None:
                recorder = _Recorder()
                await self._request(self._client_over(recorder), {"model": model})
                transport = self._http._transport_for_url(recorder.request.url)  # noqa: SLF001 - the only way to the proxy of an address
                _hold_on_new_connections(transport, self._may_send)
                self._prepared = _PreparedRequest.of(recorder.request, transport)
            return self._prepared

    async def _continue(
        self,
        transport: httpx2.AsyncBaseTransport,
        first_try: httpx2.Response | Exception,
        body: dict[str, Any],
        traceparent: str | None,
    ) -> httpx2.Response:
        """What the SDK makes of a first try that failed."""
        client = self._client_over(_AfterFirstTry(first_try, transport, self._on_retry))
        try:
            return await self._request(client, body, traceparent)
        finally:
            if isinstance(first_try, httpx2.Response):
                await first_try.aclose()

    async def _on_retry(self) -> None:
        await self._may_send()
        self._retries.inc()

    def _client_over(self, transport: httpx2.AsyncBaseTransport) -> AsyncOpenAI:
        """The SDK's client over another transport. It holds nothing that must be closed."""
        http = httpx2.AsyncClient(
            transport=transport,
            follow_redirects=False,
            event_hooks={"response": [sanitise_error]},
        )
        return self._client.with_options(http_client=http)

    async def _request(
        self, client: AsyncOpenAI, body: dict[str, Any], traceparent: str | None = None
    ) -> httpx2.Response:
        headers = {} if traceparent is None else {_TRACEPARENT: traceparent}
        # `extra_body` is sent unchanged: the SDK would transform a long history once more.
        call: Any = (
            client.responses.with_streaming_response.create(
                model=body["model"],
                input="",
                stream=True,
                extra_body=body,
                extra_headers=headers,
            )
            if self._native
            else client.chat.completions.with_streaming_response.create(
                model=body["model"],
                messages=[],
                stream=True,
                extra_body=body,
                extra_headers=headers,
            )
        )
        async with AsyncExitStack() as stack:
            response: AsyncAPIResponse[Any] = await stack.enter_async_context(call)
            stack.pop_all()  # the caller closes the response
        return response.http_response


@dataclass(frozen=True, slots=True)
class _PreparedRequest:
    """The request of an upstream, without its body."""

    url: httpx2.URL
    headers: httpx2.Headers
    """In the order in which the SDK sends them; `content-length` is replaced."""
    extensions: dict[str, Any]
    """The timeouts."""
    transport: httpx2.AsyncBaseTransport

    @classmethod
    def of(
        cls, request: httpx2.Request, transport: httpx2.AsyncBaseTransport
    ) -> "_PreparedRequest":
        """The request that is like this one. The transport is that of its address."""
        return cls(request.url, request.headers, request.extensions, transport)

    async def send(self, body: dict[str, Any], traceparent: str | None) -> httpx2.Response:
        """The response to a request with this body. Raises what the transport raises."""
        content = _encode(body)
        headers = httpx2.Headers(self.headers)
        headers["content-length"] = str(len(content))
        if traceparent is not None:
            headers[_TRACEPARENT] = traceparent
        # As a stream, `Request` does not work out headers that are known already.
        request = httpx2.Request(
            "POST",
            self.url,
            headers=headers,
            stream=httpx2.ByteStream(content),
            extensions=self.extensions,
        )
        request.read()
        return await self.transport.handle_async_request(request)


class _Recorder(httpx2.AsyncBaseTransport):
    """Keeps the request and sends nothing."""

    request: httpx2.Request

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """An empty response."""
        self.request = request
        return httpx2.Response(200)


class _AfterFirstTry(httpx2.AsyncBaseTransport):
    """Gives the result of a try that was made before to the first request; sends the others."""

    def __init__(
        self,
        first_try: httpx2.Response | Exception,
        transport: httpx2.AsyncBaseTransport,
        on_retry: Callable[[], Awaitable[None]],
    ) -> None:
        self._first_try: httpx2.Response | Exception | None = first_try
        self._transport = transport
        self._on_retry = on_retry

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The response. Raises the first try's error, then what the transport raises."""
        first_try, self._first_try = self._first_try, None
        if first_try is None:
            await self._on_retry()
            return await self._transport.handle_async_request(request)
        if isinstance(first_try, Exception):
            raise first_try
        return first_try


def _hold_on_new_connections(transport: httpx2.AsyncBaseTransport, may_send: MaySend) -> None:
    """Awaits `may_send` when a connection is open, before a request is sent over it."""

    async def on_connected(*_: object) -> None:
        await may_send()

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(on_connected)
    trace.freeze()
    of_aiohttp = cast("AiohttpTransport", transport)
    session = of_aiohttp.get_client()
    session.trace_configs.append(trace)
    of_aiohttp.client = session


def _encode(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:
        # Integers of more than 64 bits, and deep schemas: rare, and valid JSON.
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
