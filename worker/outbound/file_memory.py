"""The files in requests to models, and the memory that they share (docs/adr/0038).

A model may be silent for an hour. Meanwhile nobody needs the files of its request: they are kept as
long as there is room, and fetched or read again if another turn needs them.
"""

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Protocol

from models.errors import UpstreamFailed
from worker.outbound.download import Download

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
