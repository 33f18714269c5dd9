"""The watch: a task in every process that declares dead processes dead (ADR 0023); and the messages
of responses that wait without an owner, which may have been lost.

What it sees comes with the answers to its process's heartbeats (models/ownership/lookout.py). A
process is declared dead for one of two reasons:

- *Its connections have ended*: the lock of its tie is free, its lease was not renewed for
  `_silence`, and it is not connected to Redis either. This proves little while Postgres is slow or
  has just restarted. So every answer in that time was fast, and this process's own tie and lease
  were intact. While Redis does not answer, nothing is declared dead for this reason.
- *Its lease has expired*, and did not change for `lease.observe`. This decides where the tie says
  nothing: a frozen process, a blocked event loop, a network that hangs, a connection pooler.

A wrong verdict costs time and one crash on record, never an event: the fence rejects all writes of
a process that was declared dead (I5).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import psycopg
import structlog
from prometheus_client import Counter
from redis.asyncio import Redis

from models.celery.queue import JobQueue
from models.config.settings import Settings
from models.db.database import DATABASE_UNAVAILABLE, Connection, Pool, connect, execute, fetch
from models.db.queries import leases
from models.db.queries.leases import WatchedProcess
from models.db.queries.sweep import REENQUEUE
from models.ownership.lease import Lease
from models.ownership.lookout import Sighting
from models.redis.channels import BACKGROUND, INTERACTIVE, QUARANTINE, queue_for, subscription_of
from models.redis.client import REDIS_ERRORS

logger = structlog.get_logger()

_RETRY_DELAY = 0.25
"""Seconds until the next try after an error of Postgres."""
_LISTEN_CHECK = 60.0
"""Seconds. A notification, or the end of the connection, wakes the session before."""
_MAX_LEASE_ANSWER_TIME = 1.0
"""Seconds. If a look took longer, Postgres was stalled and could not renew leases either."""
_MAX_TIE_ANSWER_TIME = 0.5
"""The same for processes whose session has ended, which are declared dead earlier."""
_MIN_SILENCE = 1.5
"""Seconds. See `_silence`."""
_WEB_WAITS = 0.5
"""Seconds by which a web process is slower: it declares dead what no worker has, because none is
left, or all have just started. Workers that start then find the responses without an owner."""
_MIN_TIE_AGE = 5.0
"""Seconds. After a restart of Postgres all processes tie again within this time."""

_Seen = tuple[UUID, datetime]
"""A process and the end of its lease, which moves with each heartbeat."""


class Cause(StrEnum):
    """Why a process was declared dead."""

    CONNECTION_ENDED = "connection ended"
    LEASE_EXPIRED = "lease expired"


_REAP_LOCK = {
    Cause.CONNECTION_ENDED: leases.REAP_LOCK_UNTIED,
    Cause.LEASE_EXPIRED: leases.REAP_LOCK_EXPIRED,
}


class Watch:
    """The watch of one process."""

    def __init__(
        self,
        settings: Settings,
        lease: Lease,
        redis: Redis,
        deaths: Counter,
        on_orphans: Callable[[], None] | None = None,
    ) -> None:
        """`deaths`: counts the processes that this one declares dead. `on_orphans()`: called after
        a process was declared dead, here or elsewhere, and after a worker has handed over its
        responses."""
        self._settings = settings
        self._lease = lease
        self._redis = redis
        self._deaths = deaths
        self._on_orphans = on_orphans
        self._silence = max(_MIN_SILENCE, 3 * settings.lease.beat.total_seconds())
        if lease.kind == "web":
            self._silence += _WEB_WAITS
        """Seconds without a heartbeat after which a process without a session is dead."""
        self._unchanged_since: dict[_Seen, float] = {}
        """When this end of a lease was first seen, in fast answers only."""
        self._expired_since: dict[_Seen, float] = {}
        """When it was first seen expired."""

    async def run(self) -> None:
        """Watches. Never returns."""
        async with asyncio.TaskGroup() as tasks:
            if self._on_orphans is not None:
                tasks.create_task(self._listen(self._on_orphans))
            tasks.create_task(self._watch())

    async def _listen(self, on_orphans: Callable[[], None]) -> None:
        """Waits for the notifications of other processes."""
        while True:
            # While Postgres is away, the heartbeat says so.
            with suppress(*DATABASE_UNAVAILABLE):
                async with await connect(self._settings, str(self._lease.id)) as connection:
                    await execute(connection, leases.LISTEN_FOR_ORPHANS, {})
                    connection.check_interval = _LISTEN_CHECK
                    async for _ in connection.notifies():
                        on_orphans()
            await asyncio.sleep(_RETRY_DELAY)

    async def _watch(self) -> None:
        sightings = self._lease.lookout.sightings()
        while True:
            sighting = await sightings.latest()
            if sighting is None:
                self._forget()
                continue
            try:
                await self._act(sighting)
            except DATABASE_UNAVAILABLE as error:
                # The next sighting shows the same.
                logger.warning("watch_database_unavailable", error=str(error).strip())

    async def _act(self, sighting: Sighting) -> None:
        """Declares dead what is dead."""
        dead = [
            (process, cause)
            for process, cause in self._judge(sighting)
            if cause is Cause.LEASE_EXPIRED or await self._has_left_redis(process)
        ]
        if not dead:
            return
        async with await connect(self._settings, str(self._lease.id)) as connection:
            for process, cause in dead:
                await self._declare_dead(connection, process, cause)
        if self._on_orphans is not None:
            self._on_orphans()

    def _judge(self, sighting: Sighting) -> list[tuple[WatchedProcess, Cause]]:
        """The processes that are dead. All times are of this process's monotonic clock: neither a
        stalled Postgres nor a changed system clock makes a live process look dead. While this
        process's own lease is not renewed, the others' leases prove nothing: Postgres may be
        read-only, or its commits may hang."""
        processes, now, answer_time = sighting.processes, sighting.at, sighting.answer_time
        lease = self._settings.lease.duration.total_seconds()
        if sighting.gap >= lease or answer_time > _MAX_LEASE_ANSWER_TIME:
            self._forget()
            return []
        seen = [(process.id, process.expires_at) for process in processes]
        expired = [key for key, process in zip(seen, processes, strict=True) if process.expired]
        is_answer_fast = answer_time < _MAX_TIE_ANSWER_TIME and sighting.gap < self._silence
        self._unchanged_since = _first_seen(
            self._unchanged_since, seen if is_answer_fast else [], now
        )
        self._expired_since = _first_seen(self._expired_since, expired, now)
        verdicts = ((process, self._cause(process, now)) for process in processes)
        return [(process, cause) for process, cause in verdicts if cause is not None]

    def _cause(self, process: WatchedProcess, now: float) -> Cause | None:
        """The expired lease comes first: then it does not matter what Redis shows."""
        key = (process.id, process.expires_at)
        observe = self._settings.lease.observe.total_seconds()
        if now - self._expired_since.get(key, now) >= observe and process.expired:
            return Cause.LEASE_EXPIRED
        if (
            process.untied
            and now - self._unchanged_since.get(key, now) >= self._silence
            and self._lease.tie.age >= _MIN_TIE_AGE
        ):
            return Cause.CONNECTION_ENDED
        return None

    async def _has_left_redis(self, process: WatchedProcess) -> bool:
        """Whether the process has no subscription in Redis. A process that lives and is only cut
        off from Postgres still has it. False while Redis does not answer."""
        channel = subscription_of(process.kind, process.id)
        try:
            [(_, subscriptions)] = await self._redis.pubsub_numsub(channel)
        except REDIS_ERRORS:
            return False
        return int(subscriptions) == 0

    def _forget(self) -> None:
        self._unchanged_since.clear()
        self._expired_since.clear()

    async def _declare_dead(
        self, connection: Connection, process: WatchedProcess, cause: Cause
    ) -> None:
        try:
            await self._reap(connection, process, cause)
        except psycopg.errors.LockNotAvailable:
            # A suspended process can hold the lock of its fence forever in an open transaction.
            await self._end_sessions(connection, process)
            await self._reap(connection, process, cause)
        if cause is Cause.LEASE_EXPIRED:
            # It may have a seat.
            await self._end_sessions(connection, process)

    async def _end_sessions(self, connection: Connection, process: WatchedProcess) -> None:
        await execute(connection, leases.END_SESSIONS, {"name": str(process.id)})

    async def _reap(self, connection: Connection, process: WatchedProcess, cause: Cause) -> None:
        async with connection.transaction():
            await execute(connection, leases.SET_LOCK_TIMEOUT, {})
            duration = self._settings.lease.duration
            values = {"id": process.id, "seen": process.expires_at, "lease": duration}
            await fetch(connection, leases.REAP_LOCK_FENCE, {"id": process.id})
            if not await fetch(connection, _REAP_LOCK[cause], values):
                return
            ended = f"reaped by {self._lease.id}"
            await execute(connection, leases.REAP, {"id": process.id, "ended": ended})
            await execute(connection, leases.NOTIFY_ORPHANS, {})
        logger.warning("worker_reaped", reaped=str(process.id), cause=cause.value)
        self._deaths.inc()


def _first_seen(before: dict[_Seen, float], keys: list[_Seen], now: float) -> dict[_Seen, float]:
    """When each of these keys was first seen without an interruption."""
    return {key: before.get(key, now) for key in keys}


async def enqueue_waiting(pool: Pool, job_queue: JobQueue, settings: Settings) -> None:
    """Enqueues again up to 200 open responses that have waited for too long without an owner.

    Only into short queues: else each sweep would add a message for each waiting response, and fill
    Redis. Raises what DATABASE_UNAVAILABLE names.
    """
    short = await job_queue.short_queues()
    values = {
        "interval": settings.lease.enqueue_interval,
        **{name: name in short for name in (INTERACTIVE, BACKGROUND, QUARANTINE)},
    }
    responses = await fetch(pool, REENQUEUE, values)
    for response in responses:
        queue = queue_for(background=response.background, crashes=response.crashes)
        job_queue.enqueue(response.id, queue)
    if responses:
        logger.info("responses_requeued", responses=len(responses))
