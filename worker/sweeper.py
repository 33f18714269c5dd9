"""The sweep: a periodic task in every worker, without a leader.

It reaps processes with an expired lease, claims some orphans, re-enqueues the others, and purges
what has expired (docs/architecture.md).
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
"""Seconds. If a query took longer, Postgres was stalled and could not renew leases either."""
_PURGE_PAUSE = 0.1
"""Seconds between two batches of a purge, for other statements."""
_TAKE_FRACTION = 4
"""One sweep claims orphans for at most one of this many free slots; other workers get the rest."""


class Slots(Protocol):
    """The slots in which claimed orphans run (the engine)."""

    @property
    def free_for_background(self) -> int: ...

    def spawn(self, response_id: UUID) -> None: ...


class Sweeper:
    """The sweep of one worker."""

    def __init__(
        self, settings: Settings, lease: Lease, pool: Pool, slots: Slots, job_queue: JobQueue
    ) -> None:
        self._settings = settings
        self._lease = lease
        self._pool = pool
        self._slots = slots
        self._expired_since: dict[tuple[UUID, datetime], float] = {}
        """(worker, its `expires_at`) -> monotonic time at which it was first seen expired."""
        self._job_queue = job_queue
        self._last_purge = 0.0

    async def run(self) -> None:
        """Sweeps. Never returns."""
        while True:
            try:
                await self._sweep()
            except DATABASE_UNAVAILABLE as error:
                logger.warning("sweep_database_unavailable", error=str(error).strip())
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Seconds to the next sweep: less if a process can be reaped before a regular one."""
        observe = self._settings.lease.observe.total_seconds()
        next_reap = min(
            (since + observe - time.monotonic() for since in self._expired_since.values()),
            default=observe,
        )
        return min(self._settings.lease.sweep.total_seconds(), max(0.1, next_reap))

    async def _sweep(self) -> None:
        await self._reap()
        await self._claim_orphans()
        await self._reenqueue()
        purge_interval = self._settings.worker.purge_interval.total_seconds()
        if time.monotonic() - self._last_purge > purge_interval:
            self._last_purge = time.monotonic()
            await self._purge()

    async def _purge(self) -> None:
        # Until nothing is left, not until a batch is small: each batch may free the previous
        # responses of a chain.
        while await fetch(self._pool, retention.PURGE, {}):  # noqa: ASYNC110 - not a wait
            await asyncio.sleep(_PURGE_PAUSE)
        await execute(self._pool, retention.DELETE_OLD_WORKERS, {})
        await execute(self._pool, retention.DELETE_EXPIRED_KEYS, {})

    # --- reap ---

    async def _reap(self) -> None:
        """Reaps processes whose lease was expired and unchanged for the setting `lease.observe`.

        The time is measured on this process's monotonic clock: neither a stalled Postgres nor a
        changed system clock makes a live process look dead. While this process's own lease has run
        out, the others' leases prove nothing: Postgres may be read-only, or its commits may hang.
        """
        if not self._lease.is_valid:
            self._expired_since.clear()
            return
        sent_at = time.monotonic()
        expired = await fetch(self._pool, leases.EXPIRED_LEASES, {})
        now = time.monotonic()
        if now - sent_at > _MAX_QUERY_TIME:
            self._expired_since.clear()
            return
        keys = [(lease.id, lease.expires_at) for lease in expired]
        self._expired_since = {key: self._expired_since.get(key, now) for key in keys}
        observe = self._settings.lease.observe.total_seconds()
        for (worker, expires_at), since in self._expired_since.items():
            if worker != self._lease.id and now - since >= observe:
                await self._declare_dead(worker, expires_at)

    async def _declare_dead(self, worker: UUID, expires_at: datetime) -> None:
        async with self._pool.connection() as connection:
            try:
                await self._reap_one(connection, worker, expires_at)
            except psycopg.errors.LockNotAvailable:
                # A suspended process can hold the lock of its row forever in an open transaction.
                await execute(connection, leases.END_SESSIONS, {"name": str(worker)})
                await self._reap_one(connection, worker, expires_at)

    async def _reap_one(self, connection: Connection, worker: UUID, expires_at: datetime) -> None:
        async with connection.transaction():
            await execute(connection, leases.SET_LOCK_TIMEOUT, {})
            if await fetch(connection, leases.REAP_LOCK, {"id": worker, "seen": expires_at}):
                values = {"id": worker, "ended": f"reaped by {self._lease.id}"}
                await execute(connection, leases.REAP, values)
                logger.warning("worker_reaped", reaped=str(worker))
                metrics.DEATHS.inc()

    # --- orphans ---

    async def _claim_orphans(self) -> None:
        max_rows = -(-self._slots.free_for_background // _TAKE_FRACTION)
        if not max_rows or not self._lease.is_fresh:
            return
        values = {
            "waiting": self._settings.lease.ring_interval,
            "max_rows": max_rows,
            "quarantine": self._settings.quarantine,
            "lease": self._settings.lease.duration,
        }
        for orphan_id in await fetch(self._pool, sweep.ORPHANS, values):
            self._slots.spawn(orphan_id)

    async def _reenqueue(self) -> None:
        """Sends the Celery message again for responses that still have no owner."""
        lease = self._settings.lease
        values = {"interval": lease.ring_interval, "lease": lease.duration}
        responses = await fetch(self._pool, sweep.REENQUEUE, values)
        for response in responses:
            queue = queue_for(background=response.background, crashes=response.crashes)
            self._job_queue.enqueue(response.id, queue)
        if responses:
            logger.info("responses_requeued", responses=len(responses))
