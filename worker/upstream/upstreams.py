"""The upstreams of a worker process, which of them are called for a model, and the limiter of each:
a number of calls at a time, and none while its circuit is open (docs/upstreams.md). And how many
tokens a request has: as the upstream counts, else by a local tokenizer, else an estimate.

Each process has its own limiters and learns of an upstream's state by its own calls.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from uuid import UUID

import structlog
from redis.asyncio import Redis

from models.config.routes import limits_of
from models.config.settings import Settings
from models.config.upstream import UpstreamSettings
from models.errors import (
    Deferred,
    FailedCall,
    LimitReached,
    RunError,
    UpstreamBusy,
    UpstreamFailed,
)
from models.load.fair_queue import FairQueue, ReservedSlots
from models.projects.policy import ProjectPolicy
from models.projects.routes import ProjectRoutes
from models.redis.client import REDIS_ERRORS
from models.redis.upstream_states import INTERVAL, UpstreamState, write_states
from worker import metrics
from worker.translation.history.size import TokenCounter, count_request_tokens
from worker.upstream.body_reader import Arrivals
from worker.upstream.circuits import Circuits, Permit
from worker.upstream.client import Upstream
from worker.upstream.error_rules import no_such_model
from worker.upstream.failures import is_interruption, not_configured

logger = structlog.get_logger()

UPSTREAM_FULL = "upstream_full"
"""The reason of an UpstreamBusy: as many calls run as the limit permits."""


class ConcurrencyLimiter:
    """The limiter of one upstream."""

    def __init__(self, settings: UpstreamSettings, limit: int | None, reserve: int = 0) -> None:
        """`limit`: calls at a time; None: no limit but the worker's slots. `reserve`: calls above
        it, each of a project that has none here (ADR 0041)."""
        self._settings = settings
        self._limit = limit
        self._permits = permits = FairQueue(limit, reserve)
        self._circuits = circuits = Circuits(settings)
        name = settings.name
        metrics.add_upstream(name)
        metrics.UPSTREAM_STREAMS.labels(name).set_function(lambda: permits.used)
        metrics.CIRCUITS_OPEN.labels(name).set_function(lambda: circuits.open_count)

    def seconds_open(self, model: str, project: UUID) -> float:
        """Seconds until the project may call this model because a circuit is open; 0: now."""
        return self._circuits.seconds_open(model, project)

    def answered_at(self, model: str) -> float:
        """When the model answered last, in seconds since the epoch; 0: never, or long ago."""
        return self._circuits.answered_at(model)

    def state(self) -> UpstreamState:
        """What is known now, for the console. Reasons only: the words of a failure may be about
        another project's request."""
        return UpstreamState(
            name=self._settings.name,
            running=self._permits.used,
            limit=self._limit,
            waiting=self._permits.waiting,
            circuits=self._circuits.open_circuits(),
            last_reason=self._circuits.last_reason,
            last_failed_at=round(self._circuits.last_failed_at, 1),
        )

    @asynccontextmanager
    async def acquire(
        self,
        model: str,
        project: UUID,
        *,
        interactive: bool,
        waits: bool = True,
        failed_at: float | None = None,
    ) -> AsyncIterator[Permit]:
        """Waits until the limit permits a call of the project, if it `waits`. `failed_at`: as
        `Circuits.permit` takes it. Raises UpstreamBusy if it is not permitted in time, with the
        reason UPSTREAM_FULL, or if a circuit is open."""
        self._circuits.require_closed(model, project)
        await self._acquire(project, interactive=interactive, waits=waits)
        try:
            self._circuits.require_closed(model, project)  # one may have opened meanwhile
            with self._circuits.permit(model, project, failed_at) as permit:
                yield permit
        finally:
            self._permits.release(project)

    async def _acquire(self, project: UUID, *, interactive: bool, waits: bool) -> None:
        permits, low = self._permits, not interactive
        if permits.try_acquire(project, low=low):
            return
        # Without a limit every call has got its permit.
        places = (self._limit or 0) if low else self._settings.waiting_per_project
        if not waits or permits.waiting_of(project, low=low) >= places:
            raise self._busy_error()
        try:
            async with asyncio.timeout(self._settings.wait.total_seconds()):
                await permits.acquire(project, low=low)
        except TimeoutError as error:
            is_last = not permits.waiting_of(project, low=low)
            raise self._busy_error(returns_soon=is_last) from error

    def _busy_error(self, *, returns_soon: bool = False) -> UpstreamBusy:
        return UpstreamBusy(
            f"The upstream is busy: it runs {self._limit} responses already, "
            "as many as this server gives it.",
            code="rate_limit_exceeded",
            reason=UPSTREAM_FULL,
            status=429,
            seconds=1.0,
            envelope_code="rate_limit_exceeded",
            returns_soon=returns_soon,
        )


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
        """`streams`: the maximum number of turns at a time, without the reserve (ADR 0041)."""
        self.arrivals = Arrivals()
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
                    self.arrivals,
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


CountSource = Literal["upstream", "tokenizer", "estimate"]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A number of tokens, and where it comes from."""

    tokens: int
    source: CountSource


class RequestTokenCounter:
    """Counts for the whole process. Each tokenizer is loaded once, when it is first used."""

    def __init__(self) -> None:
        self._token_counters: dict[str, TokenCounter | None] = {}
        self._load_lock = asyncio.Lock()

    async def count(self, candidate: Candidate, body: dict[str, Any]) -> TokenCount:
        """Input tokens of `body`, the request as it would be sent to this candidate."""
        counted = await candidate.upstream.count(body)
        if counted is not None:
            return TokenCount(counted, "upstream")
        count_text = await self._token_counter(candidate.upstream.settings)
        if count_text is not None:
            return TokenCount(
                await asyncio.to_thread(count_request_tokens, body, count_text), "tokenizer"
            )
        return TokenCount(await asyncio.to_thread(count_request_tokens, body), "estimate")

    async def _token_counter(self, settings: UpstreamSettings) -> TokenCounter | None:
        path = settings.tokenizer
        if not path:
            return None
        async with self._load_lock:
            if path not in self._token_counters:
                self._token_counters[path] = await asyncio.to_thread(_load_tokenizer, path)
            return self._token_counters[path]


def _load_tokenizer(path: str) -> TokenCounter | None:
    """The tokenizer of a `tokenizer.json`; None and a log entry if it cannot be read."""
    try:
        library = importlib.import_module("tokenizers")
        tokenizer = library.Tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001 - what the library raises for an unreadable file
        # A wrong setting needs no traceback.
        logger.error("tokenizer_unreadable", path=path, error=str(error))  # noqa: TRY400
        return None
    return partial(_token_count, tokenizer)


def _token_count(tokenizer: Any, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


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
