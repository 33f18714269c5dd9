"""The images in a conversation, which an edit changes."""

import asyncio
import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from features.images.answers import NoImage, decoded, kind_of
from features.images.upstream import InputImage
from models.config.groups import ImageSettings
from models.egress import EgressPolicy, EgressRefused
from models.errors import Unavailable, UpstreamFailed
from models.files.response_images import ResponseImages
from models.ids import parse_file_id
from models.wire.events import Item
from models.wire.image_marks import ImageMark, marks_of
from worker.outbound.download import Downloader, DownloadError, FetchedFile
from worker.run.stored_files import StoredFiles

Source = str | FetchedFile | ImageMark
"""base64, an address, a file that is stored here, or an image that was made here."""


def editable(history: Sequence[Item]) -> list[Source]:
    """What an edit without further words means, oldest image first: the newest image that was made,
    and those that the conversation got after it; if none was made, all."""
    found: list[Source] = []
    for item in history:
        if item["type"] == "image_generation_call":
            if isinstance(image := item.get("result"), str) and image:
                found = [image]
            found = list(marks_of([item])) or found
            continue
        for content in (item.get("content"), item.get("output")):
            found += _parts(content)
    return found


def _parts(content: Any) -> Iterator[Source]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and part.get("type") == "input_image":
            url = part.get("image_url")
            if isinstance(url, (str, FetchedFile)):
                yield url


class InputImages:
    """Reads the images for one response."""

    def __init__(
        self,
        settings: ImageSettings,
        egress: EgressPolicy,
        files: StoredFiles,
        images: ResponseImages,
    ) -> None:
        """`files`: those of the project."""
        self._max_bytes = settings.bytes
        self._egress = egress
        self._files = files
        self._images = images
        self._downloads = Downloader(egress, redirects=egress.settings.redirects)

    async def read(self, source: Source) -> InputImage:
        """The image. Raises NoImage."""
        if isinstance(source, FetchedFile):
            content = source.content
            if content is None:
                content = await self._read_stored(source)
        elif isinstance(source, ImageMark):
            content = await self._read_made(source)
        elif source.startswith(("http://", "https://")):
            content = await self.download(source)
        else:
            content = await asyncio.to_thread(decoded, source, self._max_bytes)
        return InputImage(content, kind_of(content, self._max_bytes))

    async def mask(self, mask: Mapping[str, Any]) -> InputImage | None:
        """The mask of a tool. Raises NoImage."""
        if isinstance(url := mask.get("image_url"), str):
            return await self.read(url)
        wanted = parse_file_id(mask.get("file_id", ""))
        return None if wanted is None else await self._stored_mask(wanted)

    async def download(self, url: str) -> bytes:
        """The bytes at an address. Raises NoImage."""
        seconds = self._egress.settings.timeout.total_seconds()
        try:
            file = await self._downloads.fetch(url, max_bytes=self._max_bytes, time_limit=seconds)
        except (EgressRefused, DownloadError) as error:
            raise NoImage(f"The image could not be downloaded: {error}.") from None
        return file.content

    async def _read_made(self, mark: ImageMark) -> bytes:
        try:
            content = await self._images.image(self._files.project, mark)
        except Unavailable as error:
            raise NoImage(str(error)) from None
        if content is None:
            raise NoImage("The image that is to be edited does not exist any more.")
        return content

    async def _stored_mask(self, file: UUID) -> InputImage:
        found = (await self._files.find([file])).get(file)
        if found is None:
            raise NoImage("The file of the mask does not exist any more.")
        if found.size > self._max_bytes:
            raise NoImage(f"The mask is larger than {self._max_bytes} bytes.")
        content = (await self._read(found.read(self._max_bytes, self._deadline()))).content
        return InputImage(content, kind_of(content, self._max_bytes))

    async def _read_stored(self, file: FetchedFile) -> bytes:
        limit = self._egress.settings.file_bytes
        content: bytes = (await self._read(file.source.read(limit, self._deadline()))).content
        return content

    async def _read(self, reading: Any) -> Any:
        try:
            return await reading
        except UpstreamFailed as error:
            raise NoImage(str(error)) from None

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._egress.settings.timeout.total_seconds()


def project_files(pool: Any, storage: Any, project: UUID) -> StoredFiles:
    """The files that the project has now."""
    return StoredFiles(pool, storage, project, int(time.time()))


def encoded(content: bytes) -> str:
    """An image as items have it."""
    return base64.b64encode(content).decode()
