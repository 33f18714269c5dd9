"""Sends the requests of one upstream: each first try prepared, further tries by openai's SDK.

The SDK builds address, headers and options of each request anew, and its HTTP client handles
redirects, cookies and authentication of which we use none. That takes three times as long as
sending. So the SDK makes one request, which is not sent, and all requests are that one with another
body. They are sent by the aiohttp session of the SDK's HTTP client, which has the connections. A
first try that fails is handed to the SDK as its own: it decides whether to try again, waits,
counts, and raises its errors (docs/architecture.md).
"""

import asyncio
import json
import ssl
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx2
from openai import AsyncAPIResponse, AsyncOpenAI
from openai._vendor.httpx_aiohttp.transport import (
    AiohttpResponseStream,
    AiohttpTransport,
    map_aiohttp_exceptions,
)
from prometheus_client import Counter

from models.fence import fenced
from models.side_tasks import cancel_all
from worker.upstream.failures import sanitise_error
from worker.upstream.open_response import OpenResponse
from worker.upstream.request_body import RequestFiles, encode, encode_body, is_large, pieces

_END_WAIT = 0.1
"""Seconds, at least, that an upstream has to end a body of which all has been read."""

_TRACEPARENT = "traceparent"
_RETRYABLE = (httpx2.RequestError, ssl.SSLError)
"""What the SDK's transport raises and the SDK turns into an error of its own."""


class _NoFiles:
    """For a body without files."""

    size = 0

    async def hold(self) -> None:
        """Does nothing."""

    def release(self) -> None:
        """Does nothing."""


NO_FILES: RequestFiles = _NoFiles()


