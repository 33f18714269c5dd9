"""Puts images back into items that have a mark of them (models/wire/image_marks.py)."""

import asyncio
import base64
import hashlib
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Any
from uuid import UUID

import orjson
import structlog

from models.db.arrays import Uuids
from models.db.database import (
    DATABASE_UNAVAILABLE,
    Pool,
    fetch_idempotent,
    fetch_when_available,
)
from models.db.queries.file_contents import STORED_IMAGES, PartRow
from models.db.queries.progress import PROJECT_OF
from models.errors import Unavailable
from models.files.content import read_content
from models.files.storage import FileStorage, StorageError
from models.ids import parse_admin_id
from models.load.budget import Reservation
from models.wire.events import DONE, decode_frame, in_one_line, split_frames
from models.wire.image_marks import (
    ImageMark,
    items_of,
    marked_sizes,
    marks_of,
    may_have_marks,
)
from models.wire.item_types import ID_PREFIXES

logger = structlog.get_logger()

_PREFIX = ID_PREFIXES["image_generation_call"]
_MEMORY_WAIT = 600.0
"""Seconds for which a stream waits for the memory of an image. Its client may resume it then."""
_STORAGE_WAIT = 60.0
"""Seconds for which a stream waits for the storage of an image. A foreground response is cancelled
when its stream ends."""
_PAUSE = 1.0
"""Seconds between two tries to read images."""


def image_file(item_id: str) -> UUID | None:
    """The id of the file that is, or will be, the image of an item. None: of no item that was made
    here."""
    return parse_admin_id(_PREFIX, item_id)


class ResponseImages:
    """The images of one process's readers."""

    def __init__(self, pool: Pool, storage: FileStorage | None) -> None:
        """`storage` None: this server stores no files."""
        self._pool = pool
        self._storage = storage

    async def filled(
        self, project: UUID, items: Sequence[Any], *, within: float = 0.0
    ) -> list[Any]:
        """The items with their images; `items` is not changed. An image that is deleted is null.
        `within`: seconds for which a storage that does not answer is tried again. Raises
        Unavailable, and what DATABASE_UNAVAILABLE names."""
        marks = {id(mark.item): mark for mark in marks_of(items)}
        if not marks:
            return list(items)
        images = await self._read(project, marks.values(), within)
        return [
            {**item, "result": images.get(item["id"])} if id(item) in marks else item
            for item in items
        ]

    async def filled_body(self, project: UUID, body: bytes) -> bytes:
        """The JSON of a Response object with its images. Raises as `filled` does."""
        if not may_have_marks(body):
            return body
        response = orjson.loads(body)
        response["output"] = await self.filled(project, response["output"])
        return await asyncio.to_thread(orjson.dumps, response)

    async def filled_frames(self, project: UUID, block: bytes, *, within: float) -> bytes:
        """A block of frames with the images of their items: the same bytes for all readers. Raises
        as `filled` does."""
        frames = split_frames(block)
        found = [
            (place, *_opened(frame)) for place, frame in enumerate(frames) if may_have_marks(frame)
        ]
        marks = [mark for _, _, event in found for mark in marks_of(items_of(event))]
        if not marks:
            return block
        images = await self._read(project, marks, within)
        for mark in marks:
            mark.item["result"] = images.get(mark.item["id"])
        for place, head, event in found:
            frames[place] = head + in_one_line(await asyncio.to_thread(orjson.dumps, event))
            frames[place] += b"\n\n"
        return b"".join(frames)

    async def in_stream(
        self, response_id: UUID, block: bytes, held: Reservation | None
    ) -> AsyncGenerator[bytes]:
        """A block of frames in pieces, in which each event with an image is alone. `held`: what the
        stream has of the process's memory for large bodies; a piece counts until the next one is
        wanted. Raises ApiError if there is no memory for an image or it cannot be read, and what
        DATABASE_UNAVAILABLE names."""
        for piece in _pieces(block):
            size = 0
            if may_have_marks(piece):
                size = marked_sizes(items_of(decode_frame(piece.removesuffix(DONE))))
            if not size:
                yield piece
                continue
            projects = await fetch_when_available(self._pool, PROJECT_OF, {"id": response_id})
            if not projects:
                raise Unavailable("The response was deleted.")
            if held is not None:
                # As they are read, in base64, and as they are sent.
                await held.grow(3 * size, _MEMORY_WAIT)
            yield await self.filled_frames(projects[0], piece, within=_STORAGE_WAIT)
            if held is not None:
                held.release()

    async def image(self, project: UUID, mark: ImageMark) -> bytes | None:
        """One image; None: it is deleted. Raises as `filled` does."""
        return (await self._contents(project, [mark])).get(mark.item["id"])

    async def _read(
        self, project: UUID, marks: Iterable[ImageMark], within: float
    ) -> dict[str, str]:
        """The id of an item -> its image in base64."""
        ends_at = time.monotonic() + within
        marks = list(marks)
        while True:
            try:
                contents = await self._contents(project, marks)
                return await asyncio.to_thread(_encoded, contents)
            except (Unavailable, *DATABASE_UNAVAILABLE):
                if time.monotonic() >= ends_at:
                    raise
                await asyncio.sleep(_PAUSE)

    async def _contents(self, project: UUID, marks: Iterable[ImageMark]) -> dict[str, bytes]:
        wanted = {file: mark for mark in marks if (file := image_file(mark.item["id"])) is not None}
        values = {"ids": Uuids(list(wanted)), "project": project}
        rows = await fetch_idempotent(self._pool, STORED_IMAGES, values)
        try:
            return {
                wanted[row.id].item["id"]: await self._content(
                    PartRow(row.part, row.bytes), wanted[row.id].digest
                )
                for row in rows
            }
        except StorageError as error:
            logger.error("file_storage_failed", error=str(error))  # noqa: TRY400
            raise Unavailable(
                "The server cannot read the images of this response right now. Please retry."
            ) from error

    async def _content(self, part: PartRow, digest: str) -> bytes:
        """Raises StorageError."""
        if self._storage is None:
            raise StorageError("no storage is configured any more")
        async with aclosing(read_content(self._storage, [part])) as chunks:
            content = b"".join([chunk async for chunk in chunks])
        if (await asyncio.to_thread(hashlib.sha256, content)).hexdigest() != digest:
            raise StorageError(f"the object of the part {part.id} is damaged")
        return content


def _pieces(block: bytes) -> list[bytes]:
    """The frames of a block: each that may have the mark of an image alone, those between them
    together."""
    pieces: list[bytes] = []
    for is_marked, group in groupby(split_frames(block.removesuffix(DONE)), may_have_marks):
        found = list(group)
        pieces += found if is_marked else [b"".join(found)]
    if block.endswith(DONE):
        pieces[-1] += DONE
    return pieces


def _opened(frame: bytes) -> tuple[bytes, dict[str, Any]]:
    """A frame up to its JSON, and the JSON."""
    start = frame.index(b"\ndata: ") + len(b"\ndata: ")
    return frame[:start], orjson.loads(frame[start:])


def _encoded(contents: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in contents.items()}
