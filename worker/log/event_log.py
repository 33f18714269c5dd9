"""The log of one attempt: numbers and encodes its events, and holds the unconfirmed ones."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from models.ownership.steps import Tail
from models.ownership.takeover import Claim
from models.redis.channels import events as events_channel
from models.wire.events import Event, frame
from worker import metrics

MAX_ROW_BYTES = 256 * 1024
"""Bytes of frames of one response in one statement. A larger frame is stored alone
(worker/log/large_frames.py).

A statement makes one row per response, and readers read whole rows.
"""


@dataclass(slots=True)
class Block:
    """Consecutive frames of one response in one journal batch; both numbers are inclusive."""

    first: int
    last: int
    frames: bytes
    batch: int


@dataclass(slots=True, eq=False)
class EventLog:
    """Numbers and encodes each event exactly once (I4).

    Frames are *fresh* until a journal batch takes them, then in the *tail* until a flush, a
    checkpoint or the ending that stores them is confirmed.
    """

    claim: Claim
    next_number: int
    channel: str
    attempt: int
    fresh: list[bytes] = field(default_factory=list)
    tail: deque[Block] = field(default_factory=deque)
    size: int = 0
    """Bytes of all fresh frames and of the tail."""
    closed: bool = False
    is_journal_paused: bool = False
    """A statement stores the fresh frames now, so no journal batch may take them."""
    is_stored_apart: bool = False
    """Its next frame is large, and is about to be stored alone: no journal batch may take it."""
    started_at: float = field(default_factory=time.monotonic)
    has_first_event: bool = False
    """An event after `response.in_progress` is written."""
    first_event_seconds: float | None = None
    """Seconds from the creation of the response to that event, in the first attempt."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one statement that writes this response's event log."""

    @classmethod
    def of(cls, claim: Claim) -> "EventLog":
        """The log of a new attempt: it continues after the last stored number."""
        return cls(claim, claim.log_end + 1, events_channel(claim.id), claim.attempt)

    def write(self, events: Iterable[Event]) -> int:
        """Numbers and encodes the events; returns their bytes. The caller requests a batch."""
        if self.closed:
            return 0
        first, written = self.next_number, 0
        for event in events:
            encoded = frame(event, self.next_number)
            self.fresh.append(encoded)
            self.next_number += 1
            written += len(encoded)
        self.size += written
        metrics.EVENTS.inc(self.next_number - first)
        return written

    @property
    def has_large_frame(self) -> bool:
        """Whether the first of the fresh frames is too large for a row with others."""
        return bool(self.fresh) and len(self.fresh[0]) > MAX_ROW_BYTES

    def next_frame(self) -> Tail:
        """The first of the fresh frames, alone. The tail before it is flushed."""
        number = self.next_number - len(self.fresh)
        return Tail(number, number, self.fresh[0])

    def cut_block(self, batch: int, max_bytes: int) -> Block:
        """Moves fresh frames into the tail as one block: as many as fit, and at least one."""
        first = self.next_number - len(self.fresh)
        count = _count_within(max_bytes, map(len, self.fresh))
        block = Block(first, first + count - 1, b"".join(self.fresh[:count]), batch)
        del self.fresh[:count]
        self.tail.append(block)
        return block

    def tail_to_flush(self, max_bytes: int) -> Tail:
        """The blocks of the tail for one flush: as many as fit, and at least one."""
        count = _count_within(max_bytes, (len(block.frames) for block in self.tail))
        blocks = list(itertools.islice(self.tail, count))
        return Tail(blocks[0].first, blocks[-1].last, b"".join(block.frames for block in blocks))

    def unflushed(self, last_event: Event | None = None) -> Tail:
        """All frames that are not flushed, and `last_event` after them under the next number.

        `last_event` is not added to the log: if a cancel wins over this ending, it never happened.
        """
        first = self.tail[0].first if self.tail else self.next_number - len(self.fresh)
        frames = b"".join([*(block.frames for block in self.tail), *self.fresh])
        if last_event is None:
            return Tail(first, self.next_number - 1, frames)
        return Tail(first, self.next_number, frames + frame(last_event, self.next_number))

    @property
    def flushed_number(self) -> int:
        """The last event that a confirmed transaction has stored in the event log."""
        return (self.tail[0].first if self.tail else self.next_number - len(self.fresh)) - 1

    def drop_flushed(self, number: int) -> None:
        """Drops the frames up to `number`, which a confirmed transaction stored."""
        while self.tail and self.tail[0].last <= number:
            self.size -= len(self.tail.popleft().frames)

    def take_stored(self, number: int) -> Block | None:
        """Drops the frames up to `number`, which a confirmed transaction stored.

        Returns those that were in no batch and are not published yet; None if there are none.
        """
        self.drop_flushed(number)
        first = self.next_number - len(self.fresh)
        stored = self.fresh[: number + 1 - first]
        if not stored:
            return None
        del self.fresh[: len(stored)]
        block = Block(first, number, b"".join(stored), 0)
        self.size -= len(block.frames)
        return block

    def unpublished(self, tail: Tail, confirmed_batch: int, max_bytes: int) -> Block | None:
        """The frames of `unflushed()` that no confirmed batch has: only such a batch is published.
        None if they have more than `max_bytes`: then they are not copied."""
        published = [block for block in self.tail if block.batch <= confirmed_batch]
        size = sum(len(block.frames) for block in published)
        if len(tail.frames) - size > max_bytes:
            return None
        first = published[-1].last + 1 if published else tail.first
        return Block(first, tail.last, tail.frames[size:], batch=0)

    def close(self) -> None:
        """Drops all frames; later writes are ignored."""
        self.closed = True
        self.fresh.clear()
        self.tail.clear()
        self.size = 0


def _count_within(max_bytes: int, sizes: Iterable[int]) -> int:
    """How many of the first sizes have a sum of at most `max_bytes`; at least one."""
    return max(1, sum(total <= max_bytes for total in itertools.accumulate(sizes)))