class RequestSender:
    """Sends bodies to one upstream."""

    def __init__(
        self,
        client: AsyncOpenAI,
        http: httpx2.AsyncClient,
        retries: Counter,
        *,
        native: bool,
    ) -> None:
        """`client` uses `http`. `retries` counts what is sent again. `native`: the upstream speaks
        the Responses API."""
        self._client = client
        self._retries = retries
        self._http = http
        self._native = native
        self._prepared: _PreparedRequest | None = None
        self._preparing = asyncio.Lock()
        self._read_responses: list[OpenResponse] = []
        self._older_read_responses: list[OpenResponse] = []
        self._closing: asyncio.Task[None] | None = None

    async def send(
        self,
        body: dict[str, Any],
        traceparent: str | None = None,
        files: RequestFiles = NO_FILES,
    ) -> OpenResponse:
        """A successful response whose body was not read; the caller closes it.

        `traceparent`: a header that is added. `files`: those in the body; they are released as soon
        as it was sent. Raises the SDK's errors, what its transport raises for a response that is no
        HTTP, and what holding the files raises.
        """
        prepared = self._prepared or await self._prepare(body["model"])
        await files.hold()
        try:
            return await self._send(prepared, body, traceparent, files)
        finally:
            files.release()

    async def _send(
        self,
        prepared: "_PreparedRequest",
        body: dict[str, Any],
        traceparent: str | None,
        files: RequestFiles,
    ) -> OpenResponse:
        try:
            response = await prepared.send(body, traceparent, files)
        except _RETRYABLE as error:
            body = await _plain(body, files)
            return await self._continue(prepared.transport, error, body, traceparent)
        if 200 <= response.status < 300:
            return OpenResponse.of_aiohttp(response)
        first_try = prepared.as_sdk_response(response)
        try:
            body = await _plain(body, files)
            return await self._continue(prepared.transport, first_try, body, traceparent)
        finally:
            await first_try.aclose()

    def close_soon(self, response: OpenResponse) -> None:
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
            await self._close_older_read_responses()

    async def _close_older_read_responses(self) -> None:
        while self._older_read_responses:
            await self._older_read_responses.pop().close()
        self._older_read_responses, self._read_responses = self._read_responses, []

    async def close(self) -> None:
        """Closes all connections."""
        if self._closing is not None:
            await cancel_all([self._closing])
        for _ in range(2):
            await self._close_older_read_responses()
        await self._http.aclose()

    async def _prepare(self, model: str) -> "_PreparedRequest":
        """Has the SDK make a request, and keeps it."""
        async with self._preparing:
            if self._prepared is None:
                recorder = _Recorder()
                await self._request(self._client_over(recorder), {"model": model})
                transport = self._http._transport_for_url(recorder.request.url)  # noqa: SLF001 - the only way to the proxy of an address
                assert isinstance(transport, AiohttpTransport)
                session = fenced_session(transport)
                self._prepared = _PreparedRequest.of(recorder.request, transport, session)
            return self._prepared

    async def _continue(
        self,
        transport: httpx2.AsyncBaseTransport,
        first_try: httpx2.Response | Exception,
        body: dict[str, Any],
        traceparent: str | None,
    ) -> OpenResponse:
        """What the SDK makes of a first try that failed."""
        client = self._client_over(_AfterFirstTry(first_try, transport, self._retries))
        return OpenResponse.of_sdk(await self._request(client, body, traceparent))

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

    transport: AiohttpTransport
    session: aiohttp.ClientSession
    """The transport's."""
    url: str
    headers: dict[str, str]
    """Lower case, in the order in which the SDK sends them; `content-length` is replaced."""
    timeout: aiohttp.ClientTimeout
    proxy: str | None
    proxy_auth: aiohttp.BasicAuth | None
    proxy_headers: dict[str, str] | None

    @classmethod
    def of(
        cls, request: httpx2.Request, transport: AiohttpTransport, session: aiohttp.ClientSession
    ) -> "_PreparedRequest":
        """The request that is like this one. `transport`: that of its address."""
        timeouts, proxy = request.extensions["timeout"], transport.proxy
        auth = None if proxy is None else proxy.auth
        return cls(
            transport=transport,
            session=session,
            url=str(request.url),
            headers=dict(request.headers),
            timeout=aiohttp.ClientTimeout(
                sock_connect=timeouts["connect"],
                sock_read=timeouts["read"],
                connect=timeouts["pool"],
            ),
            proxy=None if proxy is None else str(proxy.url),
            proxy_auth=auth and aiohttp.BasicAuth(*auth),
            proxy_headers=None if proxy is None else dict(proxy.headers),
        )

    async def send(
        self, body: dict[str, Any], traceparent: str | None, files: RequestFiles
    ) -> aiohttp.ClientResponse:
        """The response to a request with this body. `files`: those in it; they are released when it
        was sent, if that takes long. Raises what the transport raises."""
        content = await encode(body, files)
        headers = {**self.headers, "content-length": str(len(content))}
        data = pieces(content, files.release) if is_large(content) else content
        del content
        if traceparent is not None:
            headers[_TRACEPARENT] = traceparent
        # As the transport sends it. httpx2's objects on the way there and back take as long as
        # aiohttp does.
        with map_aiohttp_exceptions():
            return await self.session.request(
                "POST",
                self.url,
                headers=headers,
                data=data,
                allow_redirects=False,
                auto_decompress=False,
                compress=False,
                timeout=self.timeout,
                proxy=self.proxy,
                proxy_auth=self.proxy_auth,
                proxy_headers=self.proxy_headers,
            )

    def as_sdk_response(self, response: aiohttp.ClientResponse) -> httpx2.Response:
        """The response as the transport gives it to the SDK."""
        return httpx2.Response(
            response.status,
            headers=response.raw_headers,
            stream=AiohttpResponseStream(response),
            extensions={"reason_phrase": (response.reason or "").encode()},
        )


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
        retries: Counter,
    ) -> None:
        self._first_try: httpx2.Response | Exception | None = first_try
        self._transport = transport
        self._retries = retries

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The response. Raises the first try's error, then what the transport raises."""
        first_try, self._first_try = self._first_try, None
        if first_try is None:
            self._retries.inc()
            return await self._transport.handle_async_request(request)
        if isinstance(first_try, Exception):
            raise first_try
        return first_try


def fenced_session(transport: AiohttpTransport) -> aiohttp.ClientSession:
    """The transport's session, whose requests pass the fence: of first tries and of retries."""
    session = transport.get_client()
    if not session.trace_configs:
        session.trace_configs.append(fenced())
    transport.client = session
    return session


async def _plain(body: dict[str, Any], files: RequestFiles) -> dict[str, Any]:
    """The body for the SDK, which knows no files."""
    if files is NO_FILES:
        return body
    await files.hold()
    plain: dict[str, Any] = json.loads(encode_body(body))
    return plain
