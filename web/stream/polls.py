"""Polls of PostgreSQL for readers of streams: what the live bus loses is found in the log (I8).

Notifications may be lost at any time, so the logs of readers that get nothing are looked at. While
the bus is disconnected, events come from the journals of the workers whose responses are read.
"""

import asyncio
from uuid import UUID

import structlog

from models.config.settings import Settings
from models.db.arrays import Ints, Uuids
from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch
from models.db.queries.read import JOURNAL_BATCHES, LAST_BATCH, MOVED_LOGS, OWNERS
from web.stream.bus import Bus
from web.stream.inboxes import Inbox

logger = structlog.get_logger()

_POLL_INTERVAL = 0.25
"""Seconds between two polls of the journals while the bus is disconnected."""
_POLLS_PER_LOOK = 4
"""So many polls of the journals are between two looks at the logs of all readers."""
_MAX_POSITIONS = 1000
"""Readers for which one statement looks whether their logs have moved."""
_FAST_POLL_AFTER = 2.0
"""Seconds without a message after which a reader that had just received one reads the log: its
worker may have lost Redis (I8)."""


class LogPolls:
    """The polls of one web process."""

    def __init__(self, settings: Settings, pool: Pool, bus: Bus) -> None:
        self._settings = settings
        self._pool = pool
        self._bus = bus

    async def watch_idle_readers(self) -> None:
        """Looks from time to time whether the logs of idle readers have moved, because a
        notification may be lost."""
        poll = self._settings.web.poll.total_seconds()
        step = min(_FAST_POLL_AFTER / 2, poll / 2)
        while True:
            await asyncio.sleep(step)
            self._bus.drop_prepared()
            idle = []
            for response_id, inbox in self._bus.all_readers():
                inbox.idle_seconds += step
                if inbox.idle_seconds >= (min(_FAST_POLL_AFTER, poll) if inbox.poll_fast else poll):
                    inbox.poll_fast = False
                    inbox.idle_seconds = 0.0
                    idle.append((response_id, inbox))
            try:
                await self._wake_moved(idle)
            except DATABASE_UNAVAILABLE as error:
                logger.warning("idle_poll_failed", error=str(error).strip())
                for _, inbox in idle:
                    inbox.idle_seconds = poll  # again after the next step

    async def _wake_moved(self, readers: list[tuple[UUID, Inbox]]) -> None:
        """Makes those of these readers read the log whose log has moved: one statement for many."""
        for start in range(0, len(readers), _MAX_POSITIONS):
            part = readers[start : start + _MAX_POSITIONS]
            positions = {
                "ids": Uuids([response_id for response_id, _ in part]),
                "numbers": Ints([inbox.number for _, inbox in part]),
                "attempts": Ints([inbox.attempt for _, inbox in part]),
            }
            for place in await fetch(self._pool, MOVED_LOGS, positions):
                part[place - 1][1].wake()

    async def read_journals(self) -> None:
        """While the bus is disconnected, delivers events from the workers' journals, and looks
        once a second whether the readers' logs have moved."""
        while True:
            last: dict[UUID, int] = {}
            polls = 0
            while self._bus.unserved_responses:
                polls += 1
                try:
                    await self._read_new_batches(last)
                    if polls % _POLLS_PER_LOOK == 0:
                        await self._wake_moved(self._bus.all_readers(unserved=True))
                except DATABASE_UNAVAILABLE as error:
                    logger.warning("journal_poll_failed", error=str(error).strip())
                await asyncio.sleep(_POLL_INTERVAL)
            await asyncio.sleep(_POLL_INTERVAL)

    async def _read_new_batches(self, last: dict[UUID, int]) -> None:
        """Delivers the workers' new journal batches; `last`: worker -> the last batch delivered."""
        response_ids = self._bus.unserved_responses
        for worker in await fetch(self._pool, OWNERS, {"ids": response_ids}):
            if worker not in last:
                last[worker] = (await fetch(self._pool, LAST_BATCH, {"worker": worker}))[0]
                self._bus.wake_all(unserved=True)
                continue
            new = {"worker": worker, "last": last[worker]}
            for batch in await fetch(self._pool, JOURNAL_BATCHES, new):
                last[worker] = batch.batch
                for response_id, block in batch.blocks():
                    self._bus.deliver(response_id, block)
