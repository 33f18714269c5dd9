"""Sends an upstream's requests, and repeats what failed before an answer (docs/architecture.md).

All requests of an upstream have the same address and headers but for the body, so both are made
once. A try that fails is repeated by the rules that openai's SDK has for its users: connection
errors and the statuses that say that another try may succeed, after the pause that the upstream
asks for or one that doubles.
"""

import asyncio
import random
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Any, Final

import aiohttp
from prometheus_client import Counter
from yarl import URL

from models.config.upstream import UpstreamSettings
from models.config.upstream_access import environment_proxy, request_headers
from models.errors import UpstreamFailed
from models.fence import fenced
from models.tasks import cancel_all
from worker.upstream.body_reader import Arrivals
from worker.upstream.failures import failure_of_status, unreachable
from worker.upstream.request_body import RequestFiles, encode, is_large, pieces

_END_WAIT = 0.1
"""Seconds, at least, that an upstream has to end a body of which all has been read."""
_KEPT: Final = 5.0
"""Seconds for which an unused connection stays open: many servers close it then."""
_TRACEPARENT = "traceparent"
_UNSENT = (
    aiohttp.ClientConnectionError,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
    ssl.SSLError,
)
"""What a try raises to which no answer began."""
_RETRIED_STATUSES = frozenset((408, 409, 429))
"""Besides those of 500 and above."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
"""Seconds. After a longer pause that the upstream asks for, the call fails at once, and the
response waits without a slot."""
_MAX_ERROR_BODY = 64 * 1024
"""Bytes of an error's body that are read: it may be endless."""


class _NoFiles:
    """For a body without files."""

    size = 0

    async def hold(self) -> None:
        """Does nothing."""

    def release(self) -> None:
        """Does nothing."""


NO_FILES: RequestFiles = _NoFiles()


@dataclass(frozen=True, slots=True)
class _FailedTry:
    """A try without a successful answer."""

    failure: UpstreamFailed
    pause: float | None
    """seconds after which another try may succeed; None: none would. 0: the upstream does not say
    when"""


