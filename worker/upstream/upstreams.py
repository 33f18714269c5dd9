"""The upstreams of a worker process, and which of them are called for a model."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from uuid import UUID

from redis.asyncio import Redis

from models.config.routes import limits_of
from models.config.settings import Settings
from models.errors import (
    Deferred,
    FailedCall,
    LimitReached,
    RunError,
    UpstreamBusy,
    UpstreamFailed,
)
from models.load.reserve import ReservedSlots
from models.projects.policy import ProjectPolicy
from models.projects.routes import ProjectRoutes
from models.redis.client import REDIS_ERRORS
from models.redis.upstream_states import INTERVAL, write_states
from worker.upstream.circuits import Permit
from worker.upstream.client import Upstream
from worker.upstream.failures import is_interruption, not_configured
from worker.upstream.gate import ConcurrencyLimiter
from worker.upstream.stream_errors import no_such_model

_MAX_RETRY_AFTER = 600.0
"""Seconds: the longest `Retry-After` of an upstream that a background response keeps to. Some
servers name the end of a day."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An upstream that serves a model of a project, its limiter, and the model's name there."""

    upstream: Upstream
    limiter: ConcurrencyLimiter
    model: str
    project: UUID
    failed_at: float | None = None
    """when the last try of the same request failed here with an answer, in seconds since the
    epoch"""

    @property
    def name(self) -> str:
        """The upstream's name."""
        return self.upstream.settings.name

    @property
    def seconds_open(self) -> float:
        """Seconds until it may be called because a circuit is open; 0: now."""
        return self.limiter.seconds_open(self.model, self.project)

    @property
    def answered_at(self) -> float:
        """When the model answered last, in this process, in seconds since the epoch; 0: never."""
        return self.limiter.answered_at(self.model)

    def acquire(
        self, *, interactive: bool, waits: bool = True
    ) -> AbstractAsyncContextManager[Permit]:
        """As ConcurrencyLimiter.acquire, for this model and project."""
        return self.limiter.acquire(
            self.model,
            self.project,
            interactive=interactive,
            waits=waits,
            failed_at=self.failed_at,
        )


class Upstreams:
    """All configured upstreams, each with its connections."""

    def __init__(self, settings: Settings, streams: int) -> None:
        """`streams`: the maximum number of turns at a time, without the reserve (ADR 0069)."""
        self._routes = ProjectRoutes(settings)
        upstreams = self._routes.server.upstreams
        # One of several must not take all slots: while it is slow the others still have some.
        share = None if len(upstreams) == 1 else max(1, streams * 3 // 4)
        reserve = ReservedSlots.beside(streams).reserve
        self._by_name: dict[str, tuple[Upstream, ConcurrencyLimiter]] = {}
        for name, upstream_settings in upstreams.items():
            own_limit = upstream_settings.concurrency
            limit = own_limit or share
            self._by_name[name] = (
                Upstream(
                    upstream_settings,
                    limits_of(settings.limits, upstream_settings),
                    own_limit or (share or streams) + reserve,
                ),
                ConcurrencyLimiter(upstream_settings, limit, 0 if own_limit else reserve),
            )

    def candidates(self, model: str, project: UUID, policy: ProjectPolicy) -> list[Candidate]:
        """The upstreams for this model of the project, in order; at least one. Raises
        UpstreamFailed if no route leads to one (any more)."""
        routes = self._routes.of(project, policy.routes)
        candidates = [
            Candidate(*self._by_name[destination.upstream.name], destination.model, project)
            for destination in routes.find(model)
        ]
        if not candidates:
            raise not_configured(model) if routes.has_route(model) else no_such_model(model)
        return candidates

    async def write_states(self, redis: Redis, worker: UUID) -> None:
        """Writes what this worker knows of each of them to Redis, for the console, every few
        seconds. Never returns. Without Redis the console says so."""
        while True:
            states = [limiter.state() for _, limiter in self._by_name.values()]
            with suppress(*REDIS_ERRORS):
                await write_states(redis, worker, states)
            await asyncio.sleep(INTERVAL)

    async def close(self) -> None:
        """Closes all connections."""
        for upstream, _ in self._by_name.values():
            await upstream.close()


@dataclass(frozen=True, slots=True)
class FailedTry:
    """A call that failed before its first output."""

    candidate: Candidate
    failure: UpstreamFailed | LimitReached
    call: FailedCall
    """for operators"""


def failure_of_all(failed: Sequence[FailedTry], *, can_wait: bool) -> RunError:
    """The error to raise when all upstreams failed without output: Deferred if the response can
    wait and one of them may answer later.

    That is one whose failure is temporary, or whose circuit is open. A response that cannot wait
    gets a real failure rather than UpstreamBusy.
    """
    waits = {
        at: max(_seconds_to_wait(each.failure), circuit_seconds)
        for at, each in enumerate(failed)
        if (circuit_seconds := each.candidate.seconds_open) > 0 or _is_temporary(each.failure)
    }
    failures = [each.failure for each in failed]
    if can_wait and waits:
        order = sorted(range(len(failed)), key=lambda at: at in waits)
        calls = [failed[at].call for at in order]
        returns_soon = any(
            isinstance(failure, UpstreamBusy) and failure.returns_soon for failure in failures
        )
        return Deferred(min(waits.values()), calls, returns_soon=returns_soon)
    real_failures = [failure for failure in failures if not isinstance(failure, UpstreamBusy)]
    return (real_failures or failures)[-1]


def repeat_of_turn(
    candidate: Candidate, failure: UpstreamFailed | LimitReached, repeats: int
) -> Deferred | None:
    """The deferral after which the turn is repeated, if the upstream broke off its answer. None if
    the failure ends the response: it is of another kind, or the turn was repeated often enough.

    `repeats`: how often it was repeated before.
    """
    if repeats >= candidate.upstream.settings.repeat_turns or not is_interruption(failure):
        return None
    seconds = max(_seconds_to_wait(failure), candidate.seconds_open)
    call = FailedCall(candidate.name, failure.reason, failure.message)
    return Deferred(seconds, [call], repeat=repeats + 1)


def _is_temporary(failure: UpstreamFailed | LimitReached) -> bool:
    return isinstance(failure, UpstreamFailed) and failure.is_temporary


def _seconds_to_wait(failure: UpstreamFailed | LimitReached) -> float:
    """How long the upstream wants not to be called, within bounds."""
    if isinstance(failure, UpstreamBusy):
        return failure.seconds
    if isinstance(failure, UpstreamFailed) and failure.retry_after is not None:
        return min(_MAX_RETRY_AFTER, float(failure.retry_after))
    return 0.0
