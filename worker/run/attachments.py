"""The files of a run: those by URL are downloaded, stored ones are read, and the model gets both as
data. Other URLs only the upstream fetches.

Chat Completions has no `file_url` (docs/wire.md), and no upstream knows the ids of files that are
stored here (docs/files.md). Only this attempt's copy of the history refers to the data; what is
stored and shown keeps the client's URL or id. The data is in memory only while it is fetched or
sent, and beyond that as long as there is room (worker/outbound/download.py).

URLs that only the upstream fetches are images and screenshots in the history, and what is in tools
that it runs itself, or in a request that is forwarded. They were checked when they were stored
(web/http/outbound_urls.py). Before each run they are checked once more, because the rules of the
project may have changed since, and with what their names mean now.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from aiohttp.abc import AbstractResolver

from models.egress import EgressPolicy, EgressRefused, FetchTarget
from models.errors import UpstreamFailed
from models.hosts import look_up
from models.ids import parse_file_id
from models.wire.checks.faults import shorten
from models.wire.events import Item
from models.wire.items import FilePlace, file_places
from models.wire.urls import item_urls
from worker.outbound.download import (
    Download,
    Downloader,
    DownloadError,
    FetchedFile,
    FileMemory,
    FileSource,
)
from worker.run.stored_files import StoredFile, StoredFiles

_MAX_STORED = 1_000
"""Stored files that one response may have in its history."""

NameOf = Callable[[FilePlace], str]
"""The parameter that an error names for a place."""


class Attachments:
    """The files of one run. `resolver` replaces the system's, in tests."""

    def __init__(
        self,
        egress: EgressPolicy,
        memory: FileMemory,
        resolver: AbstractResolver | None = None,
        *,
        stored: StoredFiles | None = None,
    ) -> None:
        """`stored`: the files of the response's project; None: it has none."""
        self._settings = egress.settings
        self._memory = memory
        self._stored = stored
        self._downloads = Downloader(egress, redirects=self._settings.redirects, resolver=resolver)
        self._files: list[FetchedFile] = []
        self._by_id: dict[str, tuple[str, FetchedFile]] = {}
        """The id of a stored file -> its name and its content."""
        self._has_downloads = False
        self._reserved = 0

    async def fetch(
        self,
        history: list[Item],
        own_count: int,
        *,
        history_parameter: str = "previous_response_id",
        skipped: int = 0,
        only_stored: bool = False,
    ) -> list[Item]:
        """The history with a FetchedFile in place of every `file_url`; `history` is not changed.
        Stored files are read too: `with_stored` puts them into their places. `only_stored`: URLs
        stay.

        The last `own_count` items are this response's input; `skipped` input items before them are
        not in the history. An error names an input item by the client's own index, and any earlier
        item by `history_parameter`. Raises UpstreamFailed, which a waiting client receives as a
        400.
        """
        places = list(file_places(history))
        if not places:
            return history
        first_own = len(history) - own_count

        def param_of(place: FilePlace) -> str:
            is_own = place.item >= first_own
            return place.path(place.item - first_own + skipped) if is_own else history_parameter

        deadline = self._deadline()
        bytes_left = self._settings.file_bytes
        ids = [place for place in places if place.name == "file_id"]
        bytes_left -= await self._read_stored(ids, param_of, deadline)
        if only_stored:
            return history
        inlined = list(history)
        for place in places:
            if place.name != "file_url":
                continue
            self._has_downloads = True
            source = _Downloaded(place.value, param_of(place), self._downloads)
            file, download = await self._reserve_and_read(source, bytes_left, deadline)
            bytes_left -= file.size
            part = place.part_of(inlined[place.item])
            name = part.get("filename") or download.name or "file"
            inlined[place.item] = _replaced(
                inlined[place.item], place, {"filename": name, "file_data": file}
            )
        return inlined

    def with_stored(self, items: list[Item]) -> list[Item]:
        """The items with a FetchedFile in the place of each stored file; `items` is not changed.
        Ids of an upstream's account stay."""
        if not self._by_id:
            return items
        placed = list(items)
        for place in file_places(items):
            if place.name != "file_id" or place.value not in self._by_id:
                continue
            name, file = self._by_id[place.value]
            part = place.part_of(items[place.item])
            fields = (
                {"image_url": file}
                if place.is_image
                else {"filename": part.get("filename") or name, "file_data": file}
            )
            placed[place.item] = _replaced(placed[place.item], place, fields)
        return placed

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self._files)

    async def hold(self) -> None:
        """Has all files in memory, and room to send them, until `release`; reads again what was
        dropped. Raises UpstreamFailed."""
        if not self._files or self._reserved:
            return
        size = sum(file.size_to_send for file in self._files)
        await self._memory.reserve(size, self._files)
        self._reserved = size
        try:
            deadline = self._deadline()
            for file in self._files:
                if file.content is None:
                    download = await file.source.read(self._settings.file_bytes, deadline)
                    file.content, file.size = download.content, len(download.content)
        except BaseException:
            self.release()
            raise

    async def inline(self, history: list[Item]) -> list[Item]:
        """The history with the data of downloaded files itself: to store it. Stored files keep
        their ids. Raises UpstreamFailed."""
        if not self._has_downloads:
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

    async def _read_stored(
        self, places: Sequence[FilePlace], param_of: NameOf, deadline: float
    ) -> int:
        """Reads the stored files among these. Returns their bytes in all places."""
        ids = {place.value: parse_file_id(place.value) for place in places}
        ours = [place for place in places if ids[place.value] is not None]
        if not ours:
            return 0
        found = await self._find(ours, ids, param_of)
        bytes_left = self._settings.file_bytes
        for place in ours:
            bytes_left -= found[place.value].size
            if bytes_left < 0:
                raise _too_large(self._settings.file_bytes, param_of(place))
        for place in ours:
            if place.value in self._by_id:
                self._by_id[place.value][1].places += 1
                continue
            stored = found[place.value]
            file, _ = await self._reserve_and_read(stored, stored.size, deadline)
            self._by_id[place.value] = stored.filename, file
        return self._settings.file_bytes - bytes_left

    async def _find(
        self, places: Sequence[FilePlace], ids: dict[str, UUID | None], param_of: NameOf
    ) -> dict[str, StoredFile]:
        """The stored files by their ids. Raises UpstreamFailed if one is gone."""
        wanted = {found for found in ids.values() if found is not None}
        if len(wanted) > _MAX_STORED:
            raise _unavailable(
                f"This response and its history name more than {_MAX_STORED} files.",
                param_of(places[0]),
                envelope_code="input_too_large",
            )
        rows = await self._stored.find(wanted) if self._stored is not None else {}
        missing = [place for place in places if ids[place.value] not in rows]
        if missing:
            names = ", ".join(dict.fromkeys(place.value for place in missing[:10]))
            is_image = missing[0].is_image
            raise _unavailable(
                f"Files [{names}] were not found.",
                param_of(missing[0]),
                code="image_file_not_found" if is_image else "invalid_prompt",
                envelope_code="file_not_found",
            )
        return {
            name: rows[found] for name, found in ids.items() if found is not None and found in rows
        }

    async def _reserve_and_read(
        self, source: FileSource, max_bytes: int, deadline: float
    ) -> tuple[FetchedFile, Download]:
        try:
            async with asyncio.timeout_at(deadline):
                await self._memory.reserve(max_bytes)
        except TimeoutError:
            raise source.failure("this server has too many files to fetch") from None
        try:
            download = await source.read(max_bytes, deadline)
        finally:
            self._memory.free(max_bytes)
        file = FetchedFile(source, download.content, download.media_type)
        self._files.append(file)
        self._memory.keep(file)
        return file, download


