"""Large frames, such as the one with the whole text at the end of an output of many megabytes.

Each is stored in the event log by a statement of its own, and is never in the journal: a batch with
it would take seconds, and all streams of the process would wait for it.
"""

import asyncio
from collections.abc import Callable

from models.db.shared_pool import ACTING_PROJECT
from models.load.fair_queue import FairQueue
from worker.log.event_log import EventLog
from worker.log.flush_writer import FlushWriter
from worker.log.open_logs import OpenLogs

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
