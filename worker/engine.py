"""One worker process: its lease, its connections and its runs, all in the pool's event loop.

Celery messages and the sweeper start responses, within one count of slots. The heartbeat, the
control channel and SIGTERM stop runs through the engine.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import structlog
from redis.asyncio import Redis

from models.config.routes import Routes
from models.config.settings import Settings
from models.db.database import DATABASE_UNAVAILABLE, Pool, open_pool
from models.egress import EgressPolicy
from models.errors import LeaseLost
from models.files.opening import open_storage
from models.ids import response_id as public_id
from models.lifecycle import Lane, Status
from models.metrics import serve
from models.ownership.claims import Ownership
from models.ownership.lease import Lease
from models.ownership.takeover import Claim
from models.ownership.timeline import attempts_on_timeline
from models.project_policies import ProjectPolicies
from models.projects.routes import ProjectRoutes
from models.redis.answer_cache import AnswerCache
from models.redis.channels import BACKGROUND, QUARANTINE
from models.redis.client import redis_client
from models.redis.queue import JobQueue
from models.retrieval.embedder import Embedder
from models.retrieval.search import ChunkSearch
from models.secrets import Sealer
from models.side_tasks import SideTasks
from models.tracing.tracer import open_tracer
from models.turns import Pace, Turns
from worker import metrics
from worker.activity import ActivityWriter
from worker.batches.progress import BatchProgress
from worker.comparison import RunComparison
from worker.control import ControlListener
from worker.hand_over import HandOver
from worker.line import Line
from worker.log.journal import Journal
from worker.log.publisher import Publisher
from worker.memory_budget import MemoryBudget
from worker.memory_pressure import MemoryPressure
from worker.model_metrics import LABELS, observe_end
from worker.outbound.file_memory import FileMemory
from worker.purge import Purger
from worker.quarantine import SuspectGroup
from worker.retrieval.ingest import Ingest
from worker.run.counting import RequestTokenCounter
from worker.run.end_state import StopReason
from worker.run.quota_notices import QuotaNotices
from worker.run.resources import Resources
from worker.run.runner import Run
from worker.slots import reserved_slots
from worker.sweeper import Sweeper
from worker.upstream.state_writer import UpstreamStateWriter
from worker.upstream.upstreams import Upstreams
from worker.watch import Watch
from worker.webhooks.deliverer import Deliverer

logger = structlog.get_logger()

_STARTED_IN_A_TURN = 8
"""Runs that begin in one turn of the event loop. Up to its request to the upstream, each takes half
a millisecond; fifty that were claimed together would delay all streams that run."""
_BATCH_PAUSE = 0.005
"""Seconds between two starts of responses of batches. A short one takes 3 ms of the event loop in
all, so they never fill it, however many wait: clients wait for the others."""
_ENDING_SLOTS = 16
"""Responses above the slots that may be claimed only to be ended. Each takes milliseconds, and none
may wait for a run to end."""

_CLAIMED_TOGETHER = 50
"""Orphans that are claimed with one transaction. Their runs start when it is committed."""
_ORPHAN_CLAIMS = 2
"""Such transactions at a time: while one waits for Postgres, this process works for the other. The
statements of the runs use the same connections."""

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class Connections:
    """The connections of the process, opened at its start and closed at its end."""

    pool: Pool
    redis: Redis
    upstreams: Upstreams
    job_queue: JobQueue
    cache: AnswerCache
    embedder: Embedder

    async def close(self) -> None:
        """Closes all of them."""
        await self.job_queue.close()
        await self.upstreams.close()
        await self.embedder.close()
        await self.cache.close()
        await self.redis.aclose()
        await self.pool.close()


class Engine:
    """A worker process."""

    def __init__(
        self, settings: Settings, slots: int, on_capacity_changed: Callable[[], None]
    ) -> None:
        """`slots`: how many responses run at a time (worker/slots.py). `on_capacity_changed` is
        called in the event loop after each change of the free slots."""
        self._settings = settings
        self._slots = slots
        self._reserved = 0 if settings.quarantine else reserved_slots(slots)
        self._on_capacity_changed = on_capacity_changed
        self._runs: dict[UUID, Run] = {}
        self._claiming: set[UUID] = set()
        self._starts = Turns(_STARTED_IN_A_TURN)
        self._batch_starts = Pace(_BATCH_PAUSE)
        self._comparison = RunComparison(self._runs, self._claiming, on_capacity_changed)
        self._lease = Lease(
            settings,
            "quarantine" if settings.quarantine else "worker",
            self._comparison.on_heartbeat,
            self._comparison.incomplete_logs,
            slots,
        )
        self._orphan_claims = asyncio.Semaphore(_ORPHAN_CLAIMS)
        self._claim_tasks: set[asyncio.Task[None]] = set()
        self._side_tasks = SideTasks(self._lease.exit_process)
        self._memory = MemoryBudget(settings.worker.memory_budget)
        self._is_stopping = False

    @property
    def slots(self) -> int:
        """How many responses run here at a time."""
        return self._slots

    @property
    def free(self) -> int:
        """Free slots; none while the process stops, is not sure of its lease, or has no memory for
        another response."""
        return self._memory.claims_that_fit(self._free_of(self._slots))

    @property
    def free_for_background(self) -> int:
        """Free slots without those reserved for foreground responses."""
        return max(0, self.free - self._reserved)

    @property
    def free_for_endings(self) -> int:
        """How many responses may be claimed that are only to be ended."""
        return self._free_of(self._slots + _ENDING_SLOTS)

    @property
    def running(self) -> int:
        """How many responses run here."""
        return len(self._runs)

    def _free_of(self, slots: int) -> int:
        if self._is_stopping or not self._lease.is_fresh:
            return 0
        return max(0, slots - len(self._runs) - len(self._claiming))

    async def start(self) -> None:
        """Connects, registers the lease and begins to sweep.

        Raises what DATABASE_UNAVAILABLE names if Postgres is unavailable.
        """
        settings = self._settings
        pool = open_pool(
            settings, str(self._lease.id), settings.worker.pool_size, self._lease.timeline.check
        )
        await pool.open(wait=True)
        redis = redis_client(settings, f"worker-{self._lease.id.hex}")
        self._connections = connections = Connections(
            pool=pool,
            redis=redis,
            upstreams=Upstreams(settings, self._slots, self._lease.wait_until_fresh),
            job_queue=JobQueue(settings, metrics.ENQUEUES_DROPPED),
            cache=AnswerCache(settings, f"worker-cache-{self._lease.id.hex}"),
            embedder=Embedder(settings.retrieval, ProjectRoutes(settings)),
        )
        publisher = Publisher(redis)
        journal = Journal(settings, self._lease, pool, publisher)
        self._ownership = Ownership(pool, self._lease, settings)
        self._line = Line(self, self._claiming, self._ownership, connections.job_queue)
        self._comparison.start(self._ownership, self._side_tasks, self._line.wait_until_known)
        self._suspects = SuspectGroup(settings, self._ownership, self._runs)
        policies = ProjectPolicies(pool, self._lease.access_revision)
        storage = open_storage(settings)
        self._resources = Resources(
            settings=settings,
            ownership=self._ownership,
            journal=journal,
            pool=pool,
            upstreams=connections.upstreams,
            job_queue=connections.job_queue,
            egress=EgressPolicy(settings.egress),
            sealer=Sealer(settings.sealing_keys),
            token_counter=RequestTokenCounter(),
            cache=connections.cache,
            memory=self._memory,
            policies=policies,
            quotas=QuotaNotices(settings.quotas, policies, publisher, self._lease.clock),
            file_memory=FileMemory(settings.egress.memory),
            storage=storage,
            search=ChunkSearch(pool, connections.embedder),
            tracer=open_tracer(settings, self._lease.kind),
            exit_process=self._lease.exit_process,
        )
        control = ControlListener(settings, self._lease.id, self.cancel)
        states = UpstreamStateWriter(redis, self._lease.id, connections.upstreams.states)
        self._side_tasks.start(states.run(), "upstream-states")
        self._side_tasks.start(self._lease.tick(), "tick")
        self._side_tasks.start(publisher.run(), "publisher")
        self._side_tasks.start(connections.job_queue.run(), "job-queue")
        self._side_tasks.start(journal.batch_writer.run(), "journal")
        self._side_tasks.start(journal.flush_writer.run(), "flushes")
        self._side_tasks.start(control.run(), "control")
        self._serve_metrics()
        await asyncio.to_thread(self._lease.register)
        self._start_sweeping(connections)
        self._activity = ActivityWriter(pool)
        self._side_tasks.start(self._activity.run(), "activity")
        self._side_tasks.start(Purger(settings, str(self._lease.id), storage).run(), "purge")
        if not settings.quarantine:
            self._side_tasks.start(self._webhooks().run(), "webhooks")
            if storage is not None:
                progress = BatchProgress(settings, pool, redis, storage)
                self._side_tasks.start(progress.run(), "batches")
                ingest = Ingest(settings, pool, storage, connections.embedder, policies)
                self._side_tasks.start(ingest.run(), "ingest")
        _tune_garbage_collector()
        self._memory.measure_idle()
        pressure = MemoryPressure(self._memory, pool, self._runs, self._on_capacity_changed)
        self._side_tasks.start(pressure.run(), "memory")
        logger.info(
            "worker_ready", worker=str(self._lease.id), slots=self._slots, kind=self._lease.kind
        )

    def _webhooks(self) -> Deliverer:
        resources = self._resources
        return Deliverer(
            self._settings.webhooks,
            resources.pool,
            resources.sealer,
            resources.egress,
            resources.policies,
        )

    def start_side_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs `work` beside the responses, until `stop`. If it fails, the process exits."""
        return self._side_tasks.start(work, name)

    def _start_sweeping(self, connections: Connections) -> None:
        """Starts the watch and the sweep. A death or a hand-over makes the sweep run at once."""
        settings = self._settings
        sweeper = Sweeper(settings, self._lease, connections.pool, self, connections.job_queue)

        def on_orphans() -> None:
            sweeper.claim_now()
            self._lease.compare_now()

        watch = Watch(settings, self._lease, connections.redis, on_orphans)
        self._side_tasks.start(watch.run(), "watch")
        self._side_tasks.start(sweeper.run(watch), "sweeper")

    def _serve_metrics(self) -> None:
        LABELS.configure(self._settings.metrics, Routes(self._settings).patterns)
        metrics.POOL.pool = self._connections.pool
        metrics.SLOTS.set(self._slots)
        metrics.MEMORY_BUDGET.set(self._settings.worker.memory_budget or 0)
        metrics.RUNNING.set_function(lambda: len(self._runs))
        metrics.LEASE_AGE.set_function(lambda: self._lease.age)
        serve(self._settings.metrics, metrics.REGISTRY, self._settings.allowed_hosts)

    def free_for(self, queue: str) -> int:
        """Free slots for the responses of this queue."""
        return self.free_for_background if queue == BACKGROUND else self.free

    def is_crowded(self, queue: str) -> bool:
        """Whether responses of this queue may be waiting in line (worker/line.py)."""
        return self._line.is_crowded(queue)

    def run_from_message(self, response_ids: Sequence[UUID], queue: str) -> None:
        """Starts the claims and runs of the responses of a Celery message, or of others whose turn
        it is, if there are more than free slots.

        Suspects without a free slot go back to their queue, for a worker that has one.
        """
        ids = [
            response_id for response_id in dict.fromkeys(response_ids) if not self._has(response_id)
        ]
        free = self.free_for(queue)
        if queue != QUARANTINE and (
            not response_ids or len(ids) > free or self._line.is_crowded(queue)
        ):
            self._line.choose_soon(queue, ids)
            return
        if len(ids) > free:
            self._connections.job_queue.give_back(ids[free:], queue)
        self._memory.count_claims(len(ids[:free]))
        for response_id in ids[:free]:
            self._claiming.add(response_id)
            self._start_claim(self._claim_and_run(response_id, self._take(response_id)))
        self._line.note_full()

    def choose_old(self, max_rows: int, waiting: timedelta) -> None:
        """Claims and runs up to so many of the responses in line that have waited for so long: for
        the sweeper, because their wake-ups may be lost."""
        self._line.choose_old(max_rows, waiting)

    def interrupted(self, orphans: Sequence[UUID]) -> None:
        """These responses of crashed workers are to have some of the next slots."""
        self._line.interrupted(orphans)

    def run_chosen(self, claims: Sequence[Claim]) -> None:
        """Runs responses that were claimed in line. They are in `_claiming` already."""
        self._memory.count_claims(len(claims))
        self._run_claims(claims)

    def _run_claims(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._start_claim(self._claim_and_run(claim.id, self._ownership.with_log(claim)))
        self._on_capacity_changed()

    def spawn(self, orphans: Sequence[UUID], *, to_end: bool = False) -> None:
        """Claims and runs responses without a live owner in tasks, as many as slots are free: for
        the sweeper.

        `to_end`: the responses are only to be ended, for which there are more slots.
        """
        free = self.free_for_endings if to_end else self.free_for_background
        ids = [orphan for orphan in orphans if not self._has(orphan)][:free]
        if not ids:
            return
        self._claiming.update(ids)
        self._memory.count_claims(len(ids))
        self._line.note_full()
        self._on_capacity_changed()
        if self._settings.quarantine:
            for response_id in ids:
                self._start_claim(self._claim_and_run(response_id, self._take_orphan(response_id)))
            return
        for first in range(0, len(ids), _CLAIMED_TOGETHER):
            self._start_claim(self._claim_orphans(ids[first : first + _CLAIMED_TOGETHER]))

    def _start_claim(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._claim_tasks.add(task)
        task.add_done_callback(self._claim_tasks.discard)

    def _has(self, response_id: UUID) -> bool:
        return response_id in self._runs or response_id in self._claiming

    async def _claim_orphans(self, ids: Sequence[UUID]) -> None:
        """Claims these responses with one transaction, and starts their runs. They are in
        `_claiming` already; each that was claimed stays there until it is in `_runs`.

        If the transaction fails, each response is claimed alone: one of them may be the cause.
        """
        claims: list[Claim] | None = None
        try:
            async with self._orphan_claims:
                taking = self._ownership.take_orphans([] if self._is_stopping else ids)
                claims = await self._claim(taking, ids)
        except Exception:
            logger.exception("orphans_not_claimed", responses=len(ids))
        if claims is None:
            for response_id in ids:
                taking_one = self._take_orphan(response_id)
                self._start_claim(self._claim_and_run(response_id, taking_one))
            return
        self._claiming.difference_update(set(ids) - {claim.id for claim in claims})
        self._run_claims(claims)

    async def _take_orphan(self, response_id: UUID) -> Claim | None:
        async with self._orphan_claims:
            return await self._take(response_id)

    async def _claim_and_run(self, response_id: UUID, taking: Awaitable[Claim | None]) -> None:
        """Does nothing if the response cannot be claimed. It is in `_claiming` already."""
        try:
            try:
                claim = await self._claim(taking, [response_id])
                if claim is not None:
                    is_batch = claim.row.lane == Lane.BATCH
                    await (self._batch_starts if is_batch else self._starts).wait()
            finally:
                self._claiming.discard(response_id)
            if claim is not None:
                await self._run(claim)
        except Exception:
            # Celery would drop it. The response is released, or the next sweep finds it.
            logger.exception("response_not_run", response=public_id(response_id))
        finally:
            self._on_capacity_changed()

    async def _run(self, claim: Claim) -> None:
        metrics.count_claim(claim)
        run = self._runs[claim.id] = Run(claim, self._resources)
        self._line.shares.begin(claim.row.project_id)
        if self._is_stopping:
            run.stop(StopReason.HAND_OVER)
        try:
            with structlog.contextvars.bound_contextvars(**_context_of(claim)):
                await run.run()
        finally:
            del self._runs[claim.id]
            self._line.shares.end(claim.row.project_id)
            _count_attempt(run)

    def cancel(self, response_id: UUID) -> None:
        """Stops the response if it runs here: a cancel was recorded for it."""
        run = self._runs.get(response_id)
        if run is not None:
            run.stop(StopReason.CANCEL)

    async def stop(self) -> None:
        """Stops the process. Its runs end or are handed over (worker/hand_over.py)."""
        self._is_stopping = True
        for run in self._runs.values():
            run.drain()
        logger.info("worker_stopping", worker=str(self._lease.id), running=len(self._runs))
        await HandOver(self._runs, self._claiming, self._settings.worker).run()
        await self._side_tasks.cancel()
        await self._activity.write_last()
        await asyncio.to_thread(self._lease.deregister)
        await self._connections.close()
        if self._resources.storage is not None:
            await self._resources.storage.close()
        if self._resources.tracer is not None:
            self._resources.tracer.close()
        logger.info("worker_stopped", worker=str(self._lease.id))

    async def _take(self, response_id: UUID) -> Claim | None:
        if self._is_stopping:
            return None
        if self._settings.quarantine:
            return await self._suspects.claim(response_id)
        return await self._ownership.take(response_id)

    async def _claim(self, taking: Awaitable[ResultT], ids: Sequence[UUID]) -> ResultT | None:
        """Awaits a claim of these responses. None if its outcome is unknown, or if this process was
        declared dead."""
        try:
            return await taking
        except DATABASE_UNAVAILABLE as error:
            # If Postgres has stored the claim, the next heartbeat finds and releases it.
            logger.warning(
                "claim_outcome_unknown",
                responses=list(map(public_id, ids)),
                error=str(error).strip(),
            )
        except LeaseLost:
            logger.warning("claim_fenced", responses=list(map(public_id, ids)))
        return None


def _tune_garbage_collector() -> None:
    """What is loaded at the start is never collected; later collections are rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _context_of(claim: Claim) -> dict[str, object]:
    """The fields of each line that is logged while the response runs."""
    fields: dict[str, object] = {"response": public_id(claim.id), "attempt": claim.attempt}
    if claim.row.request_id is not None:
        fields["request"] = claim.row.request_id
    return fields


def _count_attempt(run: Run) -> None:
    """Counts the outcome of an attempt, and the ending if there is one."""
    metrics.ATTEMPTS.labels(run.outcome).inc()
    if run.end_state is not None:
        row = run.claim.row
        # A later attempt only knows when it was enqueued last, so it takes the whole seconds of the
        # row, by the clock of this machine.
        seconds = max(0.0, time.time() - row.created_at)
        if attempts_on_timeline(row.attempt) == 1:
            seconds = row.seconds_queued + time.monotonic() - run.started_at
        observe_end(row.model, run.upstream, str(row.project_id), run.end_state.status, seconds)
        metrics.RESPONSES_ENDED.labels(run.end_state.status.value).inc()
        if run.end_state.status is Status.FAILED:
            metrics.count_failure(run.end_state.reason)
