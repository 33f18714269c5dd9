"""One worker process put together: identity, connections, and the runs it holds. Everything here lives in the pool's event loop.

A bell (a Celery message) and the sweeper both come to `claim_and_run`; the heartbeat, the control channel and SIGTERM come to the
runs through here.
"""

import asyncio
import gc
from dataclasses import dataclass
from uuid import UUID

import structlog
from redis.asyncio import Redis

from models.config.settings import Settings
from models.db.database import DATABASE_UNAVAILABLE, Pool, open_pool
from models.db.queries.leases import OwnedResponse
from models.egress import EgressPolicy
from models.errors import LeaseLost
from models.lifecycle import Status
from models.metrics import serve
from models.ownership.claims import Claim, Ownership, ReleaseReason
from models.ownership.lease import Lease
from models.redis.answer_cache import AnswerCache
from models.redis.client import redis_client
from models.redis.queue import JobQueue
from models.secrets import Sealer
from models.side_tasks import SideTasks
from worker import metrics
from worker.control import ControlListener
from worker.log.journal import Journal
from worker.log.publisher import Publisher
from worker.run.counting import RequestTokenCounter
from worker.run.end_state import StopReason
from worker.run.resources import Resources
from worker.run.runner import Run
from worker.sweeper import Sweeper
from worker.upstream.upstreams import Upstreams

logger = structlog.get_logger()


@dataclass(slots=True)
class Connections:
    """What is opened at start and closed at the end."""

    pool: Pool
    redis: Redis
    upstreams: Upstreams
    job_queue: JobQueue
    cache: AnswerCache

    async def close(self) -> None:
        await asyncio.to_thread(self.job_queue.close)
        await self.upstreams.close()
        await self.cache.close()
        await self.redis.aclose()
        await self.pool.close()