class _Downloaded:
    """A file by URL."""

    def __init__(self, url: str, param: str, downloads: Downloader) -> None:
        """`param`: the place that an error names."""
        self._url = url
        self._param = param
        self._downloads = downloads

    async def read(self, max_bytes: int, deadline: float) -> Download:
        """Downloads the file. Raises UpstreamFailed."""
        time_limit = deadline - asyncio.get_running_loop().time()
        try:
            return await self._downloads.fetch(
                self._url, max_bytes=max_bytes, time_limit=time_limit
            )
        except (EgressRefused, DownloadError) as fault:
            raise self.failure(str(fault)) from fault

    def failure(self, reason: str) -> UpstreamFailed:
        """The failure if the file cannot be sent."""
        return _unavailable(
            f"Failed to download the file from '{shorten(self._url)}': {reason}.", self._param
        )


def _unavailable(
    message: str,
    param: str,
    *,
    code: str = "invalid_prompt",
    envelope_code: str = "invalid_value",
) -> UpstreamFailed:
    return UpstreamFailed.of_request(
        message, "file_unavailable", code=code, param=param, envelope_code=envelope_code
    )


def _too_large(limit: int, param: str) -> UpstreamFailed:
    return _unavailable(
        f"The files of this response and its history have more than {limit} bytes together.",
        param,
        envelope_code="input_too_large",
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


def _replaced(item: Item, place: FilePlace, fields: dict[str, Any]) -> Item:
    """The item with these fields in the place of the URL or id."""
    part = {key: value for key, value in place.part_of(item).items() if key != place.name}
    part |= fields
    if place.part is None:
        return {**item, place.field: part}
    parts: list[dict[str, Any]] = list(item[place.field])
    parts[place.part] = part
    return {**item, place.field: parts}


def history_urls(
    history: list[Item], own_count: int, *, history_parameter: str, skipped: int
) -> Iterator[tuple[str, str]]:
    """The URLs in the history that the upstream fetches, each with the parameter that it came with.
    The parameters are those of worker/run/attachments.py."""
    for place in item_urls(history):
        if not place.is_fetched_here:
            own = place.item - (len(history) - own_count)
            yield place.param(own + skipped) if own >= 0 else history_parameter, place.url


async def require_handed_on(urls: Iterable[tuple[str, str]], egress: EgressPolicy) -> None:
    """Raises UpstreamFailed for a URL that the upstream may not fetch: a waiting client receives it
    as a 400. `urls`: each with its parameter."""
    targets: list[tuple[str, str, FetchTarget]] = []
    for param, url in urls:
        try:
            targets.append((param, url, egress.check_handed_on(url)))
        except EgressRefused as refusal:
            raise _refused(param, url, refusal) from refusal
    if not targets or not egress.settings.resolve:
        return
    hosts = [target.host for _, _, target in targets]
    found = await look_up(hosts, egress.settings.resolve_time.total_seconds())
    for param, url, target in targets:
        try:
            egress.check_handed_on_addresses(target, found.get(target.host, ()))
        except EgressRefused as refusal:
            raise _refused(param, url, refusal) from refusal


def _refused(param: str, url: str, refusal: EgressRefused) -> UpstreamFailed:
    return UpstreamFailed.of_request(
        f"The upstream may not fetch '{shorten(url)}': {refusal}.",
        "url_refused",
        param=param,
        envelope_code="invalid_value",
    )
