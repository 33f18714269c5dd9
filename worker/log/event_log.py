"""The log of one attempt: numbers and encodes its events, and holds the unconfirmed ones; and all
logs of the responses that this process runs, with the bytes that they hold."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from models.config.settings import Settings
from models.ownership.steps import Tail
from models.ownership.takeover import Claim
from models.redis.channels import events as events_channel
from models.wire.events import Event, frame
from worker import metrics

MAX_ROW_BYTES = 256 * 1024
"""Bytes of frames of one response in one statement. A larger frame is stored alone
(worker/log/batch_writer.py).

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
        written = 0
        for event in events:
            encoded = frame(event, self.next_number)
            self.fresh.append(encoded)
            self.next_number += 1
            written += len(encoded)
        self.size += written
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
        count = _count_within(max_bytes, list(map(len, self.fresh)))
        block = Block(first, first + count - 1, b"".join(self.fresh[:count]), batch)
        del self.fresh[:count]
        self.tail.append(block)
        return block

    def tail_to_flush(self, max_bytes: int) -> Tail:
        """The blocks of the tail for one flush: as many as fit, and at least one."""
        count = _count_within(max_bytes, [len(block.frames) for block in self.tail])
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


def _count_within(max_bytes: int, sizes: list[int]) -> int:
    """How many of the first sizes have a sum of at most `max_bytes`; at least one."""
    if sum(sizes) <= max_bytes:
        return len(sizes)
    return max(1, sum(total <= max_bytes for total in itertools.accumulate(sizes)))


_MAX_HELD_BYTES = 64 * 1024 * 1024
"""Bytes that all logs together may hold before only small ones get more."""
_SMALL = 64 * 1024
"""Bytes up to which a log may always grow: others may hold what they want, its upstream is read."""


class OpenLogs:
    """The open logs, what is to be written next, and the waits for room in a log.

    The batch writer and the flush writer take logs from here and report their progress here.
    """

    def __init__(self, settings: Settings) -> None:
        self.all: set[EventLog] = set()
        self.batch_requested = asyncio.Event()
        self.flush_requested = asyncio.Event()
        self.confirmed_batch = 0
        """The last journal batch that Postgres has confirmed."""
        self._flush_bytes = settings.worker.flush_bytes
        self._tail_bytes = settings.worker.tail_bytes
        self._journal_gap = settings.worker.journal_gap.total_seconds()
        self._timer: asyncio.TimerHandle | None = None
        """Requests a batch for logs whose frames may wait."""
        self._dirty: dict[EventLog, None] = {}
        """Logs with fresh frames, in the order of their first one."""
        self._progress = asyncio.Condition()
        self._held_bytes = 0
        """Bytes in all logs together: counted at the last progress, plus what was written since."""
        self._new_events = 0
        """Events that were written since the last progress."""

    def add(self, log: EventLog) -> None:
        """Opens the log: its frames are journaled and flushed from now on."""
        self.all.add(log)

    def remove(self, log: EventLog) -> None:
        """Closes the log: all its frames are in confirmed transactions, or are not to be stored."""
        self.all.discard(log)
        self._dirty.pop(log, None)
        self._held_bytes -= log.size
        log.close()

    def write(self, log: EventLog, events: Iterable[Event]) -> int:
        """As `EventLog.write`."""
        first = log.next_number
        written = log.write(events)
        self._held_bytes += written
        self._new_events += log.next_number - first
        return written

    def mark_dirty(self, log: EventLog, *, may_wait: bool = False) -> None:
        """Requests a batch for the log's fresh frames, and a flush if the log is large. If they
        `may_wait`, others have the time of `journal_gap` to come into the same batch."""
        self._dirty[log] = None
        if log.size >= self._flush_bytes:
            self.flush_requested.set()
        if not may_wait:
            self.batch_requested.set()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._journal_gap, self._request_late_batch)

    def _request_late_batch(self) -> None:
        self._timer = None
        if self._dirty:
            self.batch_requested.set()

    def take_dirty(self) -> list[EventLog]:
        """The logs for the next batch; those that another statement is storing are left out."""
        logs = [
            log
            for log in self._dirty
            if log.fresh and not (log.closed or log.is_journal_paused or log.is_stored_apart)
        ]
        self._dirty.clear()
        return logs

    def request_flush(self, logs: list[EventLog]) -> None:
        """Requests a flush at once if one of the logs is large."""
        if any(log.size >= self._flush_bytes for log in logs):
            self.flush_requested.set()

    def large(self) -> list[EventLog]:
        """The logs that are flushed at once, without waiting for the interval."""
        return [log for log in self.all if log.tail and log.size >= self._flush_bytes]

    def with_tail(self) -> list[EventLog]:
        """The logs with frames that are journaled and not flushed."""
        return [log for log in self.all if log.tail]

    async def notify_waiters(self) -> None:
        """Wakes the waits below, after a statement was confirmed."""
        self._held_bytes = sum([log.size for log in self.all])
        metrics.EVENTS.inc(self._new_events)
        self._new_events = 0
        async with self._progress:
            self._progress.notify_all()

    def has_room(self, log: EventLog) -> bool:
        """Whether the log may take more bytes (I12)."""
        limit = self._tail_bytes if self._held_bytes <= _MAX_HELD_BYTES else _SMALL
        return log.size <= limit or log.closed

    async def wait_for_room(self, log: EventLog) -> None:
        """Waits until it may. This slows the upstream down while Postgres is slow."""
        if not self.has_room(log):
            await self._wait_until(lambda: self.has_room(log))

    async def wait_until_journaled(self, log: EventLog) -> None:
        """Waits until every frame of the log is in a confirmed batch or flush."""
        await self._wait_until(lambda: log.closed or self._is_journaled(log))

    async def wait_for_small_tail(self, log: EventLog) -> None:
        """Waits until the log is small enough for one statement; flushes store the rest before."""
        await self._wait_until(lambda: log.closed or log.size <= self._tail_bytes)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        async with self._progress:
            await self._progress.wait_for(condition)

    def _is_journaled(self, log: EventLog) -> bool:
        is_confirmed = not log.tail or log.tail[-1].batch <= self.confirmed_batch
        return is_confirmed and not log.fresh
