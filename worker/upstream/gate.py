"""Who may ask an upstream now: so many at a time, and nobody while its circuit is open (docs/upstreams.md).

A gate is one process's own: what one worker has found out, another finds out by itself.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from models.config.upstream import UpstreamSettings
from models.errors import LimitReached, UpstreamBusy, UpstreamFailed, UpstreamUnreached
from worker import metrics
from worker.upstream.circuit import Circuit

logger = structlog.get_logger()

_OUTAGE_REASONS = re.compile(r"first_token|upstream_unreachable|upstream_reset|upstream_5\d\d")
"""Reasons of failures after which, several in a row, an upstream counts as down."""
_MAX_MODELS = 1000


class Permit:
    """One call that was let through."""

    def __init__(self, circuits: list[Circuit]) -> None:
        self._circuits = circuits
        self._probes = [circuit for circuit in circuits if circuit.is_open]
        self._has_result = False
        for circuit in circuits:
            circuit.record_call()

    def record_success(self) -> None:
        """The upstream has spoken. To be called at least for the first word; later calls are free."""
        if not self._has_result:
            self._has_result = True
            for circuit in self._circuits:
                circuit.record_success()

    def record_failure(self, failure: UpstreamFailed | LimitReached) -> None:
        """It has failed before its first word: who cannot be reached is down for all models, who answers badly for this one."""
        if self._has_result:
            return
        if not _OUTAGE_REASONS.fullmatch(failure.reason):
            self.record_success()
            return
        self._has_result = True
        upstream, model = self._circuits
        unsent = isinstance(failure, UpstreamUnreached)
        down, other = (upstream, model) if unsent else (model, upstream)
        down.record_failure(time.monotonic(), as_probe=down in self._probes)
        if not unsent:
            other.record_success()

    def record_end(self) -> None:
        """Nothing more comes of it."""
        for circuit in self._circuits:
            circuit.record_end(as_probe=circuit in self._probes)


class ConcurrencyLimiter:
    """One upstream's."""

    def __init__(self, settings: UpstreamSettings, limit: int | None) -> None:
        """`limit`: calls at a time; None: as many as there are streams."""
        self._settings = settings
        self._limit = limit
        self._running = 0
        self._interactive: deque[asyncio.Future[None]] = deque()
        self._background: deque[asyncio.Future[None]] = deque()
        self._upstream_circuit = self._new_circuit()
        self._model_circuits: dict[str, Circuit] = {}
        """Those of models that have something to remember, and of those that are asked now."""
        name = settings.name
        self._streams = metrics.UPSTREAM_STREAMS.labels(name)
        for outcome in ("answered", "failed", "busy"):
            metrics.UPSTREAM_TURNS.labels(name, outcome)
        metrics.CIRCUITS_OPEN.labels(name).set_function(
            lambda: sum(
                circuit.is_open
                for circuit in (self._upstream_circuit, *self._model_circuits.values())
            )
        )

    def seconds_open(self, model: str) -> float:
        """Seconds for which this model is not to be had because a circuit is open; 0: a call may be let through."""
        now = time.monotonic()
        return max(
            self._upstream_circuit.wait(now),
            self._model_circuits[model].wait(now) if model in self._model_circuits else 0.0,
        )

    @asynccontextmanager
    async def acquire(self, model: str, *, interactive: bool) -> AsyncIterator[Permit]:
        """Waits for room and lets one call through. Raises UpstreamBusy when it cannot be asked now."""
        self._require_closed(model)
        await self._acquire_slot(interactive=interactive)
        try:
            self._require_closed(model)  # it may have opened while we waited
            circuit = self._model_circuits.setdefault(model, self._new_circuit())
            permit = Permit([self._upstream_circuit, circuit])
            try:
                yield permit
            except (UpstreamFailed, LimitReached) as failure:
                was_open = self._upstream_circuit.is_open or circuit.is_open
                permit.record_failure(failure)
                if not was_open and (self._upstream_circuit.is_open or circuit.is_open):
                    logger.warning(
                        "circuit_opened", upstream=self._settings.name, reason=failure.reason
                    )
                raise
            finally:
                permit.record_end()
                self._drop_idle_circuits(model)
        finally:
            self._release_slot()

    def _drop_idle_circuits(self, model: str) -> None:
        """Models' names are clients' words: only of those that fail anything is kept, and not of ever more."""
        if model in self._model_circuits and self._model_circuits[model].is_idle:
            del self._model_circuits[model]
        while len(self._model_circuits) > _MAX_MODELS:
            del self._model_circuits[next(iter(self._model_circuits))]

    def _require_closed(self, model: str) -> None:
        pause = self.seconds_open(model)
        if pause > 0:
            message = "The upstream is down: it has failed several times in a row, and is not asked again for a while."
            raise UpstreamBusy(message, reason="upstream_down", status=503, seconds=pause)

    async def _acquire_slot(self, *, interactive: bool) -> None:
        if self._limit is None or (
            self._running < self._limit
            and not self._interactive
            and not (self._background and not interactive)
        ):
            self._running += 1
            self._streams.set(self._running)
            return
        queue = self._interactive if interactive else self._background
        if not interactive and len(queue) >= self._limit:
            raise self._busy_error()
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(place)
        try:
            async with asyncio.timeout(self._settings.wait.total_seconds()):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self._release_slot()  # it was given to us in the same moment
            elif place in queue:  # whoever left meanwhile may have thrown it away
                queue.remove(place)
            if isinstance(error, TimeoutError):
                raise self._busy_error() from error
            raise

    def _release_slot(self) -> None:
        """Gives the place to the next: who waits on the line goes first."""
        for queue in (self._interactive, self._background):
            while queue:
                place = queue.popleft()
                if not place.done():
                    place.set_result(None)
                    return
        self._running -= 1
        self._streams.set(self._running)

    def _busy_error(self) -> UpstreamBusy:
        return UpstreamBusy(
            f"The upstream is busy: it runs {self._limit} responses already, as many as this server gives it.",
            code="rate_limit_exceeded", reason="upstream_full", status=429, seconds=1.0, envelope_code="rate_limit_exceeded",
        )  # fmt: skip

    def _new_circuit(self) -> Circuit:
        return Circuit(self._settings.circuit_failures, self._settings.circuit_pause)
