"""Journal, then publish (design §5).

All new frames of all streams of this process go out as one INSERT into `journal`; when it has returned, the same frames are shown.
So nothing is ever shown that is not stored. About once a second the tails move on into `event_log`, and the journal forgets the
batches that *answered* flushes cover. A statement without an answer is repeated identically before anything newer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import LiteralString

import structlog
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from models.config.settings import Settings
from models.db.arrays import Byteas, Ints, Uuids
from models.db.database import DATABASE_UNAVAILABLE, Pool, Row, connect, fetch, fetch_on
from models.db.queries import statements
from models.ownership.claims import Tail
from models.ownership.lease import Lease
from models.wire.events import Event
from worker import metrics
from worker.log.event_log import Block, EventLog
from worker.log.publisher import Publisher

logger = structlog.get_logger()

_MAX_PROCESS_TAIL = 64 * 1024 * 1024
"""Bytes that no answered flush covers, all streams together, beyond which no upstream is read."""
_MAX_STATEMENT = 4 * 1024 * 1024
"""Bytes of frames in one statement, or one frame: each is copied several times on its way to Postgres."""
_MAX_ROW = 256 * 1024
"""Bytes of frames of one response in one statement, or one frame: readers read whole rows."""
_MAX_FLUSH_ROWS = 200
_RETRY_DELAY = 0.5


class Journal:
    """One process's writer of frames. Everything runs in one event loop."""

    def __init__(self, settings: Settings, lease: Lease, pool: Pool, publisher: Publisher) -> None:
        self._settings = settings
        self._lease = lease
        self._pool = pool
        self._publisher = publisher
        self._logs: set[EventLog] = set()
        self._dirty: dict[EventLog, None] = {}
        self._wake = asyncio.Event()
        self._flush_requested = asyncio.Event()
        self._progress = asyncio.Condition()
        self._batch = 0
        self._confirmed_batch = 0
        self._trimmed = 0
        self._held_bytes = 0
        """Bytes in all logs together, as of the last answer, and what was written since."""
        self._connection: AsyncConnection[DictRow] | None = None

    def open(self, log: EventLog) -> None:
        """From now on this log's frames are journalled and flushed."""
        self._logs.add(log)

    def close(self, log: EventLog) -> None:
        """The log is done with: everything of it is in answered transactions, or void."""
        self._logs.discard(log)
        self._dirty.pop(log, None)
        self._held_bytes -= log.size
        log.close()

    def mark_dirty(self, log: EventLog, written: int) -> None:
        """The log has `written` more bytes of fresh frames."""
        self._dirty[log] = None
        self._held_bytes += written
        self._wake.set()
        if log.size >= self._settings.worker.flush_bytes:
            self._flush_requested.set()

    def write(self, log: EventLog, events: Iterable[Event]) -> None:
        """Numbers and encodes the events, and sees to it that they are stored and shown."""
        written = log.write(events)
        if written:
            self.mark_dirty(log, written)
            if not log.has_first_event:
                _observe_first_event(log)

    async def store_then_publish(
        self, log: EventLog, events: Iterable[Event], store: Callable[[Tail], Awaitable[None]]
    ) -> None:
        """Has `store` write these events and all that the log holds before them; only when it is answered are they shown.

        So whoever has seen them can rely on what was written beside them. Must not be cancelled half-way (worker/uncancellable.py); raises
        what `store` raises.
        """
        await self.wait_for_small_tail(log)
        async with log.lock:
            log.is_journal_paused = True
            try:
                self._held_bytes += log.write(events)
                tail = log.unflushed()
                await store(tail)
                block = log.take_stored(tail.last)
            finally:
                log.is_journal_paused = False
                self.mark_dirty(log, 0)
        if block is not None:
            self._publish(log, block)
        await self._notify_waiters()

    async def wait_for_room(self, log: EventLog) -> None:
        """Returns when the log may take more: back-pressure on the upstream while Postgres is slow (I12)."""
        if not self._is_over_limit(log):
            return
        async with self._progress:
            await self._progress.wait_for(lambda: not self._is_over_limit(log))

    async def wait_until_journaled(self, log: EventLog) -> None:
        """Returns when every frame of the log is in an answered batch or flush."""
        async with self._progress:
            await self._progress.wait_for(
                lambda: (
                    log.closed
                    or (
                        not log.fresh
                        and (not log.tail or log.tail[-1].batch <= self._confirmed_batch)
                    )
                )
            )

    async def wait_for_small_tail(self, log: EventLog) -> None:
        """Returns when an ending has little left to store besides itself: a large tail goes ahead, in pieces."""
        async with self._progress:
            await self._progress.wait_for(
                lambda: log.closed or log.size <= self._settings.worker.tail_bytes
            )

    def _is_over_limit(self, log: EventLog) -> bool:
        return not log.closed and (
            log.size > self._settings.worker.tail_bytes or self._held_bytes > _MAX_PROCESS_TAIL
        )

    async def _notify_waiters(self) -> None:
        self._held_bytes = sum(log.size for log in self._logs)
        async with self._progress:
            self._progress.notify_all()

    # --- batches ---

    async def run(self) -> None:
        """Writes batches for ever: at once when idle, then at least `journal_gap` apart."""
        gap = self._settings.worker.journal_gap.total_seconds()
        while True:
            await self._wake.wait()
            self._wake.clear()
            started_at = time.monotonic()
            logs = [
                log
                for log in self._dirty
                if log.fresh and not log.closed and not log.is_journal_paused
            ]
            self._dirty.clear()
            if logs:
                await self._write_batch(logs)
                await asyncio.sleep(max(0.0, gap - (time.monotonic() - started_at)))

    async def _write_batch(self, logs: list[EventLog]) -> None:
        self._batch += 1
        blocks = list(self._cut_blocks(logs))
        with metrics.JOURNAL_SECONDS.time():
            await self._store(blocks)
        metrics.EVENTS.inc(sum(block.last - block.first + 1 for _, block in blocks))
        self._confirmed_batch = self._batch
        for log, block in blocks:
            self._publish(log, block)
        if any(log.size >= self._settings.worker.flush_bytes for log, _ in blocks):
            self._flush_requested.set()
        await self._notify_waiters()

    def _cut_blocks(self, logs: list[EventLog]) -> Iterator[tuple[EventLog, Block]]:
        """A block of each log, until the statement is full; what is left over goes into the next one."""
        room = _MAX_STATEMENT
        for log in logs:
            if room > 0:
                block = log.cut_block(self._batch, min(room, _MAX_ROW))
                room -= len(block.frames)
                yield log, block
            if log.fresh:
                self._dirty[log] = None
                self._wake.set()

    def _publish(self, log: EventLog, block: Block) -> None:
        self._publisher.publish(
            log.channel, b"%d %d %d\n%b" % (log.attempt, block.first, block.last, block.frames)
        )

    async def _store(self, blocks: list[tuple[EventLog, Block]]) -> None:
        values = {
            "me": self._lease.id,
            "batch": self._batch,
            "ids": Uuids([log.claim.id for log, _ in blocks]),
            "attempts": Ints([log.attempt for log, _ in blocks]),
            "firsts": Ints([block.first for _, block in blocks]),
            "lasts": Ints([block.last for _, block in blocks]),
            "frames": Byteas([block.frames for _, block in blocks]),
        }
        while True:
            outcome = (await self._execute_with_retry(statements.JOURNAL, values))[0]
            if outcome["me"] and outcome["mark"]:
                return
            if not outcome["me"]:
                self._lease.exit_process()
            logger.warning("journal_emptied", batch=self._batch)
            await self._flush(list(self._logs), wait=True)
            await self._execute_with_retry(statements.MARK_JOURNAL, {"me": self._lease.id})

    async def _execute_with_retry(self, sql: LiteralString, values: dict[str, object]) -> list[Row]:
        """The rows of a statement on the journal's own connection, repeated identically until there is an answer."""
        while True:
            await self._lease.wait_until_valid()
            try:
                if self._connection is None:
                    self._connection = await connect(self._settings, str(self._lease.id))
                    # The row lock of the fence would cost a disk sync each time; a crash empties this table anyway.
                    await self._connection.execute("SET synchronous_commit = off")
                return await fetch_on(self._connection, sql, values)
            except DATABASE_UNAVAILABLE as error:
                logger.warning("journal_away", error=str(error).strip())
                if self._connection is not None:
                    await self._connection.close()
                    self._connection = None
                await asyncio.sleep(_RETRY_DELAY)

    # --- flushes ---

    async def run_flushes(self) -> None:
        """Moves tails on into the event log: all of them at the interval, a large one at once."""
        interval = self._settings.worker.flush_interval.total_seconds()
        while True:
            try:
                async with asyncio.timeout(interval):
                    await self._flush_requested.wait()
            except TimeoutError:
                logs = [log for log in self._logs if log.tail]
            else:
                self._flush_requested.clear()
                logs = [
                    log
                    for log in self._logs
                    if log.tail and log.size >= self._settings.worker.flush_bytes
                ]
            await self._flush(logs, wait=False)

    async def _flush(self, logs: list[EventLog], *, wait: bool) -> None:
        """`wait`: also those whose log another statement is writing right now, after it."""
        ready = sorted(
            (log for log in logs if wait or not log.lock.locked()), key=lambda log: log.claim.id
        )
        for start in range(0, max(1, len(ready)), _MAX_FLUSH_ROWS):
            await self._flush_some(ready[start : start + _MAX_FLUSH_ROWS])

    async def _flush_some(self, logs: list[EventLog]) -> None:
        for log in logs:
            await log.lock.acquire()
        try:
            while await self._flush_part(logs):
                await self._notify_waiters()
        finally:
            for log in logs:
                log.lock.release()
        await self._notify_waiters()

    async def _flush_part(self, logs: list[EventLog]) -> bool:
        """One statement of these logs' tails; whether it was too full for all of them."""
        tails: list[tuple[EventLog, Tail]] = []
        room, is_full = _MAX_STATEMENT, False
        for log in (log for log in logs if log.tail and not log.closed):
            if room <= 0:
                is_full = True
                break
            tail = log.tail_to_flush(min(room, _MAX_ROW))
            room -= len(tail.frames)
            is_full = is_full or tail.last < log.tail[-1].last
            tails.append((log, tail))
        deletable = self._deletable()
        if tails or deletable > self._trimmed:
            values = {
                "me": self._lease.id,
                "ids": Uuids([log.claim.id for log, _ in tails]),
                "firsts": Ints([tail.first for _, tail in tails]),
                "lasts": Ints([tail.last for _, tail in tails]),
                "attempts": Ints([log.attempt for log, _ in tails]),
                "frames": Byteas([tail.frames for _, tail in tails]),
                "answered": deletable,
            }
            with metrics.FLUSH_SECONDS.time():
                await self._flush_with_retry(values)
            self._trimmed = deletable
            for log, tail in tails:
                log.drop_flushed(tail.last)
        return is_full

    async def _flush_with_retry(self, values: dict[str, object]) -> None:
        while True:
            await self._lease.wait_until_valid()
            try:
                if not await fetch(self._pool, statements.FLUSH, values):
                    self._lease.exit_process()
            except DATABASE_UNAVAILABLE as error:
                logger.warning("flush_away", error=str(error).strip())
                await asyncio.sleep(_RETRY_DELAY)
            else:
                return

    def _deletable(self) -> int:
        """The last batch of which every frame is in an answered flush, checkpoint or ending."""
        oldest = min(
            (log.tail[0].batch for log in self._logs if log.tail), default=self._confirmed_batch + 1
        )
        return min(oldest - 1, self._confirmed_batch)


def _observe_first_event(log: EventLog) -> None:
    """Measures how long the first word of a response took, once it is there: what comes after `response.in_progress`."""
    if log.next_number > log.claim.log_end + 2:
        log.has_first_event = True
        if log.attempt == 1:
            metrics.FIRST_EVENT_SECONDS.observe(
                log.claim.row["seconds_queued"] + time.monotonic() - log.started_at
            )
