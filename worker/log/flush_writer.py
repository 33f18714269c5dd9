"""Flushes: move the journaled frames to the permanent event log, about once a second.

Each flush also deletes the journal batches of which every frame is flushed.
"""

import asyncio
import itertools
from collections.abc import Iterable

from models.config.settings import Settings
from models.db.arrays import Byteas, Ints, Uuids
from models.db.database import Pool, fetch, retry_while_unavailable
from models.db.queries.run import FLUSH
from models.ownership.lease import Lease
from models.ownership.steps import Tail
from worker import metrics
from worker.log.event_log import MAX_ROW_BYTES, EventLog, OpenLogs

_MAX_LOGS = 200
"""Logs in one statement."""
_MAX_STATEMENT_BYTES = 1024 * 1024
"""Bytes of frames in one statement, about. The small logs come first: they never wait for those of
outputs of megabytes."""


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

    async def flush(self, logs: Iterable[EventLog]) -> None:
        """Flushes what the tails of these logs hold now. Waits for logs that another statement is
        writing."""
        ends = {
            log: log.tail[-1].last for log in sorted(logs, key=lambda log: log.size) if log.tail
        }
        if not ends:
            await self._flush_part([])
        while ends:
            part = _next_part(ends)
            await self._flush_part(part)
            for log in part:
                end = ends.pop(log)
                if log.flushed_number < end:
                    ends[log] = end

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

    async def _flush_part(self, logs: list[EventLog]) -> None:
        """Flushes a row of each of these logs with one statement, and trims the journal."""
        ordered = sorted(logs, key=lambda log: log.claim.id)
        for log in ordered:
            await log.lock.acquire()
        try:
            tails = [(log, log.tail_to_flush(MAX_ROW_BYTES)) for log in ordered if log.tail]
            deletable = self._deletable_batch()
            if tails or deletable > self._deleted_batch:
                with metrics.FLUSH_SECONDS.time():
                    await self._store(tails, deletable)
                self._deleted_batch = max(self._deleted_batch, deletable)
                for log, tail in tails:
                    log.drop_flushed(tail.last)
        finally:
            for log in ordered:
                log.lock.release()
        await self._logs.notify_waiters()

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

        size = sum(len(tail.frames) for _, tail in tails)

        async def flush() -> bool:
            await self._lease.wait_until_valid()
            return bool(await fetch(self._pool, FLUSH, values, size=size))

        if not await retry_while_unavailable(flush, "flush_database_unavailable"):
            self._lease.exit_process()

    def _deletable_batch(self) -> int:
        """The last batch of which every frame is in a confirmed flush, checkpoint or ending."""
        confirmed = self._logs.confirmed_batch
        oldest = min((log.tail[0].batch for log in self._logs.with_tail()), default=confirmed + 1)
        return min(oldest - 1, confirmed)


def _next_part(logs: Iterable[EventLog]) -> list[EventLog]:
    """The logs for the next statement, in their order. Each is locked until it is confirmed, and
    its ending waits: so a statement is short, and takes no log that another one is writing, unless
    there are no others."""
    part: list[EventLog] = []
    size = 0
    for log in logs:
        if size > _MAX_STATEMENT_BYTES or len(part) == _MAX_LOGS:
            break
        if not log.lock.locked():
            part.append(log)
            size += min(log.size, MAX_ROW_BYTES)
    return part or list(itertools.islice(logs, 1))
