"""Flushes: move the journaled frames to the permanent event log, about once a second.

Each flush also deletes the journal batches of which every frame is flushed.
"""

import asyncio

from models.config.settings import Settings
from models.db.arrays import Byteas, Ints, Uuids
from models.db.database import Pool, fetch, retry_while_unavailable
from models.db.queries.run import FLUSH
from models.ownership.lease import Lease
from models.ownership.steps import Tail
from worker import metrics
from worker.log.event_log import MAX_ROW_BYTES, EventLog
from worker.log.open_logs import OpenLogs

_MAX_LOGS = 200
"""Logs in one statement."""
_MAX_STATEMENT_BYTES = 4 * 1024 * 1024
"""Bytes of frames in one statement. They are copied several times on their way to Postgres."""


class FlushWriter:
    """Writes the flushes of one process."""

    def __init__(self, settings: Settings, lease: Lease, pool: Pool, logs: OpenLogs) -> None:
        self._interval = settings.worker.flush_interval.total_seconds()
        self._lease = lease
        self._pool = pool
        self._logs = logs
        self._deleted_batch = 0
        """The last batch that was deleted from the journal, and all before it."""

    async def run(self) -> None:
        """Flushes all logs at the interval, and a large log at once. Never returns."""
        while True:
            try:
                async with asyncio.timeout(self._interval):
                    await self._logs.flush_requested.wait()
            except TimeoutError:
                logs = self._logs.with_tail()
            else:
                self._logs.flush_requested.clear()
                logs = self._logs.large()
            # A log that another statement is writing now is left to the next flush.
            await self.flush([log for log in logs if not log.lock.locked()])

    async def flush(self, logs: list[EventLog]) -> None:
        """Flushes these logs. Waits for those that another statement is writing now."""
        ordered = sorted(logs, key=lambda log: log.claim.id)
        for start in range(0, max(1, len(ordered)), _MAX_LOGS):
            await self._flush_locked(ordered[start : start + _MAX_LOGS])

    async def store_large(self, log: EventLog) -> None:
        """Stores the tail of this log, and then its next frame, which is in no journal batch. The
        caller holds the lock of the log."""
        while log.tail:
            tail = log.tail_to_flush(MAX_ROW_BYTES)
            await self._store([(log, tail)], self._deleted_batch)
            log.drop_flushed(tail.last)
        if log.has_large_frame:
            frame = log.next_frame()
            await self._store([(log, frame)], self._deleted_batch)
            log.take_stored(frame.last)
        await self._logs.notify_waiters()

    async def _flush_locked(self, logs: list[EventLog]) -> None:
        for log in logs:
            await log.lock.acquire()
        try:
            while await self._flush_part(logs):
                await self._logs.notify_waiters()
        finally:
            for log in logs:
                log.lock.release()
        await self._logs.notify_waiters()

    async def _flush_part(self, logs: list[EventLog]) -> bool:
        """Flushes as much of the tails as one statement holds; returns whether some is left."""
        tails, is_complete = _cut_tails(logs)
        deletable = self._deletable_batch()
        if tails or deletable > self._deleted_batch:
            with metrics.FLUSH_SECONDS.time():
                await self._store(tails, deletable)
            self._deleted_batch = deletable
            for log, tail in tails:
                log.drop_flushed(tail.last)
        return not is_complete

    async def _store(self, tails: list[tuple[EventLog, Tail]], deletable: int) -> None:
        """Writes one flush, repeated identically until Postgres confirms it."""
        values: dict[str, object] = {
            "me": self._lease.id,
            "ids": Uuids([log.claim.id for log, _ in tails]),
            "firsts": Ints([tail.first for _, tail in tails]),
            "lasts": Ints([tail.last for _, tail in tails]),
            "attempts": Ints([log.attempt for log, _ in tails]),
            "frames": Byteas([tail.frames for _, tail in tails]),
            "trimmed": self._deleted_batch,
            "answered": deletable,
        }

        async def flush() -> bool:
            await self._lease.wait_until_valid()
            return bool(await fetch(self._pool, FLUSH, values))

        if not await retry_while_unavailable(flush, "flush_database_unavailable"):
            self._lease.exit_process()

    def _deletable_batch(self) -> int:
        """The last batch of which every frame is in a confirmed flush, checkpoint or ending."""
        confirmed = self._logs.confirmed_batch
        oldest = min((log.tail[0].batch for log in self._logs.with_tail()), default=confirmed + 1)
        return min(oldest - 1, confirmed)


def _cut_tails(logs: list[EventLog]) -> tuple[list[tuple[EventLog, Tail]], bool]:
    """The tails for one statement, and whether it holds all tails of the logs completely."""
    tails: list[tuple[EventLog, Tail]] = []
    bytes_left, is_complete = _MAX_STATEMENT_BYTES, True
    for log in logs:
        if not log.tail or log.closed:
            continue
        if bytes_left <= 0:
            return tails, False
        tail = log.tail_to_flush(min(bytes_left, MAX_ROW_BYTES))
        bytes_left -= len(tail.frames)
        is_complete = is_complete and tail.last == log.tail[-1].last
        tails.append((log, tail))
    return tails, is_complete
