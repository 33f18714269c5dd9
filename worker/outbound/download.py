"""One file from a stranger's server, through the guard (models/egress.py), bounded in bytes, time and redirects.

The address that is checked is the one that is connected to: the connector asks the guard for every socket it is about to open, with the
numeric address in hand. Between that answer and the connect there is no further look-up that could come out differently.
"""

import asyncio
import mimetypes
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from models.egress import EgressPolicy, EgressRefused, FetchTarget

_READ_SIZE = 64 * 1024
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,99}/[a-z0-9][a-z0-9!#$&^_.+-]{0,99}")
_UNKNOWN_TYPE = "application/octet-stream"

AddressInfo = tuple[Any, ...]
"""As `getaddrinfo` gives it: family, type, protocol, canonical name, address."""


class DownloadError(Exception):
    """The file could not be fetched. The message completes "Failed to download …: " and is for the client."""


@dataclass(frozen=True, slots=True)
class Download:
    """A file that was fetched."""

    content: bytes
    media_type: str
    """As the server says; where it does not know, as the name says; else `application/octet-stream`."""
    name: str
    """The last part of the address's path, maybe empty."""


class Downloader:
    """Fetches files. `resolver` stands in for the system's, in tests."""

    def __init__(
        self, egress: EgressPolicy, *, redirects: int, resolver: AbstractResolver | None = None
    ) -> None:
        self._egress = egress
        self._redirects = redirects
        self._resolver = resolver

    async def fetch(self, url: str, *, max_bytes: int, time_limit: float) -> Download:
        """The file at `url`: at most `most` bytes, in at most `within` seconds for everything. Raises Refused or Unfetchable."""
        try:
            async with asyncio.timeout(time_limit):
                return await self._follow(url, max_bytes)
        except TimeoutError:
            raise DownloadError("it took too long") from None

    async def _follow(self, url: str, max_bytes: int) -> Download:
        for _ in range(self._redirects + 1):
            target = self._egress.check_url(url)
            result = await self._request(target, max_bytes)
            if isinstance(result, Download):
                return result
            if target.scheme == "https" and urlsplit(result).scheme != "https":
                raise EgressRefused("it redirects from https to something else")
            url = result
        raise DownloadError("it redirects too often")

    async def _request(self, target: FetchTarget, max_bytes: int) -> Download | str:
        """One request: the file, or the address that it redirects to."""
        refusals: list[EgressRefused] = []
        connector = guarded_connector(self._egress, target, refusals, self._resolver)
        headers = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "backburner"}
        try:
            # a session for one request: nothing learned from one server (cookies, open connections) is of use to the next
            async with aiohttp.ClientSession(
                connector=connector,
                headers=headers,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            ) as session:
                return await _get(session, target, max_bytes)
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError):
            raise DownloadError("its server has no valid certificate") from None
        except (aiohttp.ClientError, OSError, ValueError):
            if refusals:
                raise refusals[0] from None
            raise DownloadError("its server could not be reached, or broke off") from None


class ThreadedResolver(AbstractResolver):
    """The system's resolver, on threads of its own: names whose servers never answer must not hold up those of the upstreams."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The numeric addresses of a name. Raises OSError."""
        look_up = partial(
            socket.getaddrinfo,
            host,
            port,
            family=family,
            type=socket.SOCK_STREAM,
            flags=socket.AI_ADDRCONFIG,
        )
        addresses = await asyncio.get_running_loop().run_in_executor(_RESOLVER_THREADS, look_up)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, _, protocol, _, address in addresses
        ]

    async def close(self) -> None:
        """The threads are the process's."""


_RESOLVER_THREADS = ThreadPoolExecutor(8, thread_name_prefix="lookup")


def guarded_connector(
    egress: EgressPolicy,
    target: FetchTarget,
    refusals: list[EgressRefused],
    resolver: AbstractResolver | None = None,
) -> aiohttp.TCPConnector:
    """A connector for this target alone, which opens no socket that the guard refuses; why it did not is added to `refusals`."""
    return aiohttp.TCPConnector(
        resolver=ThreadedResolver() if resolver is None else resolver,
        use_dns_cache=False,
        force_close=True,
        socket_factory=_guarded_socket_factory(egress, target, refusals),
    )


def _guarded_socket_factory(
    egress: EgressPolicy, target: FetchTarget, refusals: list[EgressRefused]
) -> Callable[[AddressInfo], socket.socket]:
    trusted = egress.allows_host(target.host)

    def open_socket(info: AddressInfo) -> socket.socket:
        family, kind, protocol, _, address = info
        if not trusted:
            try:
                egress.check_address(address[0], address[1])
            except EgressRefused as refusal:
                refusals.append(refusal)
                raise ConnectionRefusedError("refused by the guard") from refusal
        return socket.socket(family, kind, protocol)

    return open_socket


async def _get(
    session: aiohttp.ClientSession, target: FetchTarget, max_bytes: int
) -> Download | str:
    no_limits = aiohttp.ClientTimeout(
        total=None, sock_connect=None
    )  # one clock stands over everything, in `fetch`
    async with session.get(
        URL(target.url, encoded=True), allow_redirects=False, timeout=no_limits
    ) as answer:
        if answer.status in _REDIRECTS and "location" in answer.headers:
            return urljoin(target.url, answer.headers["location"])
        if answer.status != 200:
            raise DownloadError(f"its server answered with HTTP {answer.status}")
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            raise DownloadError("its server sent it compressed although it was asked not to")
        content = await _read(answer, max_bytes)
        name = unquote(PurePosixPath(urlsplit(target.url).path).name)
        return Download(content, _media_type(answer.headers.get("content-type", ""), name), name)


async def _read(answer: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    too_large = DownloadError(
        f"it is larger than the {max_bytes} bytes that are left for files in this response"
    )
    if answer.content_length is not None and answer.content_length > max_bytes:
        raise too_large
    content = bytearray()
    async for piece in answer.content.iter_chunked(_READ_SIZE):
        content += piece
        if len(content) > max_bytes:
            raise too_large
    return bytes(content)


def _media_type(header: str, name: str) -> str:
    media_type = header.partition(";")[0].strip().lower()
    if not _MEDIA_TYPE.fullmatch(media_type) or media_type == _UNKNOWN_TYPE:
        return mimetypes.guess_type(name)[0] or _UNKNOWN_TYPE
    return media_type
