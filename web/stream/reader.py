"""Reading the event log of a response: live, replayed, or only to wait for its end.

A reader first subscribes to the bus, then reads the log after the last number that it sent, then
sends what the bus delivers. When a block is missing, it reads the log again, so nothing is ever
left out: the bus only makes it faster.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

import structlog

from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch_when_available, find_by_id
from models.db.queries.common import LogBlock
from models.db.queries.read import (
    LOG_PAGE,
    PAGE_LIMITS,
    RESPONSE,
    LogPageRow,
    ResponseRow,
    is_page_full,
)
from models.errors import ApiError
from models.files.response_images import ResponseImages
from models.ids import response_id as public_id
from models.lifecycle import TERMINAL, Status
from models.load.budget import Reservation
from models.wire.events import DONE, ends_stream, split_frames
from models.wire.image_marks import may_have_marks
from web.stream.bus import Bus
from web.stream.inboxes import Inbox

logger = structlog.get_logger()

_MEMORY_WAIT = 600.0
"""Seconds for which a stream waits for the memory of an event of more than 256 KiB. Its client may
resume it then."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """The events after a number, read in one snapshot."""

    status: Status | None
    """None: the row was deleted"""
    blocks: list[LogBlock]
    more: bool
    diverged: bool = False
    """A later attempt has replaced events that this reader was sent."""

    @property
    def has_end(self) -> bool:
        """The page contains the last event of the response."""
        return self.status in TERMINAL and not self.more


@dataclass(slots=True)
class StreamCursor:
    """The position of one reader in the log."""

    number: int
    """of the last event sent"""
    attempt: int = 0
    """of the last event sent; 0 before the first"""
    diverged: bool = False
    """A later attempt begins at or below a number that was sent (docs/guarantees.md). The stream
    ends, because it would mix two attempts."""

    def advance_live(self, block: LogBlock) -> bytes | None:
        """As `advance`, for a block from the bus.

        Returns None also for a later attempt: only the log shows where it begins.
        """
        return None if block.attempt > self.attempt > 0 else self.advance(block)

    def advance(self, block: LogBlock) -> bytes | None:
        """The block's frames after the cursor, maybe none; None if events before it are missing."""
        if block.attempt > self.attempt > 0 and block.first <= self.number:
            self.diverged = True
            return b""
        if block.attempt < self.attempt or block.last <= self.number:
            return b""
        if block.first > self.number + 1:
            return None
        sent = self.number + 1 - block.first
        self.number, self.attempt = block.last, block.attempt
        return b"".join(split_frames(block.frames)[sent:]) if sent else block.frames

    def advance_page(self, page: LogPage) -> bytes:
        """The frames of a page of the log after the cursor."""
        self.diverged = page.diverged
        return b"".join(filter(None, map(self.advance, page.blocks)))


@dataclass(frozen=True, slots=True)
class KnownEvents:
    """The first events of a response that this process has just stored."""

    frames: bytes
    last: int
    """number of the last one"""
    is_subscribed: bool
    """Redis had confirmed the subscription of the prepared inbox (`Bus.prepare`) before the
    response was enqueued."""


