"""The event logs of the responses that this process runs, and the bytes that they hold."""

import asyncio
from collections.abc import Callable

from models.config.settings import Settings
from worker.log.event_log import EventLog

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

    def add(self, log: EventLog) -> None:
        """Opens the log: its frames are journaled and flushed from now on."""
        self.all.add(log)

    def remove(self, log: EventLog) -> None:
        """Closes the log: all its frames are in confirmed transactions, or are not to be stored."""
        self.all.discard(log)
        self._dirty.pop(log, None)
        self._held_bytes -= log.size
        log.close()

    def add_bytes(self, written: int) -> None:
        """Counts bytes that were written to a log."""
        self._held_bytes += written

    def mark_dirty(self, log: EventLog, *, may_wait: bool = False) -> None:
        """Requests a batch for the log's fresh frames, and a flush if the log is large. If they
        `may_wait`, others have the time of `journal_gap` to come into the same batch."""
        self._dirty[log] = None
        self.request_flush([log])
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
        self._held_bytes = sum(log.size for log in self.all)
        async with self._progress:
            self._progress.notify_all()

    async def wait_for_room(self, log: EventLog) -> None:
        """Waits until the log may take more bytes (I12).

        This slows the upstream down while Postgres is slow.
        """
        if self._is_over_limit(log):
            await self._wait_until(lambda: not self._is_over_limit(log))

    async def wait_until_journaled(self, log: EventLog) -> None:
        """Waits until every frame of the log is in a confirmed batch or flush."""
        await self._wait_until(lambda: log.closed or self._is_journaled(log))

    async def wait_for_small_tail(self, log: EventLog) -> None:
        """Waits until the log is small enough for one statement; flushes store the rest before."""
        await self._wait_until(lambda: log.closed or log.size <= self._tail_bytes)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        async with self._progress:
            await self._progress.wait_for(condition)

    def _is_over_limit(self, log: EventLog) -> bool:
        limit = self._tail_bytes if self._held_bytes <= _MAX_HELD_BYTES else _SMALL
        return log.size > limit and not log.closed

    def _is_journaled(self, log: EventLog) -> bool:
        is_confirmed = not log.tail or log.tail[-1].batch <= self.confirmed_batch
        return is_confirmed and not log.fresh
