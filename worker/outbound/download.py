"""The files in requests to models: how one is downloaded from a server that a client named, bounded
in bytes, time and redirects; and the memory that all share (docs/adr/0039).

A model may be silent for an hour. Meanwhile nobody needs the files of its request: they are kept as
long as there is room, and fetched or read again if another turn needs them.
"""

import asyncio
import base64
import mimetypes
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol
from urllib.parse import unquote, urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from models.egress import NOT_REACHED, EgressPolicy, EgressRefused, FetchTarget
from models.errors import UpstreamFailed
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


_PIECE = 3 * 256 * 1024
"""Bytes that are encoded at a time: a multiple of three."""


class FileSource(Protocol):
    """Where the content of a file comes from."""

    async def read(self, max_bytes: int, deadline: float) -> Download:
        """The content, of at most `max_bytes`. `deadline`: of the event loop's clock. Raises
        UpstreamFailed."""
        ...

    def failure(self, reason: str) -> UpstreamFailed:
        """The failure if the file cannot be sent."""
        ...


class FetchedFile:
    """A file in a request to a model, in the place of its data URL."""

    def __init__(self, source: FileSource, content: bytes, media_type: str) -> None:
        self.source = source
        self.size = len(content)
        self.media_type = media_type
        self.places = 1
        """How often it is in a request."""
        self.content: bytes | None = content
        """None: it was dropped, and must be read again."""

    @property
    def encoded_size(self) -> int:
        """Bytes of the data URL."""
        return len(self._prefix) + (self.size + 2) // 3 * 4

    def __len__(self) -> int:
        """Characters of the data URL, as of a text in its place."""
        return self.encoded_size

    @property
    def _prefix(self) -> str:
        return f"data:{self.media_type};base64,"

    @property
    def size_to_send(self) -> int:
        """Bytes that it needs while it is sent."""
        return self.size + self.places * self.encoded_size

    def data_url(self) -> str:
        """The file as a data URL. Its content must be here."""
        return b"".join(self.data_url_pieces()).decode()

    def data_url_pieces(self) -> Iterator[bytes]:
        """The data URL in pieces. Its content must be here."""
        assert self.content is not None
        content = memoryview(self.content)
        yield self._prefix.encode()
        for start in range(0, len(content), _PIECE):
            yield base64.b64encode(content[start : start + _PIECE])


class FileMemory:
    """The bytes of all files of one process: those that are fetched or sent now, and as many of the
    others as fit.

    It is no `SharedBudget` (models/load/budget.py): there smaller reservations overtake a larger
    one, which is refused at last. Here none is refused, so each waits for all before it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reserved = 0
        self._kept: OrderedDict[FetchedFile, None] = OrderedDict()
        """Files that nobody needs now; the ones used last at the end."""
        self._order = asyncio.Lock()
        self._freed = asyncio.Event()

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._reserved + sum(file.size for file in self._kept)

    async def reserve(self, size: int, files: Iterable[FetchedFile] = ()) -> None:
        """Waits for room for so many bytes, in the order of the calls. More than the limit have
        room when nothing else is reserved. The contents of `files`, if they are still here, are in
        these bytes from then on."""
        async with self._order:
            while self._reserved and self._reserved + size > self._limit:
                self._freed.clear()
                await self._freed.wait()
            self._reserved += size
        for file in files:
            self._kept.pop(file, None)
        self._drop_kept()

    def free(self, size: int) -> None:
        """Gives reserved bytes back."""
        self._reserved -= size
        self._freed.set()

    def keep(self, file: FetchedFile) -> None:
        """Keeps the file's content as long as there is room for it."""
        if file.content is not None:
            self._kept[file] = None
            self._drop_kept()

    def drop(self, file: FetchedFile) -> None:
        """Nobody needs the file any more."""
        self._kept.pop(file, None)
        file.content = None

    def _drop_kept(self) -> None:
        while self._kept and self.used > self._limit:
            file, _ = self._kept.popitem(last=False)
            file.content = None