class Engine:
    """A worker process. `slots` is how many responses it runs at a time; the last tenth of them is for those who wait on the line."""

    def __init__(self, settings: Settings, slots: int) -> None:
        self._settings = settings
        self._slots = slots
        self._reserve = slots // 10
        self._lease = Lease(
            settings, "quarantine" if settings.quarantine else "worker", self._on_heartbeat
        )
        self._runs: dict[UUID, Run] = {}
        self._claiming: set[UUID] = set()
        self._claim_tasks: set[asyncio.Task[None]] = set()
        self._side_tasks = SideTasks(self._lease.exit_process)
        self._is_stopping = False

    @property
    def free(self) -> int:
        """Responses that could still begin."""
        return 0 if self._is_stopping else self._slots - len(self._runs) - len(self._claiming)

    @property
    def free_for_background(self) -> int:
        """The same, without what is kept for interactive responses."""
        return max(0, self.free - self._reserve)

    async def start(self) -> None:
        """Connects, takes up the lease and begins to sweep: from here on this worker counts. Raises when Postgres is away."""
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        pool = open_pool(settings, str(self._lease.id), settings.worker.pool_size)
        await pool.open(wait=True)
        live = redis_client(settings, f"worker-{self._lease.id.hex}")
        cache = AnswerCache(settings, f"worker-cache-{self._lease.id.hex}")
        self._connections = Connections(
            pool, live, Upstreams(settings, self._slots), JobQueue(settings), cache
        )
        publisher = Publisher(live)
        journal = Journal(settings, self._lease, pool, publisher)
        self._ownership = Ownership(pool, self._lease, settings)
        self._resources = Resources(
            settings, self._ownership, journal, publisher, pool, self._connections.upstreams, self._connections.job_queue,
            EgressPolicy(settings.egress), Sealer(settings.sealing_keys), RequestTokenCounter(), cache,
        )  # fmt: skip
        self._sweeper = Sweeper(settings, self._lease, pool, self, self._connections.job_queue)
        control = ControlListener(settings, self._lease.id, self.cancel)
        for name, work in {
            "tick": self._lease.tick(),
            "publisher": publisher.run(),
            "journal": journal.batch_writer.run(),
            "flushes": journal.flush_writer.run(),
            "control": control.run(),
        }.items():
            self._side_tasks.start(work, name)
        metrics.SLOTS.set(self._slots)
        metrics.RUNNING.set_function(lambda: len(self._runs))
        metrics.LEASE_AGE.set_function(lambda: self._lease.age)
        serve(settings.metrics, metrics.REGISTRY)
        await asyncio.to_thread(self._lease.register)
        self._side_tasks.start(self._sweeper.run(), "sweeper")
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        logger.info(
            "worker_ready", worker=str(self._lease.id), slots=self._slots, kind=self._lease.kind
        )

    async def claim_and_run(self, response_id: UUID) -> None:
        """Claims the response if it is to be had, and runs it to its end. A bell for anything else is simply dropped."""
        if (
            self.free <= 0
            or response_id in self._runs
            or response_id in self._claiming
            or not self._lease.is_fresh
        ):
            return
        claim = await self._claim(response_id)
        if claim is None:
            return
        metrics.count_claim(claim)
        run = self._runs[response_id] = Run(claim, self._resources)
        if self._is_stopping:
            run.stop(StopReason.HAND_OVER)
        try:
            with structlog.contextvars.bound_contextvars(
                response=str(response_id), attempt=claim.attempt
            ):
                await run.run()
        finally:
            del self._runs[response_id]
            _count_attempt(run)

    def spawn(self, response_id: UUID) -> None:
        """The same without a bell, for the sweeper."""
        task = asyncio.create_task(self.claim_and_run(response_id))
        self._claim_tasks.add(task)
        task.add_done_callback(self._claim_tasks.discard)

    def cancel(self, response_id: UUID) -> None:
        """A cancel was recorded for this response."""
        run = self._runs.get(response_id)
        if run is not None:
            run.stop(StopReason.CANCEL)

    async def stop(self) -> None:
        """Hands everything over (design §4.7): what ends within the grace period ends; the rest is released, its log complete."""
        self._is_stopping = True
        for run in self._runs.values():
            run.drain()
        logger.info("worker_stopping", worker=str(self._lease.id), running=len(self._runs))
        try:
            async with asyncio.timeout(self._settings.worker.grace.total_seconds()):
                await self._wait_until_idle()
        except TimeoutError:
            for run in list(self._runs.values()):
                run.stop(StopReason.HAND_OVER)
            await self._wait_until_idle()
        await self._side_tasks.cancel()
        await asyncio.to_thread(self._lease.deregister)
        await self._connections.close()
        logger.info("worker_stopped", worker=str(self._lease.id))

    async def _wait_until_idle(self) -> None:
        while self._runs or self._claiming:  # noqa: ASYNC110  (only while stopping)
            await asyncio.sleep(0.02)

    async def _claim(self, response_id: UUID) -> Claim | None:
        self._claiming.add(response_id)
        try:
            return await self._ownership.take(response_id)
        except DATABASE_UNAVAILABLE as error:
            # If the claim went through all the same, the next heartbeat finds it among ours, not running, and gives it back.
            logger.warning("claim_unclear", response=str(response_id), error=str(error).strip())
        except LeaseLost:
            logger.warning("claim_refused", response=str(response_id))
        finally:
            self._claiming.discard(response_id)
        return None

    # --- the heartbeat's news ---

    def _on_heartbeat(self, sent: float, responses: list[OwnedResponse]) -> None:
        self._loop.call_soon_threadsafe(self._reconcile, sent, responses)

    def _reconcile(self, sent: float, responses: list[OwnedResponse]) -> None:
        """Both ways: what is ours and does not run is given back; what runs and is not ours is stopped; what others
        have asked for is seen here too."""
        ours = {response.id: response for response in responses}
        for response_id, run in list(self._runs.items()):
            row = ours.get(response_id)
            if (row is None or row.attempt != run.claim.attempt) and run.started_at < sent:
                run.stop(StopReason.LOST)
            elif row is not None and (why := _requested_stop(row, run)) is not None:
                run.stop(why)
        for response_id, row in ours.items():
            if response_id not in self._runs and response_id not in self._claiming:
                self._side_tasks.start(self._give_back(response_id, row.attempt))

    async def _give_back(self, response_id: UUID, attempt: int) -> None:
        try:
            await self._ownership.release_unknown(response_id, attempt)
            metrics.ATTEMPTS.labels(ReleaseReason.RETURNED.value).inc()
        except DATABASE_UNAVAILABLE as error:
            logger.warning("release_unclear", response=str(response_id), error=str(error).strip())


def _count_attempt(run: Run) -> None:
    """What became of an attempt, for the metrics."""
    metrics.ATTEMPTS.labels(run.outcome).inc()
    if run.end_state is not None:
        metrics.RESPONSES_ENDED.labels(run.end_state.status.value).inc()
        if run.end_state.status is Status.FAILED:
            metrics.count_failure(run.end_state.reason)


def _requested_stop(response: OwnedResponse, run: Run) -> StopReason | None:
    """What others requested of the response; a cancel has precedence (I10)."""
    if response.cancelled or response.abandoned:
        return StopReason.CANCEL
    if response.failed:
        return StopReason.FAIL
    # A row that was read before this run's claim belongs to an attempt that was released.
    is_current = response.attempt == run.claim.attempt
    return StopReason.REQUEUE if response.requeued and is_current else None
