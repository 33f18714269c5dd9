"""Batches: all new frames of all logs of this process as one INSERT into the journal.

Large frames, such as the one with the whole text at the end of an output of many megabytes, are
never in the journal: a batch with one would take seconds, and all streams of the process would wait
for it. Each is stored in the event log by a statement of its own.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import structlog

from models.config.settings import Settings
from models.db.arrays import Byteas, Ints, Uuids
from models.db.connection import ACTING_PROJECT
from models.db.database import (
    DATABASE_UNAVAILABLE,
    Connection,
    connect,
    execute,
    fetch,
    retry_while_unavailable,
)
from models.db.queries.leases import MARK_JOURNAL, SET_JOURNAL_COMMIT
from models.db.queries.run import JOURNAL, JournalOutcome
from models.load.fair_queue import FairQueue
from models.ownership.lease import Lease
from worker import metrics
from worker.log.event_log import MAX_ROW_BYTES, Block, EventLog, OpenLogs
from worker.log.flush_writer import FlushWriter

logger = structlog.get_logger()

_AT_ONCE = 2
"""Logs whose large frames are stored at a time, of two projects. Each takes part of a second of the
event loop."""


class LargeFrames:
    """Stores the large frames of one process."""

    def __init__(
        self, logs: OpenLogs, flush_writer: FlushWriter, announce: Callable[[EventLog], None]
    ) -> None:
        """`announce` is called after each frame: it makes the readers of this log read it. An inbox
        has no room for such a frame."""
        self._logs = logs
        self._flush_writer = flush_writer
        self._announce = announce
        self._slots = FairQueue(_AT_ONCE)
        self._waiting: asyncio.Queue[EventLog] = asyncio.Queue()

    def store(self, log: EventLog) -> None:
        """Stores the large frame that is next in this log, and returns at once."""
        log.is_stored_apart = True
        self._waiting.put_nowait(log)

    async def run(self) -> None:
        """Stores what is to be stored. Never returns."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._store(await self._waiting.get()))

    async def _store(self, log: EventLog) -> None:
        project = log.claim.row.project_id
        ACTING_PROJECT.set(project)
        async with self._slots.permit(project), log.lock:
            # The journal is paused if the ending was stored meanwhile, with all frames.
            while log.has_large_frame and not log.is_journal_paused:
                await self._flush_writer.store_large(log)
                self._announce(log)
        log.is_stored_apart = False
        if log.fresh and not log.closed:
            self._logs.mark_dirty(log)


_MAX_BYTES = 1024 * 1024
"""Bytes of frames in one batch: all streams of the process wait for it."""
_MANY_LOGS = 64
_LONGEST_GAP = 5
"""After a batch of `_MANY_LOGS` logs the next one waits for so many times `journal_gap`, after a
smaller one for less. A batch costs a statement, a message and a read in each web process, whatever
is in it: of many streams more come together, and each delta costs half. 25 ms is not seen."""