class EventReader:
    """Serves all readers of one web process."""

    def __init__(self, pool: Pool, bus: Bus, images: ResponseImages | None = None) -> None:
        """`images`: puts stored images into events; None: they stay as they are stored."""
        self._pool = pool
        self._bus = bus
        self.images = images
        self._closing = False
        self._aborted = False

    def close(self) -> None:
        """Ends streams of background responses at once; their clients can resume by number."""
        self._closing = True
        self._bus.wake_all()

    def abort(self) -> None:
        """Ends all streams at once, also those of foreground responses."""
        self._aborted = True
        self.close()

    async def follow(
        self,
        response_id: UUID,
        after: int,
        *,
        background: bool,
        known: KnownEvents | None = None,
        held: Reservation | None = None,
    ) -> AsyncGenerator[bytes]:
        """Frames with numbers above `after`; the last block ends with the terminal event and
        `[DONE]`.

        Without `[DONE]` if the row was deleted, the stream has diverged, this process stops, or
        there is no memory for a large event for minutes, or an image cannot be read for one.
        `known`: sent at once as the first frames. The log is then not read before there is a
        reason to, if the prepared inbox was subscribed in time. `held`: what the stream has of the
        process's memory for large bodies; the caller releases it. None: it needs no part.
        """
        async with aclosing(
            self._stored(response_id, after, background=background, known=known, held=held)
        ) as blocks:
            async for block in blocks:
                if self.images is None or not may_have_marks(block):
                    yield block
                    continue
                try:
                    async with aclosing(self.images.in_stream(response_id, block, held)) as pieces:
                        async for piece in pieces:
                            yield piece
                except (ApiError, *DATABASE_UNAVAILABLE) as error:
                    name = public_id(response_id)
                    logger.warning("stream_without_image", response=name, error=str(error))
                    return

    async def _stored(
        self,
        response_id: UUID,
        after: int,
        *,
        background: bool,
        known: KnownEvents | None,
        held: Reservation | None,
    ) -> AsyncGenerator[bytes]:
        """As `follow`, as the frames are stored."""
        cursor = StreamCursor(after)
        if known is not None:
            yield known.frames
            cursor.number = known.last
        async with self._bus.subscribe(response_id) as inbox:
            is_live = known is not None and known.is_subscribed and inbox.was_prepared
            inbox.poll_fast = is_live
            while True:
                while is_live and (live := await _next_live(inbox, cursor)) is not None:
                    if ends_stream(live):
                        yield live + DONE
                        return
                    yield live
                page = await self._read_page(response_id, cursor, held)
                frames = cursor.advance_page(page)
                if page.has_end and not cursor.diverged:
                    yield frames + DONE
                    return
                if frames:
                    inbox.poll_fast = True
                    yield frames
                is_live, is_deleted = not page.more, page.status is None
                # What it has of the memory is given back: no more of it is in use.
                del page, frames
                if held is not None:
                    held.release()
                if cursor.diverged:
                    logger.error(
                        "stream_diverged", response=public_id(response_id), number=cursor.number
                    )
                    return
                if is_deleted or self._aborted or (self._closing and background):
                    return

    async def wait_until_ended(
        self, response_id: UUID, within: float | None = None
    ) -> ResponseRow | None:
        """The row when it has ended, or as it is after `within` seconds; None if it was deleted."""
        try:
            async with (
                asyncio.timeout(within),
                self._bus.subscribe(response_id, only_end=True) as inbox,
            ):
                return await self._poll_until_ended(response_id, inbox)
        except TimeoutError:
            return await find_by_id(self._pool, RESPONSE, response_id)

    async def _poll_until_ended(self, response_id: UUID, inbox: Inbox) -> ResponseRow | None:
        while True:
            # Reset before the query, so that a notification during it is not lost.
            inbox.must_read_log = False
            rows = await fetch_when_available(self._pool, RESPONSE, {"id": response_id})
            if not rows:
                return None
            if rows[0].status in TERMINAL:
                return rows[0]
            while await inbox.next() is not None:
                pass

    async def _read_page(
        self, response_id: UUID, cursor: StreamCursor, held: Reservation | None
    ) -> LogPage:
        values = {
            "id": response_id,
            "after": cursor.number,
            "attempt": cursor.attempt,
            **PAGE_LIMITS,
        }
        rows = await fetch_when_available(self._pool, LOG_PAGE, values)
        if rows and rows[0].size > PAGE_LIMITS["bytes"] and not rows[0].is_journalled:
            rows = await self._read_large(values, rows[0].size, held)
        if not rows:
            return LogPage(None, [], more=False)
        if rows[0].is_rewritten:
            return LogPage(None, [], more=False, diverged=True)
        blocks = [row.block for row in rows if row.block is not None and not row.is_journalled]
        more = is_page_full(blocks) or any(_is_too_large(row) for row in rows)
        if not more:
            blocks += [row.block for row in rows if row.block is not None and row.is_journalled]
        return LogPage(Status(rows[0].status), blocks, more)

    async def _read_large(
        self, values: dict[str, object], size: int, held: Reservation | None
    ) -> list[LogPageRow]:
        """The page with its first block alone, which has so many bytes; no rows if there is no
        memory for it."""
        if held is not None:
            try:
                # As it is read, with the end of the stream behind it, and as it is sent.
                await held.grow(3 * size, _MEMORY_WAIT)
            except ApiError:
                return []
        return await fetch_when_available(
            self._pool, LOG_PAGE, {**values, "bytes": size}, size=size
        )


def _is_too_large(row: LogPageRow) -> bool:
    return row.block is None and row.size > 0


async def _next_live(inbox: Inbox, cursor: StreamCursor) -> bytes | None:
    """Waits for frames from the bus; None if the reader must read the log."""
    inbox.number, inbox.attempt = cursor.number, cursor.attempt
    while (block := await inbox.next()) is not None:
        frames = cursor.advance_live(block)
        if frames != b"":
            return frames
    return None
