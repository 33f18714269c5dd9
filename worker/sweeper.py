"""The sweep (design §4.6): at start and every two seconds, in every worker, without a leader.

*Reap* processes whose lease has run out, *ring* for responses nobody runs, *take* some of them without a bell, *purge* what has
expired. The same code recovers on one laptop and on a hundred workers.
"""

import asyncio
import time
from datetime import datetime
from typing import Protocol
from uuid import UUID

import psycopg
import structlog

from models.config.settings import Settings
from models.db.database import DATABASE_UNAVAILABLE, Connection, Pool, execute, fetch
from models.db.queries import leases, retention, sweep
from models.ownership.lease import Lease
from models.redis.channels import queue_for
from models.redis.queue import JobQueue
from worker import metrics

logger = structlog.get_logger()

_MAX_QUERY_TIME = 1.0
"""Seconds: a slower answer of Postgres proves nothing about anybody's lease."""
_PURGE_PAUSE = 0.1
"""Seconds in which others get their turn."""
_TAKE_FRACTION = 4
"""A sweeper takes at most this fraction (1/n) of its free streams at a time without a bell."""


class Slots(Protocol):
    """Where taken responses run."""

    @property
    def free_for_background(self) -> int: ...

    def spawn(self, response_id: UUID) -> None: ...


class Sweeper:
    """One worker's sweep."""

    def __init__(
        self, settings: Settings, lease: Lease, pool: Pool, slots: Slots, job_queue: JobQueue
    ) -> None:
        self._settings = settings
        self._lease = lease
        self._pool = pool
        self._slots = slots
        self._expired_since: dict[tuple[UUID, datetime], float] = {}
        """(worker, the expires_at it had) -> when, on our own clock, that was first seen expired."""
        self._job_queue = job_queue
        self._last_purge = 0.0

    async def run(self) -> None:
        """Sweeps for ever."""
        while True:
            try:
                await self._sweep()
            except DATABASE_UNAVAILABLE as error:
                logger.warning("sweep_away", error=str(error).strip())
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Seconds to the next sweep; sooner when an expired lease will have been watched for long enough before that."""
        observe = self._settings.lease.observe.total_seconds()
        next_reap = min(
            (since + observe - time.monotonic() for since in self._expired_since.values()),
            default=observe,
        )
        return min(self._settings.lease.sweep.total_seconds(), max(0.1, next_reap))

    async def _sweep(self) -> None:
        await self._reap()
        await self._take()
        await self._enqueue_unowned()
        if (
            time.monotonic() - self._last_purge
            > self._settings.worker.purge_interval.total_seconds()
        ):
            self._last_purge = time.monotonic()
            # To the end, and not only while batches are full: a chain goes from its last response to its first.
            while await fetch(self._pool, retention.PURGE, {}):  # noqa: ASYNC110  (it waits for nobody)
                await asyncio.sleep(_PURGE_PAUSE)  # others get their turn
            await execute(self._pool, retention.DELETE_OLD_WORKERS, {})
            await execute(self._pool, retention.DELETE_EXPIRED_KEYS, {})

    # --- reap ---

    async def _reap(self) -> None:
        """Declares dead whose lease has been seen run out, unchanged, for long enough on our own clock: a stalled Postgres or a stepped
        clock reaps nobody."""
        sent_at = time.monotonic()
        expired = await fetch(self._pool, leases.EXPIRED_LEASES, {})
        now = time.monotonic()
        if now - sent_at > _MAX_QUERY_TIME:
            self._expired_since.clear()
            return
        self._expired_since = {
            key: self._expired_since.get(key, now)
            for key in ((lease.id, lease.expires_at) for lease in expired)
        }
        for (worker, expires_at), since in self._expired_since.items():
            if (
                worker != self._lease.id
                and now - since >= self._settings.lease.observe.total_seconds()
            ):
                await self._declare_dead(worker, expires_at)

    async def _declare_dead(self, worker: UUID, expires_at: datetime) -> None:
        async with self._pool.connection() as connection:
            try:
                await self._reap_one(connection, worker, expires_at)
            except psycopg.errors.LockNotAvailable:
                # A stopped process may hold its row in half a transaction for ever: end its sessions, and try again.
                await execute(connection, leases.END_SESSIONS, {"name": str(worker)})
                await self._reap_one(connection, worker, expires_at)

    async def _reap_one(self, connection: Connection, worker: UUID, expires_at: datetime) -> None:
        async with connection.transaction():
            await execute(connection, leases.SET_LOCK_TIMEOUT, {})
            if await fetch(connection, leases.REAP_LOCK, {"id": worker, "seen": expires_at}):
                await execute(
                    connection,
                    leases.REAP,
                    {"id": worker, "ended": f"reaped by {self._lease.id}"},
                )
                logger.warning("worker_reaped", dead=str(worker))
                metrics.DEATHS.inc()

    # --- take and ring ---

    async def _take(self) -> None:
        share = -(-self._slots.free_for_background // _TAKE_FRACTION)
        if not share or not self._lease.is_fresh:
            return
        values = {
            "waiting": self._settings.lease.ring_interval,
            "max_rows": share,
            "quarantine": self._settings.quarantine,
            "lease": self._settings.lease.duration,
        }
        for orphan_id in await fetch(self._pool, sweep.ORPHANS, values):
            self._slots.spawn(orphan_id)

    async def _enqueue_unowned(self) -> None:
        unowned = await fetch(
            self._pool,
            sweep.REENQUEUE,
            {
                "interval": self._settings.lease.ring_interval,
                "lease": self._settings.lease.duration,
            },
        )
        for response in unowned:
            queue = queue_for(background=response.background, crashes=response.crashes)
            self._job_queue.enqueue(response.id, queue)
        if unowned:
            logger.info("rung_again", responses=len(unowned))
