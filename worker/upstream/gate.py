"""Limits the calls of an upstream: a number at a time, and none while its circuit is open
(docs/upstreams.md).

Each process has its own limiter and learns of an upstream's state by its own calls.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from models.config.upstream import UpstreamSettings
from models.errors import UpstreamBusy
from models.redis.upstream_states import UpstreamState
from worker import metrics
from worker.upstream.circuits import Circuits, Permit
from worker.upstream.waiting_calls import WaitingCalls

UPSTREAM_FULL = "upstream_full"
"""The reason of an UpstreamBusy: as many calls run as the limit permits."""


class ConcurrencyLimiter:
    """The limiter of one upstream."""

    def __init__(self, settings: UpstreamSettings, limit: int | None, reserve: int = 0) -> None:
        """`limit`: calls at a time; None: no limit but the worker's slots. `reserve`: calls above
        it, each of a project that has none here (ADR 0069)."""
        self._settings = settings
        self._limit = limit
        self._reserve = reserve
        self._running = 0
        self._calls: Counter[UUID] = Counter()
        """By project, those that run."""
        self._waiting = WaitingCalls(foreground=settings.waiting_per_project, background=limit or 0)
        self._circuits = circuits = Circuits(settings)
        name = settings.name
        self._streams = metrics.UPSTREAM_STREAMS.labels(name)
        metrics.add_upstream(name)
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
            running=self._running,
            limit=self._limit,
            waiting=len(self._waiting),
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
        await self._acquire_slot(project, interactive=interactive, waits=waits)
        self._calls[project] += 1
        try:
            self._circuits.require_closed(model, project)  # one may have opened meanwhile
            with self._circuits.permit(model, project, failed_at) as permit:
                yield permit
        finally:
            self._calls[project] -= 1
            self._calls += Counter()  # leaves out projects without calls
            self._release_slot()

    async def _acquire_slot(self, project: UUID, *, interactive: bool, waits: bool) -> None:
        waiting = self._waiting
        if (
            self._limit is None
            or (self._running < self._limit and waiting.goes_next(interactive=interactive))
            or (project not in self._calls and self._running < self._limit + self._reserve)
        ):
            self._running += 1
            self._streams.set(self._running)
            return
        place = waiting.add(project, interactive=interactive) if waits else None
        if place is None:
            raise self._busy_error()
        try:
            async with asyncio.timeout(self._settings.wait.total_seconds()):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self._release_slot()  # the slot was assigned in the same moment
            waiting.remove(project, place, interactive=interactive)
            if isinstance(error, TimeoutError):
                is_last = not waiting.is_waiting(project, interactive=interactive)
                raise self._busy_error(returns_soon=is_last) from error
            raise

    def _release_slot(self) -> None:
        """Gives the slot to the next waiting call, if it is not one of the reserve."""
        in_reserve = self._limit is not None and self._running > self._limit
        if in_reserve or not self._waiting.wake_next():
            self._running -= 1
            self._streams.set(self._running)

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