class BatchWriter:
    """Writes the batches of one process, on a connection that nothing else uses."""

    def __init__(
        self,
        settings: Settings,
        lease: Lease,
        logs: OpenLogs,
        flush_writer: FlushWriter,
        large_frames: LargeFrames,
        publish: Callable[[EventLog, Block], None],
    ) -> None:
        """`publish` is called for each block after Postgres has confirmed its batch."""
        self.connection: Connection | None = None
        self.before_batch: Callable[[], None] = lambda: None
        """Called before the logs of a batch are taken."""
        self._settings = settings
        self._lease = lease
        self._logs = logs
        self._flush_writer = flush_writer
        self._large_frames = large_frames
        self._publish = publish
        self._batch = 0
        """Number of the present or last batch."""

    async def run(self) -> None:
        """Writes batches: at once after a pause, else one per `journal_gap`, or per a few of them
        while many logs are written. Never returns."""
        while True:
            await self._logs.batch_requested.wait()
            self.before_batch()
            self._logs.batch_requested.clear()
            started_at = time.monotonic()
            logs = self._logs.take_dirty()
            if logs:
                await self.write(logs)
                gap = self._gap_after(len(logs))
                await asyncio.sleep(max(0.0, gap - (time.monotonic() - started_at)))

    def _gap_after(self, logs: int) -> float:
        """Seconds from the start of a batch of so many logs to the start of the next one."""
        share_of_many = min(logs, _MANY_LOGS) / _MANY_LOGS
        shortest = self._settings.worker.journal_gap.total_seconds()
        return shortest * (1 + (_LONGEST_GAP - 1) * share_of_many)

    async def write(self, logs: list[EventLog]) -> None:
        """Writes the fresh frames of these logs as one batch, then publishes them."""
        small = []
        for log in logs:
            if log.has_large_frame:
                self._large_frames.store(log)
            else:
                small.append(log)
        if small:
            await self._write_batch(small)

    async def _write_batch(self, logs: list[EventLog]) -> None:
        self._batch += 1
        blocks = self._cut_blocks(logs)
        with metrics.JOURNAL_SECONDS.time():
            await self._store(blocks)
        self._logs.confirmed_batch = self._batch
        for log, block in blocks:
            self._publish(log, block)
        self._logs.request_flush([log for log, _ in blocks])
        await self._logs.notify_waiters()

    def _cut_blocks(self, logs: list[EventLog]) -> list[tuple[EventLog, Block]]:
        """One block of each log, of an equal share, until the batch is full. The rest goes into the
        next one, before all the logs that have a block in this one."""
        blocks: list[tuple[EventLog, Block]] = []
        bytes_left = _MAX_BYTES
        for log in logs:
            if bytes_left <= 0:
                break
            share = bytes_left // (len(logs) - len(blocks))
            block = log.cut_block(self._batch, min(share, MAX_ROW_BYTES))
            bytes_left -= len(block.frames)
            blocks.append((log, block))
        for log in [*logs[len(blocks) :], *logs[: len(blocks)]]:
            if log.fresh:
                self._logs.mark_dirty(log)
        return blocks

    async def _store(self, blocks: list[tuple[EventLog, Block]]) -> None:
        """Inserts the batch. If Postgres has truncated the journal, flushes every log first.

        A crash of Postgres truncates the unlogged journal. Unflushed frames of earlier batches are
        then only in the memory of this process, and would be lost if it crashed too.
        """
        values: dict[str, object] = {
            "me": self._lease.id,
            "batch": self._batch,
            "ids": Uuids([log.claim.id for log, _ in blocks]),
            "attempts": Ints([log.attempt for log, _ in blocks]),
            "firsts": Ints([block.first for _, block in blocks]),
            "lasts": Ints([block.last for _, block in blocks]),
            "frames": Byteas([block.frames for _, block in blocks]),
        }
        while True:
            outcome = await retry_while_unavailable(
                lambda: self._insert(values), "journal_database_unavailable"
            )
            if not outcome.live:
                self._lease.exit_process()
            if outcome.marked:
                return
            logger.warning("journal_truncated", batch=self._batch)
            await self._flush_writer.flush(list(self._logs.all))
            await retry_while_unavailable(self._mark_journal, "journal_database_unavailable")

    async def _insert(self, values: dict[str, object]) -> JournalOutcome:
        async with self._connected() as connection:
            return (await fetch(connection, JOURNAL, values))[0]

    async def _mark_journal(self) -> None:
        async with self._connected() as connection:
            await execute(connection, MARK_JOURNAL, {"me": self._lease.id})

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Connection]:
        """The connection, opened if necessary, and closed if Postgres becomes unavailable.

        Waits until the lease is valid.
        """
        await self._lease.wait_until_valid()
        try:
            if self.connection is None:
                self.connection = await connect(
                    self._settings, str(self._lease.id), self._lease.timeline.check
                )
                await execute(self.connection, SET_JOURNAL_COMMIT, {})
            yield self.connection
        except DATABASE_UNAVAILABLE:
            if self.connection is not None:
                await self.connection.close()
                self.connection = None
            raise
