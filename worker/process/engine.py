"""One worker process: its lease, its connections and its runs, all in the pool's event loop.

Responses start in its slots (worker/intake/intake.py). The heartbeat, the control channel and
SIGTERM stop runs.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog
from redis.asyncio import Redis

from models.celery.queue import JobQueue
from models.config.routes import Routes
from models.config.settings import Settings
from models.confinement.policy import PROTECTIONS, missing
from models.db.connection import ACTING_PROJECT
from models.db.database import Pool, open_pool
from models.due_work import DuePoll
from models.egress import EgressPolicy
from models.features import feature_parts
from models.fence import FENCE
from models.files.opening import open_storage
from models.garbage import tune_garbage_collector
from models.ids import response_id as public_id
from models.lifecycle import Status
from models.metrics import serve
from models.ownership.claims import Ownership
from models.ownership.lease import Lease
from models.ownership.takeover import Claim
from models.ownership.timeline import attempts_on_timeline
from models.ownership.watch import Watch
from models.prices import PriceList
from models.project_policies import ProjectPolicies
from models.redis.answer_cache import AnswerCache
from models.redis.channels import BACKGROUND
from models.redis.client import redis_client
from models.secrets import Sealer
from models.tasks import SideTasks
from models.tracing.spans import open_tracer
from worker import metrics
from worker.intake.capacity import Capacity
from worker.intake.intake import Intake
from worker.intake.quarantine import SuspectGroup
from worker.intake.sweeper import Sweeper
from worker.log.journal import Journal
from worker.log.publisher import EventPublisher
from worker.outbound.download import FileMemory
from worker.process.control import ControlListener, HandOver, RunComparison
from worker.process.limits import MemoryBudget
from worker.process.memory_pressure import MemoryPressure
from worker.process.purge import Purger
from worker.run.end_state import StopReason
from worker.run.model_metrics import LABELS, count_cost, observe_end
from worker.run.resources import QuotaNotices, Resources, WorkerFeature
from worker.run.runner import Run
from worker.tools.toolbox import OWN_TOOLS
from worker.upstream.upstreams import RequestTokenCounter, Upstreams

logger = structlog.get_logger()

_NEW_OBJECTS = 100_000
"""Objects that were made, and not freed, before garbage is looked for among them. A look takes some
milliseconds, in which all streams wait."""


@dataclass(slots=True)
class WorkerConnections:
    """The connections of the process, opened at its start and closed at its end."""

    pool: Pool
    event_servers: list[Redis]
    """those that carry events; the first one is used for everything else too"""
    upstreams: Upstreams
    job_queue: JobQueue
    cache: AnswerCache

    @classmethod
    async def open(cls, settings: Settings, lease: Lease, slots: int) -> "WorkerConnections":
        """Raises what DATABASE_UNAVAILABLE names if Postgres is unavailable."""
        size = settings.worker.pool_size
        pool = open_pool(settings, str(lease.id), size, lease.timeline.check)
        await pool.open(wait=True)
        return cls(
            pool=pool,
            event_servers=[
                redis_client(settings, f"worker-{lease.id.hex}", server=number)
                for number in range(len(settings.event_servers))
            ],
            upstreams=Upstreams(settings, slots),
            job_queue=JobQueue(settings, metrics.ENQUEUES_DROPPED),
            cache=AnswerCache(settings, f"worker-cache-{lease.id.hex}"),
        )

    @property
    def redis(self) -> Redis:
        """The server of `redis_url`."""
        return self.event_servers[0]

    async def close(self) -> None:
        """Closes all of them."""
        await self.job_queue.close()
        await self.upstreams.close()
        await self.cache.close()
        for redis in self.event_servers:
            await redis.aclose()
        await self.pool.close()


class Engine:
    """A worker process."""

    def __init__(
        self, settings: Settings, slots: int, on_capacity_changed: Callable[[], None]
    ) -> None:
        """`slots`: how many responses run at a time (worker/process/limits.py).
        `on_capacity_changed` is called in the event loop after each change of the free slots."""
        self._settings = settings
        self._notify_readers = on_capacity_changed
        self._memory = MemoryBudget(settings.worker.memory_budget)
        self._capacity = capacity = Capacity(
            slots,
            self._memory,
            lambda: self._lease.is_fresh,
            is_shared=not settings.quarantine,
        )
        self._comparison = RunComparison(
            capacity.runs, capacity.claiming, self._on_capacity_changed
        )
        self._lease = Lease(
            settings,
            "quarantine" if settings.quarantine else "worker",
            self._comparison.on_heartbeat,
            self._comparison.incomplete_logs,
            slots,
        )
        self._side_tasks = SideTasks(self._lease.exit_process)

    @property
    def running(self) -> int:
        """How many responses run here."""
        return len(self._capacity.runs)

    async def start(self) -> None:
        """Connects, registers the lease and begins to sweep.

        Raises what DATABASE_UNAVAILABLE names if Postgres is unavailable.
        """
        settings, capacity = self._settings, self._capacity
        connections = await WorkerConnections.open(settings, self._lease, capacity.slots)
        self._connections = connections
        pool = connections.pool
        publisher = EventPublisher(connections.event_servers)
        journal = Journal(settings, self._lease, pool, publisher)
        journal.read_before_batches(connections.upstreams.arrivals)
        self._ownership = Ownership(pool, self._lease, settings)
        suspects = SuspectGroup(settings, self._ownership, capacity.runs)
        self.intake = Intake(
            capacity,
            self._ownership,
            suspects if settings.quarantine else None,
            connections.job_queue,
            self._run,
            self._on_capacity_changed,
        )
        line = self.intake.line
        self._comparison.start(self._ownership, self._side_tasks, line.wait_until_known)
        self._resources = self._open_resources(journal, publisher)
        self._features: list[WorkerFeature] = [
            part.FEATURE(self._resources) for part in feature_parts("worker")
        ]
        control = ControlListener(settings, self._lease.id, self.cancel)
        states = connections.upstreams.write_states(connections.redis, self._lease.id)
        self._side_tasks.start(states, "upstream-states")
        self._side_tasks.start(self._lease.tick(), "tick")
        self._side_tasks.start(publisher.run(), "publisher")
        self._side_tasks.start(connections.job_queue.run(), "job-queue")
        self._side_tasks.start(journal.batch_writer.run(), "journal")
        self._side_tasks.start(journal.flush_writer.run(), "flushes")
        self._side_tasks.start(journal.large_frames.run(), "large-frames")
        self._side_tasks.start(control.run(), "control")
        self._serve_metrics()
        await asyncio.to_thread(self._lease.register)
        self._start_sweeping(connections)
        if not settings.quarantine:
            self._side_tasks.start(line.start_newcomers(), "newcomers")
        self._start_beside()
        tune_garbage_collector(_NEW_OBJECTS)
        self._memory.measure_idle()
        pressure = MemoryPressure(self._memory, pool, capacity.runs, self._on_capacity_changed)
        self._side_tasks.start(pressure.run(), "memory")
        logger.info(
            "worker_ready", worker=str(self._lease.id), slots=capacity.slots, kind=self._lease.kind
        )

    def _open_resources(self, journal: Journal, publisher: EventPublisher) -> Resources:
        settings, connections = self._settings, self._connections
        policies = ProjectPolicies(connections.pool, self._lease.access_revision)
        return Resources(
            settings=settings,
            ownership=self._ownership,
            journal=journal,
            pool=connections.pool,
            upstreams=connections.upstreams,
            job_queue=connections.job_queue,
            egress=EgressPolicy(settings.egress),
            prices=PriceList(self._settings.prices, self._settings),
            sealer=Sealer(settings.sealing_keys),
            token_counter=RequestTokenCounter(),
            cache=connections.cache,
            memory=self._memory,
            policies=policies,
            quotas=QuotaNotices(settings.quotas, policies, publisher, self._lease.clock),
            file_memory=FileMemory(settings.egress.memory),
            storage=open_storage(settings),
            redis=connections.redis,
            side_tasks=self._side_tasks,
            tools=dict(OWN_TOOLS),
            tracer=open_tracer(settings, self._lease.kind),
            exit_process=self._lease.exit_process,
            due_poll=DuePoll(connections.pool, "worker"),
        )

    def _start_beside(self) -> None:
        """Starts the purge and what features do beside responses."""
        purger = Purger(self._settings, str(self._lease.id), self._resources.storage)
        self._side_tasks.start(purger.run(), "purge")
        if not self._settings.quarantine:
            for feature in self._features:
                feature.start()
            self._side_tasks.start(self._resources.due_poll.run(), "due-work")

    def start_side_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs `work` beside the responses, until `stop`. If it fails, the process exits."""
        return self._side_tasks.start(work, name)

    def _start_sweeping(self, connections: WorkerConnections) -> None:
        """Starts the watch and the sweep. A death or a hand-over makes the sweep run at once."""
        settings = self._settings
        sweeper = Sweeper(
            settings,
            self._lease,
            connections.pool,
            self._capacity,
            self.intake,
            connections.job_queue,
        )

        def on_orphans() -> None:
            sweeper.claim_now()
            self._lease.compare_now()

        watch = Watch(settings, self._lease, connections.redis, metrics.DEATHS, on_orphans)
        self._side_tasks.start(watch.run(), "watch")
        self._side_tasks.start(sweeper.run(), "sweeper")

    def _serve_metrics(self) -> None:
        LABELS.configure(self._settings.metrics, Routes(self._settings).patterns)
        metrics.POOL.pool = self._connections.pool
        metrics.SLOTS.set(self._capacity.slots)
        metrics.MEMORY_BUDGET.set(self._settings.worker.memory_budget or 0)
        lacking = missing()
        for name in PROTECTIONS:
            metrics.CONFINEMENT.labels(name).set(name not in lacking)
        metrics.RUNNING.set_function(lambda: self.running)
        metrics.LEASE_AGE.set_function(lambda: self._lease.age)
        serve(self._settings.metrics, metrics.REGISTRY, self._settings.allowed_hosts)

    async def _run(self, claim: Claim) -> None:
        metrics.count_claim(claim)
        shares = self.intake.line.shares
        ACTING_PROJECT.set(claim.row.project_id)
        FENCE.set(self._lease.wait_until_fresh)
        run = Run(claim, self._resources)
        self._capacity.begin(run)
        shares.begin(claim.row.project_id)
        if self._capacity.is_stopping:
            run.stop(StopReason.HAND_OVER)
        try:
            with structlog.contextvars.bound_contextvars(**_context_of(claim)):
                await run.run()
        finally:
            self._capacity.end(run)
            shares.end(claim.row.project_id)
            _count_attempt(run)
        if run.is_awaited:
            await self._start_successors(claim.id)

    async def _start_successors(self, ended: UUID) -> None:
        """What has waited for this response runs now, or ends with it (ADR 0073)."""
        successors = await self._ownership.ready_successors(ended)
        self.intake.spawn([each.id for each in successors if each.is_to_end], to_end=True)
        for each in successors:
            if not each.is_to_end:
                self._connections.job_queue.enqueue(each.id, BACKGROUND)

    def _on_capacity_changed(self) -> None:
        self.intake.line.on_capacity_changed()
        self._notify_readers()

    def cancel(self, response_id: UUID) -> None:
        """Stops the response if it runs here: a cancel was recorded for it."""
        run = self._capacity.runs.get(response_id)
        if run is not None:
            run.stop(StopReason.CANCEL)

    async def stop(self) -> None:
        """Stops the process. Its runs end or are handed over (worker/process/control.py)."""
        capacity = self._capacity
        capacity.is_stopping = True
        for run in capacity.runs.values():
            run.drain()
        logger.info("worker_stopping", worker=str(self._lease.id), running=self.running)
        await HandOver(capacity.runs, capacity.claiming, self._settings.worker).run()
        await self._side_tasks.cancel()
        await asyncio.to_thread(self._lease.deregister)
        for feature in self._features:
            await feature.close()
        await self._connections.close()
        if self._resources.storage is not None:
            await self._resources.storage.close()
        if self._resources.tracer is not None:
            self._resources.tracer.close()
        logger.info("worker_stopped", worker=str(self._lease.id))


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
        project = str(row.project_id)
        observe_end(row.model, run.upstream, project, run.end_state.status, seconds)
        count_cost(row.model, run.upstream, project, run.cost)
        metrics.RESPONSES_ENDED.labels(run.end_state.status.value).inc()
        if run.end_state.status is Status.FAILED:
            metrics.count_failure(run.end_state.reason)
        elif run.end_state.status is Status.COMPLETED and run.end_state.reason is not None:
            metrics.UNMET.labels(run.upstream or "none", run.end_state.reason).inc()