class RequestSender:
    """Sends bodies to one upstream."""

    def __init__(
        self,
        settings: UpstreamSettings,
        connections: int,
        retries: Counter,
        arrivals: Arrivals,
    ) -> None:
        """`connections`: the maximum number of them. `retries` counts what is sent again.
        `arrivals`: where streams of responses wait until they are read."""
        self.arrivals = arrivals
        self._base_url = settings.base_url.rstrip("/")
        self._query = dict(settings.plain_query)
        headers = {"accept": "application/json", "user-agent": "backburner"}
        self._headers = headers | {
            name.lower(): value for name, value in request_headers(settings).items()
        }
        self._max_retries = settings.max_retries
        self._connections = connections
        self._retries = retries
        # Our own limits end a silent upstream (IdleTimeout). aiohttp's timer for each read would
        # only cost time.
        self._timeout = aiohttp.ClientTimeout(sock_connect=settings.connect_timeout.total_seconds())
        self._proxy = environment_proxy(settings.base_url)
        self._urls: dict[str, URL] = {}
        self._session: aiohttp.ClientSession | None = None
        self._read_responses: list[aiohttp.ClientResponse] = []
        self._older_read_responses: list[aiohttp.ClientResponse] = []
        self._closing: asyncio.Task[None] | None = None

    async def send(
        self,
        path: str,
        body: dict[str, Any],
        traceparent: str | None = None,
        files: RequestFiles = NO_FILES,
    ) -> aiohttp.ClientResponse:
        """A successful response whose body was not read; the caller closes it.

        `path`: behind the base URL. `traceparent`: a header that is added. `files`: those in the
        body; they are released as soon as it was sent. Raises UpstreamFailed, aiohttp's errors for
        a response that is no HTTP, and what holding the files raises.
        """
        try:
            for number in count():
                result = await self._try(path, body, traceparent, files)
                if isinstance(result, aiohttp.ClientResponse):
                    return result
                if result.pause is None or number >= self._max_retries:
                    raise result.failure
                self._retries.inc()
                await asyncio.sleep(result.pause or _growing_pause(number))
        finally:
            files.release()
        raise AssertionError

    async def _try(
        self, path: str, body: dict[str, Any], traceparent: str | None, files: RequestFiles
    ) -> aiohttp.ClientResponse | _FailedTry:
        try:
            response = await self._post(path, body, traceparent, files)
        except _UNSENT as error:
            return _FailedTry(unreachable(error), 0.0)
        if 200 <= response.status < 300:
            return response
        return await _refusal(response, body["model"])

    async def _post(
        self, path: str, body: dict[str, Any], traceparent: str | None, files: RequestFiles
    ) -> aiohttp.ClientResponse:
        await files.hold()
        content = await encode(body, files)
        headers = {"content-length": str(len(content))}
        if traceparent is not None:
            headers[_TRACEPARENT] = traceparent
        data = pieces(content, files.release) if is_large(content) else content
        del content
        return await self.session.post(
            self.url(path),
            headers=headers,
            data=data,
            allow_redirects=False,
            timeout=self._timeout,
            proxy=self._proxy,
        )

    @property
    def session(self) -> aiohttp.ClientSession:
        """The connections. Its requests pass the fence."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=self._connections, keepalive_timeout=_KEPT),
                cookie_jar=aiohttp.DummyCookieJar(),  # projects share the session
                auto_decompress=False,
                trace_configs=[fenced()],
            )
        return self._session

    def url(self, path: str) -> URL:
        """The address of `path` behind the base URL. `../` leaves out the base URL's last part."""
        if path not in self._urls:
            base = self._base_url
            if path.startswith("../"):
                base, path_behind = base.rpartition("/")[0], path.removeprefix("..")
            else:
                path_behind = path
            self._urls[path] = URL(base + path_behind).update_query(self._query)
        return self._urls[path]

    def close_soon(self, response: aiohttp.ClientResponse) -> None:
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
            await close_response(self._older_read_responses.pop())
        self._older_read_responses, self._read_responses = self._read_responses, []

    async def close(self) -> None:
        """Closes all connections."""
        if self._closing is not None:
            await cancel_all([self._closing])
        for _ in range(2):
            await self._close_older_read_responses()
        if self._session is not None:
            await self._session.close()


async def close_response(response: aiohttp.ClientResponse) -> None:
    """Gives the connection back if the body was read to its end, else closes it."""
    response.release()
    await response.wait_for_close()


async def _refusal(response: aiohttp.ClientResponse, model: str) -> _FailedTry:
    """What a response says that is no success. A compressed body could unpack without end, so it is
    read as it is."""
    try:
        content = bytearray()
        while len(content) < _MAX_ERROR_BODY and (chunk := await response.content.readany()):
            content += chunk
    finally:
        await close_response(response)
    status, headers = response.status, response.headers
    text = content[:_MAX_ERROR_BODY].decode(errors="replace")
    failure = failure_of_status(status, headers, text, path=response.url.path, model=model)
    decision = headers.get("x-should-retry", "")
    may_retry = decision == "true" or (
        decision != "false" and (status in _RETRIED_STATUSES or status >= 500)
    )
    pause = _requested_pause(headers)
    return _FailedTry(failure, pause if may_retry and pause <= _LONGEST_PAUSE else None)


def _requested_pause(headers: Mapping[str, str]) -> float:
    """Seconds until the upstream wants to be called again; 0: it does not say."""
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(milliseconds) / 1000)
        value = headers.get("retry-after", "")
        if value.replace(".", "", 1).isdigit():
            return float(value)
        at = parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, at - time.time())


def _growing_pause(number: int) -> float:
    """Seconds before the next try, spread so that many calls do not come at the same moment."""
    longest = min(_FIRST_PAUSE * 2.0 ** min(number, 10), _LONGEST_PAUSE)
    return longest * (1 - 0.25 * random.random())  # noqa: S311 - spreads load, guards nothing
