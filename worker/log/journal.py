"""Journal, then publish (ADR 0003).

Every event is stored before it is published. All new frames of this process go into the table
`journal` as one batch; when Postgres has confirmed the batch, its frames are published to Redis.
Flushes move them to the table `event_log`. A statement without an answer is repeated identically
before any newer one.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

from models.config.settings import Settings
from models.db.database import Pool
from models.load.fair_queue import FairQueue
from models.ownership.lease import Lease
from models.ownership.steps import Tail
from models.wire.events import Event
from worker import metrics
from worker.log.batch_writer import BatchWriter, LargeFrames
from worker.log.event_log import Block, EventLog, OpenLogs
from worker.log.flush_writer import FlushWriter
from worker.log.publisher import EventPublisher
from worker.upstream.body_reader import Arrivals

ResultT = TypeVar("ResultT")

_MAX_PUBLISHED_END = 64 * 1024
"""Bytes. The terminal event has the whole output once more, and every reader has an inbox of a few
hundred KiB."""

_LARGE_OUTPUT = 1024 * 1024
"""Bytes of an output whose last events take long to encode."""
_LARGE_OUTPUTS = 2
"""Concurrent large endings per process; at most one per project."""


class Journal:
    """Stores and publishes the event logs of one process. Everything runs in one event loop."""

    def __init__(
        self, settings: Settings, lease: Lease, pool: Pool, publisher: EventPublisher
    ) -> None:
        self._publisher = publisher
        self._logs = OpenLogs(settings)
        self.flush_writer = FlushWriter(settings, lease, pool, self._logs)
        self.large_frames = LargeFrames(self._logs, self.flush_writer, self._announce)
        self.batch_writer = BatchWriter(
            settings, lease, self._logs, self.flush_writer, self.large_frames, self._publish
        )
        self._large_outputs = FairQueue(_LARGE_OUTPUTS)

    def read_before_batches(self, arrivals: Arrivals) -> None:
        """Lets each batch begin with what has arrived from upstreams."""
        self.batch_writer.before_batch = arrivals.read
        arrivals.wait_for_batches(self._logs.batch_requested.set)

    def open(self, log: EventLog) -> None:
        """Journals, publishes and flushes this log from now on."""
        self._logs.add(log)

    def close(self, log: EventLog) -> None:
        """Drops the log. Its frames are in confirmed transactions, or are not to be stored."""
        self._logs.remove(log)

    def write(self, log: EventLog, events: Iterable[Event], *, may_wait: bool = False) -> None:
        """Numbers and encodes the events. The next batch stores them: at once, or if they
        `may_wait`, within `journal_gap`."""
        if not self._logs.write(log, events):
            return
        self._logs.mark_dirty(log, may_wait=may_wait)
        if not log.has_first_event:
            _observe_first_event(log)

    async def store_then_publish(
        self, log: EventLog, events: Iterable[Event], store: Callable[[Tail], Awaitable[None]]
    ) -> None:
        """Lets `store` write these events with all unflushed frames, then publishes them.

        A reader that has received the events can rely on what `store` wrote in the same
        transaction. Must not be cancelled half-way (models/tasks.py). Raises what `store`
        raises.
        """
        await self._logs.wait_for_small_tail(log)
        async with log.lock:
            log.is_journal_paused = True
            try:
                self._logs.write(log, events)
                tail = log.unflushed()
                await store(tail)
                block = log.take_stored(tail.last)
            finally:
                log.is_journal_paused = False
                self._logs.mark_dirty(log)
        if block is not None:
            self._publish(log, block)
        await self._logs.notify_waiters()

    async def store_last(self, log: EventLog, store: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Lets `store` write the ending with all unflushed frames, and returns its result.

        No batch takes the last frames meanwhile: `publish_end` publishes them together with the
        terminal event. If `store` raises, the next batch takes them.
        """
        await self._logs.wait_for_small_tail(log)
        async with log.lock:
            log.is_journal_paused = True
            try:
                return await store()
            except BaseException:
                log.is_journal_paused = False
                self._logs.mark_dirty(log)
                raise

    def has_room(self, log: EventLog) -> bool:
        """Whether the log has room for more bytes (I12)."""
        return self._logs.has_room(log)

    async def wait_for_room(self, log: EventLog) -> None:
        """Waits until it has."""
        await self._logs.wait_for_room(log)

    async def wait_until_journaled(self, log: EventLog) -> None:
        """Waits until every frame of the log is in a confirmed batch or flush."""
        await self._logs.wait_until_journaled(log)

    def unpublished(self, log: EventLog, tail: Tail) -> Block | None:
        """The part of `log.unflushed()` that is not published. None if it is large."""
        return log.unpublished(tail, self._logs.confirmed_batch, _MAX_PUBLISHED_END)

    @asynccontextmanager
    async def large_output(self, log: EventLog, size: int) -> AsyncIterator[None]:
        """A turn to encode and store the last events of an output of `size` bytes, which have all
        of it several times. A small output does not wait for one."""
        if size < _LARGE_OUTPUT:
            yield
            return
        async with self._large_outputs.permit(log.claim.row.project_id):
            yield

    def publish_end(self, log: EventLog, block: Block | None) -> None:
        """Publishes an ending. `block`: the last frames up to the terminal event, which a confirmed
        transaction has stored; None if they are large, or could not be stored.

        The empty message makes all readers read the log that have not received the terminal event:
        those that lack a frame, that only wait for the end, or that get no last frames.
        """
        if block is not None:
            self._publish(log, block)
        self._announce(log)

    def _announce(self, log: EventLog) -> None:
        self._publisher.publish(log.channel, b"")

    def _publish(self, log: EventLog, block: Block) -> None:
        head = b"%d %d %d\n" % (log.attempt, block.first, block.last)
        self._publisher.publish(log.channel, head + block.frames)


def _observe_first_event(log: EventLog) -> None:
    """Observes the time to the first event after `response.in_progress`, in the first attempt."""
    if log.next_number <= log.claim.log_end + 2:
        return
    log.has_first_event = True
    if log.claim.is_first:
        seconds_running = time.monotonic() - log.started_at
        log.first_event_seconds = log.claim.row.seconds_queued + seconds_running
        metrics.FIRST_EVENT_SECONDS.observe(log.first_event_seconds)
