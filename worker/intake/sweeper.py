"""The sweep: a periodic task in every worker, without a leader.

It claims some orphans, and re-enqueues the others (docs/architecture.md). Which processes are dead
is decided by the watch (models/ownership/watch.py). After a death, and when the worker has started,
the sweep runs at once, and claims as many orphans as there are free slots.
"""

import asyncio
import contextlib
import random
from uuid import UUID

import structlog

from models.celery.queue import JobQueue
from models.config.settings import Settings
from models.db.database import DATABASE_UNAVAILABLE, RETRY_DELAY, Pool, fetch
from models.db.queries import sweep
from models.db.queries.leases import LIVE_WORKERS
from models.ownership.lease import Lease
from models.ownership.watch import enqueue_waiting
from worker.intake.capacity import Capacity
from worker.intake.intake import Intake

logger = structlog.get_logger()

_TAKE_FRACTION = 4
"""A regular sweep claims orphans for at most one of this many free slots; other workers get the
rest."""
_INTERRUPTED = 16
"""Responses of crashed workers that a full worker keeps in mind: they share with the line the slots
that become free until the next sweep."""
_SHARE_PAUSE = 0.1
"""Seconds between two shares of the orphans of a dead process."""


class Sweeper:
    """The sweep of one worker."""

    def __init__(
        self,
        settings: Settings,
        lease: Lease,
        pool: Pool,
        capacity: Capacity,
        intake: Intake,
        job_queue: JobQueue,
    ) -> None:
        self._settings = settings
        self._lease = lease
        self._pool = pool
        self._capacity = capacity
        self._intake = intake
        self._job_queue = job_queue
        self._has_orphans = asyncio.Event()
        # At its start: nobody may have claimed what others left.
        self._has_orphans.set()

    def claim_now(self) -> None:
        """Starts a sweep at once, which claims all orphans that fit: a process died, or has handed
        its responses over."""
        self._has_orphans.set()

    async def run(self) -> None:
        """Sweeps. Never returns."""
        while True:
            claims_all = self._has_orphans.is_set()
            self._has_orphans.clear()
            try:
                await self._sweep(claims_all=claims_all)
            except DATABASE_UNAVAILABLE as error:
                logger.warning("sweep_database_unavailable", error=str(error).strip())
                if claims_all:
                    await asyncio.sleep(RETRY_DELAY)
                    self._has_orphans.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.lease.sweep.total_seconds()):
                    await self._has_orphans.wait()

    async def _sweep(self, *, claims_all: bool) -> None:
        is_due = claims_all or self._lease.has_open
        if is_due:
            [is_due] = await fetch(self._pool, sweep.IS_DUE, {})
        if not is_due:
            self._intake.line.interrupted([])
            return
        await self._end_orphans()
        if claims_all and not self._settings.quarantine:
            await self._claim_all_orphans()
            return
        free = self._capacity.free_for_background
        share = -(-free // _TAKE_FRACTION)
        self._intake.spawn(await self._orphans(share))
        if not self._settings.quarantine:
            self._intake.line.choose_old(
                min(share, self._capacity.free_for_background),
                self._settings.lease.enqueue_interval,
            )
            interrupted = [] if free else await self._orphans(_INTERRUPTED, in_line=False)
            self._intake.line.interrupted(interrupted)
            if not free:
                self._intake.line.expect_background()
        await enqueue_waiting(self._pool, self._job_queue, self._settings)

    async def _end_orphans(self) -> None:
        """Claims orphans that are only to be ended, also if the worker is full."""
        values = {"max_rows": self._capacity.free_for_endings}
        self._intake.spawn(await fetch(self._pool, sweep.ORPHANS_TO_END, values), to_end=True)

    async def _claim_all_orphans(self) -> None:
        """Claims orphans until no slot is free, or it has tried to claim all. Each worker takes
        its share of them at random, then of those that are left, so that few claims collide."""
        tried: set[UUID] = set()
        while free := self._capacity.free_for_background:
            orphans = [each for each in await self._orphans(free + len(tried)) if each not in tried]
            if not orphans:
                return
            share = random.sample(orphans, -(-len(orphans) // await self._live_workers()))[:free]
            self._intake.spawn(share)
            tried.update(share)
            await asyncio.sleep(_SHARE_PAUSE)

    async def _live_workers(self) -> int:
        """How many workers have a valid lease, this one included."""
        counts = await fetch(self._pool, LIVE_WORKERS, {})
        return max(1, sum(each.live for each in counts if each.kind == "worker"))

    async def _orphans(self, max_rows: int, *, in_line: bool = True) -> list[UUID]:
        if not max_rows or not self._lease.is_fresh:
            return []
        values = {
            "waiting": self._settings.lease.enqueue_interval,
            "max_rows": max_rows,
            "quarantine": self._settings.quarantine,
            "in_line": in_line,
        }
        return await fetch(self._pool, sweep.ORPHANS, values)
