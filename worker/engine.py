"""One worker process: its lease, its connections and its runs, all in the pool's event loop.

A Celery message and the sweeper both start a response with `claim_and_run`. The heartbeat, the
control channel and SIGTERM stop runs through the engine.
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
from worker.slots import reserved_slots
from worker.sweeper import Sweeper
from worker.upstream.upstreams import Upstreams

logger = structlog.get_logger()


@dataclass(slots=True)
class Connections:
    """The connections of the process, opened at its start and closed at its end."""

    pool: Pool
    redis: Redis
    upstreams: Upstreams
    job_queue: JobQueue
    cache: AnswerCache

    async def close(self) -> None:
        """Closes all of them."""
        await asyncio.to_thread(self.job_queue.close)
        await self.upstreams.close()
        await self.cache.close()
        await self.redis.aclose()
        await self.pool.close()


class Engine:
    """A worker process."""

    def __init__(self, settings: Settings, slots: int) -> None:
        """`slots`: how many responses run at a time (worker/slots.py)."""
        self._settings = settings
        self._slots = slots
        self._reserved = reserved_slots(slots)
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
        """Free slots; none while the process stops."""
        return 0 if self._is_stopping else self._slots - len(self._runs) - len(self._claiming)

    @property
    def free_for_background(self) -> int:
        """Free slots without those reserved for foreground responses."""
        return max(0, self.free - self._reserved)

    async def start(self) -> None:
        """Connects, registers the lease and begins to sweep.

        Raises what DATABASE_UNAVAILABLE names if Postgres is unavailable.
        """
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        pool = open_pool(settings, str(self._lease.id), settings.worker.pool_size)
        await pool.open(wait=True)
        redis = redis_client(settings, f"worker-{self._lease.id.hex}")
        self._connections = connections = Connections(
            pool=pool,
            redis=redis,
            upstreams=Upstreams(settings, self._slots),
            job_queue=JobQueue(settings),
            cache=AnswerCache(settings, f"worker-cache-{self._lease.id.hex}"),
        )
        publisher = Publisher(redis)
        journal = Journal(settings, self._lease, pool, publisher)
        self._ownership = Ownership(pool, self._lease, settings)
        self._resources = Resources(
            settings=settings,
            ownership=self._ownership,
            journal=journal,
            publisher=publisher,
            pool=pool,
            upstreams=connections.upstreams,
            job_queue=connections.job_queue,
            egress=EgressPolicy(settings.egress),
            sealer=Sealer(settings.sealing_keys),
            token_counter=RequestTokenCounter(),
            cache=connections.cache,
        )
        sweeper = Sweeper(settings, self._lease, pool, self, connections.job_queue)
        control = ControlListener(settings, self._lease.id, self.cancel)
        self._side_tasks.start(self._lease.tick(), "tick")
        self._side_tasks.start(publisher.run(), "publisher")
        self._side_tasks.start(journal.batch_writer.run(), "journal")
        self._side_tasks.start(journal.flush_writer.run(), "flushes")
        self._side_tasks.start(control.run(), "control")
        self._serve_metrics()
        await asyncio.to_thread(self._lease.register)
        self._side_tasks.start(sweeper.run(), "sweeper")
        _tune_garbage_collector()
        logger.info(
            "worker_ready", worker=str(self._lease.id), slots=self._slots, kind=self._lease.kind
        )

    def _serve_metrics(self) -> None:
        metrics.SLOTS.set(self._slots)
        metrics.RUNNING.set_function(lambda: len(self._runs))
        metrics.LEASE_AGE.set_function(lambda: self._lease.age)
        serve(self._settings.metrics, metrics.REGISTRY)

    async def claim_and_run(self, response_id: UUID) -> None:
        """Claims the response and runs it to its end. Does nothing if it cannot be claimed."""
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
        """Starts `claim_and_run` as a task, without a Celery message: for the sweeper."""
        task = asyncio.create_task(self.claim_and_run(response_id))
        self._claim_tasks.add(task)
        task.add_done_callback(self._claim_tasks.discard)

    def cancel(self, response_id: UUID) -> None:
        """Stops the response if it runs here: a cancel was recorded for it."""
        run = self._runs.get(response_id)
        if run is not None:
            run.stop(StopReason.CANCEL)

    async def stop(self) -> None:
        """Stops the process.

        Runs that do not end within the grace period are handed over, with their logs stored.
        """
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
            # If Postgres has stored the claim, the next heartbeat finds and releases it.
            logger.warning(
                "claim_outcome_unknown", response=str(response_id), error=str(error).strip()
            )
        except LeaseLost:
            logger.warning("claim_fenced", response=str(response_id))
        finally:
            self._claiming.discard(response_id)
        return None

    # --- heartbeat ---

    def _on_heartbeat(self, sent: float, responses: list[OwnedResponse]) -> None:
        self._loop.call_soon_threadsafe(self._reconcile, sent, responses)

    def _reconcile(self, sent: float, responses: list[OwnedResponse]) -> None:
        """Compares the runs of this process with what the database says it owns.

        Stops a run that it no longer owns, or that others have asked to stop. Releases a response
        that it owns and does not run. `sent`: monotonic time at which the query was sent; its
        result may lack a run that started later.
        """
        owned = {response.id: response for response in responses}
        for response_id, run in list(self._runs.items()):
            response = owned.get(response_id)
            is_current = response is not None and response.attempt == run.claim.attempt
            if not is_current and run.started_at < sent:
                run.stop(StopReason.LOST)
            elif response is not None and (reason := _requested_stop(response, run)) is not None:
                run.stop(reason)
        for response_id, response in owned.items():
            if response_id not in self._runs and response_id not in self._claiming:
                self._side_tasks.start(self._release_unknown(response_id, response.attempt))

    async def _release_unknown(self, response_id: UUID, attempt: int) -> None:
        try:
            await self._ownership.release_unknown(response_id, attempt)
            metrics.ATTEMPTS.labels(ReleaseReason.RETURNED.value).inc()
        except DATABASE_UNAVAILABLE as error:
            logger.warning(
                "release_outcome_unknown", response=str(response_id), error=str(error).strip()
            )


def _tune_garbage_collector() -> None:
    """What is loaded at the start is never collected; later collections are rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _count_attempt(run: Run) -> None:
    """Counts the outcome of an attempt, and the ending if there is one."""
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
