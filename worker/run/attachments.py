"""Files by URL: downloaded before the first turn and sent to the model as data.

Chat Completions has no `file_url` (docs/wire.md). Only this attempt's copy of the history refers to
the data; what is stored and shown keeps the client's URL. The data is in memory only while it is
fetched or sent, and beyond that as long as there is room (worker/outbound/file_memory.py).
"""

import asyncio
from typing import Any

from aiohttp.abc import AbstractResolver

from models.egress import EgressPolicy, EgressRefused
from models.errors import UpstreamFailed
from models.wire.checks.faults import shorten
from models.wire.events import Item
from models.wire.items import FilePlace, file_places
from worker.outbound.download import Download, Downloader, DownloadError
from worker.outbound.file_memory import FetchedFile, FileMemory


class Attachments:
    """The files of one run. `resolver` replaces the system's, in tests."""

    def __init__(
        self,
        egress: EgressPolicy,
        memory: FileMemory,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._settings = egress.settings
        self._memory = memory
        self._downloads = Downloader(egress, redirects=self._settings.redirects, resolver=resolver)
        self._files: list[FetchedFile] = []
        self._params: dict[str, str] = {}
        """URL -> the place that an error names."""
        self._reserved = 0

    async def fetch(
        self,
        history: list[Item],
        own_count: int,
        *,
        history_parameter: str = "previous_response_id",
        skipped: int = 0,
    ) -> list[Item]:
        """The history with a FetchedFile in place of every `file_url`; `history` is not changed.

        The last `own_count` items are this response's input; `skipped` input items before them are
        not in the history. An error names an input item by the client's own index, and any earlier
        item by `history_parameter`. Raises UpstreamFailed, which a waiting client receives as a
        400.
        """
        places = list(file_places(history))
        if not places:
            return history
        first_own = len(history) - own_count
        bytes_left = self._settings.file_bytes
        deadline = self._deadline()
        inlined = list(history)
        for place in places:
            is_own = place.item >= first_own
            self._params[place.url] = (
                place.path(place.item - first_own + skipped) if is_own else history_parameter
            )
            download = await self._reserve_and_fetch(place.url, bytes_left, deadline)
            bytes_left -= len(download.content)
            file = FetchedFile(place.url, download.content, download.media_type)
            self._files.append(file)
            self._memory.keep(file)
            inlined[place.item] = _inline_file(inlined[place.item], place, file, download.name)
        return inlined

    async def hold(self) -> None:
        """Has all files in memory, and room to send them, until `release`; fetches again what was
        dropped. Raises UpstreamFailed."""
        if not self._files or self._reserved:
            return
        size = sum(file.size + file.encoded_size for file in self._files)
        await self._memory.reserve(size, self._files)
        self._reserved = size
        try:
            deadline = self._deadline()
            for file in self._files:
                if file.content is None:
                    download = await self._fetch(file.url, self._settings.file_bytes, deadline)
                    file.content, file.size = download.content, len(download.content)
        except BaseException:
            self.release()
            raise

    async def inline(self, history: list[Item]) -> list[Item]:
        """The history with the data itself: to store it. Raises UpstreamFailed."""
        if not self._files:
            return history
        await self.hold()
        try:
            return [_with_data(item) for item in history]
        finally:
            self.release()

    def release(self) -> None:
        """The files were sent: their memory may be used for others."""
        size, self._reserved = self._reserved, 0
        if size:
            self._memory.free(size)
            for file in self._files:
                self._memory.keep(file)

    def close(self) -> None:
        """No request needs the files any more."""
        self.release()
        for file in self._files:
            self._memory.drop(file)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._settings.timeout.total_seconds()

    async def _reserve_and_fetch(self, url: str, max_bytes: int, deadline: float) -> Download:
        try:
            async with asyncio.timeout_at(deadline):
                await self._memory.reserve(max_bytes)
        except TimeoutError:
            raise self._failure(url, "this server has too many files to fetch") from None
        try:
            return await self._fetch(url, max_bytes, deadline)
        finally:
            self._memory.free(max_bytes)

    async def _fetch(self, url: str, max_bytes: int, deadline: float) -> Download:
        time_limit = deadline - asyncio.get_running_loop().time()
        try:
            return await self._downloads.fetch(url, max_bytes=max_bytes, time_limit=time_limit)
        except (EgressRefused, DownloadError) as fault:
            raise self._failure(url, str(fault)) from fault

    def _failure(self, url: str, reason: str) -> UpstreamFailed:
        return UpstreamFailed(
            f"Failed to download the file from '{shorten(url)}': {reason}.",
            code="invalid_prompt",
            reason="file_unavailable",
            status=400,
            param=self._params[url],
            envelope_code="invalid_value",
        )


def _with_data(item: Item) -> Item:
    for field in ("content", "output"):
        parts = item.get(field)
        if type(parts) is list and any(_has_file(part) for part in parts):
            plain = [
                {**part, "file_data": part["file_data"].data_url()} if _has_file(part) else part
                for part in parts
            ]
            item = {**item, field: plain}
    return item


def _has_file(part: dict[str, Any]) -> bool:
    return isinstance(part.get("file_data"), FetchedFile)


def _inline_file(item: Item, place: FilePlace, file: FetchedFile, name: str) -> Item:
    parts: list[dict[str, Any]] = list(item[place.field])
    part = parts[place.part]
    named = {"filename": part.get("filename") or name or "file", "file_data": file}
    parts[place.part] = {
        **{key: value for key, value in part.items() if key != "file_url"},
        **named,
    }
    return {**item, place.field: parts}
