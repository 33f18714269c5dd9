"""Downloads a file from a server that a client named: bounded in bytes, time and redirects."""

import asyncio
import mimetypes
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from models.egress import NOT_REACHED, EgressPolicy, EgressRefused, FetchTarget
from models.http_bodies import BodyTooLarge, is_uncompressed, read_bounded
from worker.outbound.guarded_session import NO_TIMEOUT, guarded_session

_READ_SIZE = 64 * 1024
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,99}/[a-z0-9][a-z0-9!#$&^_.+-]{0,99}")
_UNKNOWN_TYPE = "application/octet-stream"


class DownloadError(Exception):
    """The file could not be downloaded. The message completes "Failed to download …: " and is
    for the client."""


@dataclass(frozen=True, slots=True)
class Download:
    """A downloaded file."""

    content: bytes
    media_type: str
    """As the server sent it; without one, by the name; else `application/octet-stream`."""
    name: str
    """The last part of the URL's path; may be empty."""


class Downloader:
    """Downloads files. `resolver` replaces the system's, in tests."""

    def __init__(
        self, egress: EgressPolicy, *, redirects: int, resolver: AbstractResolver | None = None
    ) -> None:
        """`redirects`: the maximum number that is followed."""
        self._egress = egress
        self._redirects = redirects
        self._resolver = resolver

    async def fetch(self, url: str, *, max_bytes: int, time_limit: float) -> Download:
        """The file at `url`, of at most `max_bytes`, in at most `time_limit` seconds with all
        redirects.

        Raises EgressRefused or DownloadError.
        """
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
        try:
            async with guarded_session(
                self._egress,
                target,
                refusals,
                headers={"accept": "*/*"},
                resolver=self._resolver,
            ) as session:
                return await _get(session, target, max_bytes)
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError):
            raise DownloadError("its server has no valid certificate") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if refusals or isinstance(error, aiohttp.ClientConnectorError):
                raise DownloadError(f"its server {NOT_REACHED}") from None
            raise DownloadError("its server broke off, or answered something else") from None


async def _get(
    session: aiohttp.ClientSession, target: FetchTarget, max_bytes: int
) -> Download | str:
    async with session.get(
        URL(target.url, encoded=True), allow_redirects=False, timeout=NO_TIMEOUT
    ) as response:
        if response.status in _REDIRECTS and "location" in response.headers:
            return urljoin(target.url, response.headers["location"])
        if response.status != 200:
            raise DownloadError(f"its server answered with HTTP {response.status}")
        if not is_uncompressed(response.headers):
            raise DownloadError("its server sent it compressed although it was asked not to")
        content = await _read(response, max_bytes)
        name = unquote(PurePosixPath(urlsplit(target.url).path).name)
        return Download(content, _media_type(response.headers.get("content-type", ""), name), name)


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    too_large = DownloadError(
        f"it is larger than the {max_bytes} bytes that are left for files in this response"
    )
    if response.content_length is not None and response.content_length > max_bytes:
        raise too_large
    try:
        return await read_bounded(response.content.iter_chunked(_READ_SIZE), max_bytes)
    except BodyTooLarge:
        raise too_large from None


def _media_type(header: str, name: str) -> str:
    media_type = header.partition(";")[0].strip().lower()
    if not _MEDIA_TYPE.fullmatch(media_type) or media_type == _UNKNOWN_TYPE:
        return mimetypes.guess_type(name)[0] or _UNKNOWN_TYPE
    return media_type
