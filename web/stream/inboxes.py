"""What arrives for the readers of streams, until they take it."""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from models.db.queries.common import LogBlock

_LAST_NUMBER = 2**31 - 1


@dataclass(slots=True, eq=False)
class Inbox:
    """Blocks for one reader.

    A block that does not fit is dropped; the reader then reads it from the log.
    """

    limit: int
    """bytes of all blocks"""
    blocks: deque[LogBlock] = field(default_factory=deque)
    size: int = 0
    must_read_log: bool = False
    """The reader should read the log: an ending, a dropped block, a reconnected bus."""
    idle_seconds: float = 0.0
    """Seconds since the last block or notification."""
    poll_fast: bool = False
    """Events have just arrived, so a pause may mean that messages are lost."""
    number: int = _LAST_NUMBER
    """of the last event that the reader has sent, when it last began to wait; by default, for a
    reader that waits only for the end, more than there can be"""
    attempt: int = 0
    """of that event; 0: none was sent"""
    was_prepared: bool = False
    """It has got every message since Redis confirmed the subscription."""
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, block: LogBlock) -> None:
        """Adds a block if there is room for it, else makes the reader read the log."""
        if self.size + len(block.frames) > self.limit:
            self.wake()
            return
        self.blocks.append(block)
        self.size += len(block.frames)
        self.idle_seconds = 0.0
        self.poll_fast = True
        self._ready.set()

    def wake(self) -> None:
        """Makes the reader read the log."""
        self.must_read_log = True
        self.idle_seconds = 0.0
        self._ready.set()

    async def next(self) -> LogBlock | None:
        """Waits for the next block; None if the reader should read the log."""
        if not self.blocks and not self.must_read_log:
            self._ready.clear()
            await self._ready.wait()
        if not self.blocks:
            self.must_read_log = False
            return None
        block = self.blocks.popleft()
        self.size -= len(block.frames)
        return block


class EndInbox(Inbox):
    """For a reader that waits only for the end: deltas do not wake it."""

    def put(self, block: LogBlock) -> None:  # noqa: ARG002
        """Drops the block."""
        self.idle_seconds = 0.0


@dataclass(slots=True, eq=False)
class Channel:
    """The subscription to one response's events, which all its readers in this process share."""

    name: bytes
    response_id: UUID
    inboxes: set[Inbox] = field(default_factory=set)
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while Redis has confirmed the present subscription."""
    has_missed: bool = False
    """The bus was disconnected since its readers have read the log."""
    prepared: Inbox | None = None
    """An inbox without a reader yet."""
    prepared_until: float = 0.0
    """in the loop's time"""

    @property
    def is_subscribed(self) -> bool:
        """Redis has confirmed the subscription: each message that is sent now arrives."""
        return self.confirmed.is_set()

    def confirm(self) -> None:
        """Redis has confirmed the subscription."""
        self.confirmed.set()
        if self.has_missed:
            self.has_missed = False
            for inbox in self.inboxes:
                inbox.wake()


def distribute(readers: Iterable[Inbox], payload: bytes) -> None:
    """Delivers a message: `<attempt> <first> <last>\\n<frames>`.

    An empty one announces an ending, which is read from the log.
    """
    if not payload:
        for inbox in readers:
            inbox.wake()
        return
    head, _, frames = payload.partition(b"\n")
    attempt, first, last = map(int, head.split())
    block = LogBlock(attempt, first, last, frames)
    for inbox in readers:
        inbox.put(block)
