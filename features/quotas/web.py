"""Quotas in a web process: which requests of a project are admitted (docs/limits.md, ADR 0040).

A request of a project with quotas is judged and counted by one command of Redis, before anything is
written. While Redis is away each process judges alone (features/quotas/local.py).
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Self
from uuid import UUID

import structlog
from prometheus_client import Counter
from redis.asyncio import Redis

from features.quotas.local import LocalQuotas, OpenConnection, OpenConnections
from features.quotas.refusal import quota_exceeded, rate_headers
from features.quotas.usage import ProjectStorage, ProjectUsage
from models.config.groups import QuotaSettings
from models.config.settings import Settings
from models.db.database import DATABASE_UNAVAILABLE, Pool
from models.db.queries.api_keys import ApiKey
from models.errors import QuotaExceeded
from models.ownership.lease import DatabaseClock, Lease
from models.projects.quotas import WINDOW, Limits, ProjectQuotaCache, Quota
from models.redis.client import REDIS_ERRORS, redis_client
from models.redis.quota_counters import (
    CONNECTIONS,
    CountersUnavailable,
    Decision,
    Demand,
    QuotaCounters,
)
from models.tasks import cancel_all
from web.counters import REGISTRY
from web.hooks import Quotas
from web.state import AppState, Feature

logger = structlog.get_logger()

QUOTA_REFUSALS = Counter(
    "backburner_quota_refusals",
    "Requests that a quota of their project has refused, by the quota.",
    ["quota"],
    registry=REGISTRY,
)
for _quota in Quota:
    QUOTA_REFUSALS.labels(_quota.name)

_CONFIRMED = (Quota.running, Quota.queued)
"""What may refuse a request only because a worker has not reported an end yet."""


@dataclass(frozen=True, slots=True)
class CountedRequest:
    """A request that was admitted and counted: an `Admission`."""

    quotas: "CountedQuotas"
    project: UUID
    limits: Limits
    demand: Demand
    connection: OpenConnection | None
    """the stream or socket that it opens"""

    @property
    def end_connection(self) -> Callable[[], None] | None:
        """To be called when the stream or socket that it opens has ended; None: it opens none."""
        return None if self.connection is None else self.connection.close

    def undo(self) -> None:
        """The request has failed: it counts only as a request."""
        if self.connection is not None:
            self.connection.close()
        self.settle()

    def settle(self) -> None:
        """What it has made is over, and has used no tokens."""
        if self.demand.response is not None:
            self.quotas.settle(self.project, self.limits, self.demand.response)


class CountedQuotas(Quotas):
    """The quotas of all projects, as one web process judges them."""

    def __init__(
        self, defaults: QuotaSettings, redis: Redis, process: UUID, pool: Pool, clock: DatabaseClock
    ) -> None:
        self._limits = ProjectQuotaCache(defaults)
        self._redis = redis
        self._counters = QuotaCounters(redis, process)
        self._usage = ProjectUsage(pool, self._counters, clock)
        self._storage = ProjectStorage(pool, self._counters)
        self._local = LocalQuotas()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = OpenConnections(self._counters)

    @classmethod
    def open(cls, settings: Settings, pool: Pool, lease: Lease) -> Self:
        """Connects at the first use."""
        redis = redis_client(settings, f"web-quotas-{lease.id.hex}")
        return cls(settings.quotas, redis, lease.id, pool, lease.clock)

    async def close(self) -> None:
        """Closes the connections."""
        await cancel_all(self._tasks)
        with suppress(*REDIS_ERRORS):
            await self._redis.aclose()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def limits_of(self, key: ApiKey) -> Limits | None:
        """The quotas of the key's project. None: it has none."""
        return self._limits.of(key.project_id, key.policy.quotas)

    def headers(self, key: ApiKey) -> dict[str, str]:
        """What is left of the rates of the key's project, as this process has counted them."""
        limits = self.limits_of(key)
        if limits is None:
            return {}
        return rate_headers(limits, *self._local.seconds_unused(key.project_id))

    def require_rate(self, key: ApiKey) -> Limits | None:
        """Refuses a request at once if it is already known that Redis would: before its body is
        read. Returns the quotas, as `limits_of`. Raises QuotaExceeded."""
        limits = self.limits_of(key)
        if limits is None or not limits.requests_per_minute or not self._counters.are_available:
            return limits
        requests, tokens = self._local.seconds_unused(key.project_id)
        wait = requests + WINDOW / limits.requests_per_minute - WINDOW
        if wait > 0:
            raise self._refusal(limits, Decision(Quota.requests_per_minute, wait, requests, tokens))
        return limits

    async def admit(self, project: UUID, limits: Limits, demand: Demand) -> CountedRequest:
        """Admits and counts a request. Raises QuotaExceeded."""
        if limits.tokens_per_minute and demand.tokens > limits.tokens_per_minute:
            used = self._local.seconds_unused(project)
            raise self._refusal(limits, Decision(Quota.tokens_per_minute, 0, *used), demand.tokens)
        own = self.connections.of(project)
        kind = next((kind for kind in CONNECTIONS if getattr(demand, kind.name)), None)
        connection = None if kind is None else self.connections.add(project, kind)
        decision = None
        try:
            decision = await self._decide(project, limits, demand, own)
        finally:
            if connection is not None and (decision is None or decision.refused is not None):
                connection.close()
        if decision.refused is not None:
            raise self._refusal(limits, decision, demand.tokens)
        return CountedRequest(self, project, limits, demand, connection)

    async def _decide(
        self, project: UUID, limits: Limits, demand: Demand, own: dict[Quota, int]
    ) -> Decision:
        try:
            decision = await self._ask_counters(project, limits, demand, own)
        except CountersUnavailable:
            if self._local.needs_usage(project):
                await self._read_usage(project, limits)
            if limits.stored_bytes and self._local.needs_stored_bytes(project):
                self._spawn(self._measure_alone(project))
            processes = self._usage.web_processes
            return self._local.decide(project, limits, demand, own, processes)
        self._local.observe(project, decision)
        if decision.is_correction_due:
            self._spawn(self._usage.correct_if_available(project, limits))
        if decision.is_measurement_due:
            self._spawn(self._storage.measure(project))
        return decision

    async def _ask_counters(
        self, project: UUID, limits: Limits, demand: Demand, own: dict[Quota, int]
    ) -> Decision:
        """Raises CountersUnavailable. Counters that are lost or old are corrected first, and what
        has ended since is looked for before a response is refused; while Postgres is unavailable
        they decide as they are, and nothing can be stored anyway."""
        period = self._usage.period
        decision = await self._counters.admit(project, limits, demand, own, period)
        if decision is None:
            self._usage.forget(project)
            await self._usage.correct_if_available(project, limits)
            decision = await self._counters.admit(
                project, limits, demand, own, period, is_corrected=True
            )
        assert decision is not None
        if decision.refused in _CONFIRMED:
            ended = await self._usage.ended(project)
            if ended:
                confirmed = await self._counters.admit(
                    project, limits, demand, own, period, is_corrected=True, ended=ended
                )
                decision = confirmed or decision
        return decision

    async def _measure_alone(self, project: UUID) -> None:
        """Measures what the project stores for this process, which has never learned it from
        Redis."""
        self._local.set_stored_bytes(project, await self._storage.measured(project))

    async def _read_usage(self, project: UUID, limits: Limits) -> None:
        """If Postgres is unavailable too, what was read last stays in force."""
        try:
            self._local.set_usage(project, await self._usage.read(project, limits))
        except DATABASE_UNAVAILABLE as error:
            logger.warning("quota_usage_not_read", project=str(project), error=str(error).strip())

    def on_ended(self, project: UUID, response: UUID) -> None:
        """This process has ended a response that no worker had claimed."""
        limits = self._limits.last_known(project)
        if limits is not None:
            self.settle(project, limits, response)

    def settle(self, project: UUID, limits: Limits, response: UUID) -> None:
        """A response has ended here without tokens, or was not stored."""
        self._local.release(project, response)
        self._spawn(self._settle(project, limits, response))

    async def _settle(self, project: UUID, limits: Limits, response: UUID) -> None:
        # If Redis is away, the next correction does it.
        with suppress(CountersUnavailable):
            await self._counters.settle(project, limits, response, 0, self._usage.period)

    def _refusal(self, limits: Limits, decision: Decision, tokens: int = 0) -> QuotaExceeded:
        assert decision.refused is not None
        QUOTA_REFUSALS.labels(decision.refused.name).inc()
        now = self._usage.now
        error = quota_exceeded(limits, decision.refused, decision.wait, tokens, now)
        error.headers |= rate_headers(limits, decision.requests, decision.tokens)
        return error


class QuotaCounting(Feature):
    """Limits the requests of projects that have quotas."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._quotas = CountedQuotas.open(state.settings, state.pool, state.lease)
        state.hooks.quotas = self._quotas

    def start(self) -> None:
        """Reports open connections to the other processes."""
        self.state.side_tasks.start(self._quotas.connections.run(), "open-connections")

    async def close(self) -> None:
        """Closes the connections to Redis."""
        await self._quotas.close()


FEATURE = QuotaCounting
