"""The log of one attempt: gives events their numbers and their bytes, and holds what Postgres has not confirmed yet."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from models.ownership.claims import Claim, Tail
from models.redis.channels import events as events_channel
from models.wire.events import Event, frame


@dataclass(slots=True)
class Block:
    """Consecutive frames of one response that went into one journal batch. Numbers inclusive."""

    first: int
    last: int
    frames: bytes
    batch: int


@dataclass(slots=True, eq=False)
class EventLog:
    """Numbers and encodes each event exactly once (I4).

    Frames are *fresh* until a journal batch takes them, then part of the *tail* until a flush that covers them is answered.
    """

    claim: Claim
    next_number: int
    channel: str
    attempt: int
    fresh: list[bytes] = field(default_factory=list)
    tail: deque[Block] = field(default_factory=deque)
    size: int = 0
    """Bytes held here, fresh and tail."""
    closed: bool = False
    is_journal_paused: bool = False
    """A statement is storing fresh frames: the journal leaves them alone, they are shown when it is answered."""
    started_at: float = field(default_factory=time.monotonic)
    has_first_event: bool = False
    """The first word of this attempt is written."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a statement writes this response's event log: one at a time."""

    @classmethod
    def of(cls, claim: Claim) -> "EventLog":
        """The log as a new attempt finds it: it goes on after the last stored number."""
        return cls(claim, claim.log_end + 1, events_channel(claim.id), claim.attempt)

    def write(self, events: Iterable[Event]) -> int:
        """Numbers and encodes; returns how many bytes that made. The journal must be told of them (`Journal.wake`)."""
        if self.closed:
            return 0
        written = 0
        for event in events:
            encoded = frame(event, self.next_number)
            self.fresh.append(encoded)
            self.next_number += 1
            written += len(encoded)
        self.size += written
        return written

    def cut_block(self, batch: int, max_bytes: int) -> Block:
        """Moves fresh frames into the tail as one block of `batch`: all of them, or as many as are not over `most` bytes, but one at least."""
        first = self.next_number - len(self.fresh)
        count = _count_within(max_bytes, map(len, self.fresh))
        block = Block(first, first + count - 1, b"".join(self.fresh[:count]), batch)
        del self.fresh[:count]
        self.tail.append(block)
        return block

    def tail_to_flush(self, max_bytes: int) -> Tail:
        """The tail that went into batches, as a flush writes it: all blocks, or those not over `most` bytes, but one at least."""
        count = _count_within(max_bytes, (len(block.frames) for block in self.tail))
        blocks = list(itertools.islice(self.tail, count))
        return Tail(blocks[0].first, blocks[-1].last, b"".join(block.frames for block in blocks))

    def unflushed(self, last_event: Event | None = None) -> Tail:
        """Everything not flushed, fresh frames included, and after it `last_event` under the next number, which stays unwritten here:
        an ending that loses against a cancel leaves no trace."""
        first = self.tail[0].first if self.tail else self.next_number - len(self.fresh)
        frames = b"".join([*(block.frames for block in self.tail), *self.fresh])
        if last_event is None:
            return Tail(first, self.next_number - 1, frames)
        return Tail(first, self.next_number, frames + frame(last_event, self.next_number))

    def drop_flushed(self, number: int) -> None:
        """An answered transaction holds everything up to `number`."""
        while self.tail and self.tail[0].last <= number:
            self.size -= len(self.tail.popleft().frames)

    def take_stored(self, number: int) -> Block | None:
        """The same for a transaction that also held fresh frames; gives those back, to be shown without having been in any batch."""
        self.drop_flushed(number)
        first = self.next_number - len(self.fresh)
        stored = self.fresh[: number + 1 - first]
        if not stored:
            return None
        del self.fresh[: len(stored)]
        block = Block(first, number, b"".join(stored), 0)
        self.size -= len(block.frames)
        return block

    def close(self) -> None:
        """Nothing is written under this claim any more."""
        self.closed = True
        self.fresh.clear()
        self.tail.clear()
        self.size = 0


def _count_within(max_bytes: int, sizes: Iterable[int]) -> int:
    """How many of these, from the first on, are together not over `most`; at least one."""
    return max(1, sum(total <= max_bytes for total in itertools.accumulate(sizes)))
