"""Reading a response's one log: live, replayed, or just waited for (design §5, joining).

Listen first, then look: subscribe, read the logs beyond what was sent, then show what arrives. A hole sends the reader back to the
logs; nothing is ever skipped. The bus is a hint, the log is the truth.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from models.db.database import Pool, Row, fetch_when_available, read
from models.db.queries import statements
from models.lifecycle import TERMINAL, Status
from models.wire.events import split_frames
from web.stream.bus import Block, Bus

logger = structlog.get_logger()

DONE = b"data: [DONE]\n\n"
_PAGE_LIMITS = {"page": 64, "bytes": 256 * 1024}
"""Rows of the event log in one look, and bytes after which there is no further row: what one slow reader may cost this process."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """What the logs held beyond a number, in one snapshot."""

    status: Status | None
    """None: the row is gone"""
    blocks: list[Block]
    more: bool
    diverged: bool = False
    """A later attempt has told anew what this reader was shown."""

    @property
    def is_last(self) -> bool:
        """Everything there will ever be has been looked at."""
        return self.status is None or (self.status in TERMINAL and not self.more)


@dataclass(slots=True)
class StreamCursor:
    """How far one reader has come."""

    number: int
    attempt: int = 0
    """of what was sent last; 0 when nothing was yet"""
    diverged: bool = field(default=False)
    """A later attempt begins at or below a number already sent: the stated double fault. Better no ending than a mixed stream."""

    def advance_live(self, block: Block) -> bytes | None:
        """As `take`, for what the bus brings; None too where another attempt begins: only the log knows at which number."""
        return None if block.attempt > self.attempt > 0 else self.advance(block)

    def advance(self, block: Block) -> bytes | None:
        """The block's frames that follow on what was sent, maybe none; None when some are missing before it."""
        if block.attempt > self.attempt > 0 and block.first <= self.number:
            self.diverged = True
            return b""
        if block.attempt < self.attempt or block.last <= self.number:
            return b""
        if block.first > self.number + 1:
            return None
        known = self.number + 1 - block.first
        self.number, self.attempt = block.last, block.attempt
        return b"".join(split_frames(block.frames)[known:]) if known else block.frames


class EventReader:
    """Serves any number of readers in one web process."""

    def __init__(self, pool: Pool, bus: Bus) -> None:
        self._pool = pool
        self._bus = bus
        self._closing = False

    def close(self) -> None:
        """The process is going: background streams end cleanly at once, their clients resume elsewhere by number."""
        self._closing = True
        self._bus.wake_all()

    async def follow(
        self, response_id: UUID, after: int, *, background: bool
    ) -> AsyncGenerator[bytes]:
        """Frames with numbers above `after`, to the terminal event and `[DONE]`. Ends early only when the row is gone, the stream is torn,
        or this process stops."""
        cursor = StreamCursor(after)
        async with self._bus.subscribe(response_id) as inbox:
            while True:
                page = await self._read_page(response_id, cursor)
                cursor.diverged = page.diverged
                frames = b"".join(filter(None, map(cursor.advance, page.blocks)))
                if frames:
                    inbox.poll_fast = True
                    yield frames
                if cursor.diverged:
                    logger.error("stream_torn", response=str(response_id), number=cursor.number)
                    return
                if page.is_last:
                    if page.status is not None:
                        yield DONE
                    return
                if self._closing and background:
                    return
                if page.more:
                    continue
                while (block := await inbox.next()) is not None:
                    live = cursor.advance_live(block)
                    if live is None:
                        break
                    if live:
                        yield live

    async def wait_until_ended(self, response_id: UUID, within: float | None = None) -> Row | None:
        """The row once it has a terminal status, or as it is after `within` seconds (None: however long it takes); None when it is gone."""
        values = {"id": response_id}
        try:
            async with asyncio.timeout(within), self._bus.subscribe(response_id) as inbox:
                while True:
                    inbox.must_read_log = False  # before the look, so that a nudge during it counts
                    rows = await fetch_when_available(self._pool, statements.RESPONSE, values)
                    if not rows or rows[0]["status"] in TERMINAL:
                        return rows[0] if rows else None
                    while await inbox.next() is not None:
                        pass
        except TimeoutError:
            rows = await read(self._pool, statements.RESPONSE, values)
            return rows[0] if rows else None

    async def _read_page(self, response_id: UUID, cursor: StreamCursor) -> LogPage:
        values = {
            "id": response_id,
            "after": cursor.number,
            "attempt": cursor.attempt,
            **_PAGE_LIMITS,
        }
        rows = await fetch_when_available(self._pool, statements.LOG_PAGE, values)
        if not rows:
            return LogPage(None, [], more=False)
        blocks = [
            Block(row["attempt"], row["first"], row["last"], row["frames"])
            for row in rows
            if row["kind"] == 1
        ]
        more = (
            len(blocks) == _PAGE_LIMITS["page"]
            or sum(len(block.frames) for block in blocks) >= _PAGE_LIMITS["bytes"]
        )
        if rows[0]["first"]:
            return LogPage(None, [], more=False, diverged=True)
        if not more:
            blocks += [
                Block(row["attempt"], row["first"], row["last"], row["frames"])
                for row in rows
                if row["kind"] == 2
            ]
        return LogPage(Status(rows[0]["frames"].decode()), blocks, more)
