"""Limits the calls of an upstream: a number at a time, and none while its circuit is open
(docs/upstreams.md).

Each process has its own limiter and learns of an upstream's state by its own calls.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from models.config.upstream import UpstreamSettings
from models.errors import UpstreamBusy
from models.load.fair_queue import FairQueue
from models.redis.upstream_states import UpstreamState
from worker import metrics
from worker.upstream.circuits import Circuits, Permit

UPSTREAM_FULL = "upstream_full"
"""The reason of an UpstreamBusy: as many calls run as the limit permits."""


class ConcurrencyLimiter:
    """The limiter of one upstream."""

    def __init__(self, settings: UpstreamSettings, limit: int | None, reserve: int = 0) -> None:
        """`limit`: calls at a time; None: no limit but the worker's slots. `reserve`: calls above
        it, each of a project that has none here (ADR 0069)."""
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
