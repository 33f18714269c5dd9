"""Calls whose answer comes in one piece, at any path of an upstream (docs/batches.md).

openai's SDK sends them: there are few at a time in comparison with streams, so they need no
prepared request (worker/upstream/request_sender.py).
"""

import asyncio
from typing import Any

import httpx2
from openai import AsyncAPIResponse, AsyncOpenAI
from openai._constants import RAW_RESPONSE_HEADER
from openai._vendor.httpx_aiohttp.transport import AiohttpTransport
from prometheus_client import Counter

from models.config.groups import LimitSettings
from models.errors import InvalidRequest, LimitReached
from models.http_bodies import BodyTooLarge, is_uncompressed, read_bounded
from models.wire.json_input import decode_body
from worker.upstream.error_rules import redacted
from worker.upstream.failures import (
    CONNECTION_ERRORS,
    compressed,
    failure_of_connection,
    sanitise_error,
    turn_limit_reached,
    unintelligible,
)
from worker.upstream.request_sender import fenced_session

_LARGE = 64 * 1024
"""Bytes of an answer that is parsed in a thread."""


class PlainCaller:
    """Calls one upstream."""

    def __init__(
        self,
        client: AsyncOpenAI,
        http: httpx2.AsyncClient,
        limits: LimitSettings,
        secrets: tuple[str, ...],
        retries: Counter,
    ) -> None:
        """`client` uses `http`. `secrets`: they are removed from messages. `retries` counts what is
        sent again."""
        transport = _Fenced(http, retries)
        self._client = client.with_options(
            http_client=httpx2.AsyncClient(
                transport=transport,
                follow_redirects=False,
                event_hooks={"response": [sanitise_error]},
            )
        )
        self._limits = limits
        self._secrets = secrets

    async def call(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON in the answer to `body` at `path` behind the base URL. It can be stored
        (models/wire/json_input.py). Raises UpstreamFailed or LimitReached. Cancelling closes the
        connection."""
        try:
            async with asyncio.timeout(self._limits.turn.total_seconds()) as turn:
                data = await self._post(path, body)
        except CONNECTION_ERRORS as error:
            if turn.expired():
                raise turn_limit_reached(self._limits) from error
            failure = failure_of_connection(error, body["model"])
            raise redacted(failure, self._secrets) from error
        try:
            if len(data) < _LARGE:
                return decode_body(data)
            return await asyncio.to_thread(decode_body, data)
        except InvalidRequest as error:
            raise unintelligible() from error

    async def _post(self, path: str, body: dict[str, Any]) -> bytes:
        answer: AsyncAPIResponse[object] = await self._client.post(
            path,
            cast_to=AsyncAPIResponse[object],
            body=body,
            options={"headers": {RAW_RESPONSE_HEADER: "stream"}},
        )
        response = answer.http_response
        try:
            if not is_uncompressed(response.headers):
                raise compressed()
            return await read_bounded(response.aiter_raw(), self._limits.output)
        except BodyTooLarge:
            raise LimitReached(
                f"The upstream's answer exceeded the limit of {self._limits.output} bytes.",
                reason="output_limit",
                status=502,
            ) from None
        finally:
            await response.aclose()


class _Fenced(httpx2.AsyncBaseTransport):
    """Sends over sessions whose requests pass the fence."""

    def __init__(self, http: httpx2.AsyncClient, retries: Counter) -> None:
        self._http = http
        self._retries = retries

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The response. Raises what the transport of the address raises."""
        if request.headers.get("x-stainless-retry-count", "0") != "0":
            self._retries.inc()
        transport = self._http._transport_for_url(request.url)  # noqa: SLF001 - the only way to the proxy of an address
        assert isinstance(transport, AiohttpTransport)
        fenced_session(transport)
        return await transport.handle_async_request(request)
