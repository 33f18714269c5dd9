"""Limits the calls of an upstream: a number at a time, and none while its circuit is open
(docs/upstreams.md).

Each process has its own limiter and learns of an upstream's state by its own calls.
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
from models.redis.upstream_states import OpenCircuit, UpstreamState
from worker import metrics
from worker.upstream.circuit import Circuit

logger = structlog.get_logger()

_OUTAGE_REASONS = re.compile(r"first_token|upstream_unreachable|upstream_reset|upstream_5\d\d")
"""Reasons of failures that count: after several in a row the upstream is down."""
UPSTREAM_FULL = "upstream_full"
"""The reason of an UpstreamBusy: as many calls run as the limit permits."""
_MAX_MODELS = 1000
"""Models with a circuit."""
_SHOWN_CIRCUITS = 20
"""Open circuits of an upstream that the console shows, of each worker."""


class Permit:
    """A permitted call."""

    def __init__(self, circuits: list[Circuit]) -> None:
        self._circuits = circuits
        self._probes = [circuit for circuit in circuits if circuit.is_open]
        self._has_result = False
        for circuit in circuits:
            circuit.record_call()

    def record_success(self) -> None:
        """The call has output. To be called at the first output; further calls have no effect."""
        if not self._has_result:
            self._has_result = True
            for circuit in self._circuits:
                circuit.record_success()

    def record_failure(self, failure: UpstreamFailed | LimitReached) -> None:
        """The call failed before its first output.

        If the upstream cannot be reached, it is down for all models; if it answers with an error,
        for this model.
        """
        if self._has_result:
            return
        if not _OUTAGE_REASONS.fullmatch(failure.reason):
            self.record_success()
            return
        self._has_result = True
        upstream, model = self._circuits
        unsent = isinstance(failure, UpstreamUnreached)
        failed = upstream if unsent else model
        failed.record_failure(time.monotonic(), as_probe=failed in self._probes)
        failed.last_reason = failure.reason
        if not unsent:
            upstream.record_success()

    def record_end(self) -> None:
        """The call ended."""
        for circuit in self._circuits:
            circuit.record_end(as_probe=circuit in self._probes)


class ConcurrencyLimiter:
    """The limiter of one upstream."""

    def __init__(self, settings: UpstreamSettings, limit: int | None) -> None:
        """`limit`: calls at a time; None: no limit but the worker's slots."""
        self._settings = settings
        self._limit = limit
        self._running = 0
        self._interactive: deque[asyncio.Future[None]] = deque()
        self._background: deque[asyncio.Future[None]] = deque()
        self._last_reason: str | None = None
        self._last_failed_at = 0.0
        self._upstream_circuit = self._new_circuit()
        self._model_circuits: dict[str, Circuit] = {}
        """Circuits of models with calls or with failures."""
        name = settings.name
        self._streams = metrics.UPSTREAM_STREAMS.labels(name)
        metrics.add_upstream(name)
        metrics.CIRCUITS_OPEN.labels(name).set_function(
            lambda: sum(
                circuit.is_open
                for circuit in (self._upstream_circuit, *self._model_circuits.values())
            )
        )

    def seconds_open(self, model: str) -> float:
        """Seconds until this model may be called because a circuit is open; 0: now."""
        now = time.monotonic()
        return max(
            self._upstream_circuit.wait(now),
            self._model_circuits[model].wait(now) if model in self._model_circuits else 0.0,
        )

    def state(self) -> UpstreamState:
        """What is known now, for the console. Reasons only: the words of a failure may be about
        another project's request."""
        now = time.monotonic()
        circuits = [(None, self._upstream_circuit), *self._model_circuits.items()]
        return UpstreamState(
            name=self._settings.name,
            running=self._running,
            limit=self._limit,
            waiting=len(self._interactive) + len(self._background),
            circuits=tuple(
                OpenCircuit(circuit.last_reason, round(circuit.wait(now), 1), model)
                for model, circuit in circuits
                if circuit.is_open
            )[:_SHOWN_CIRCUITS],
            last_reason=self._last_reason,
            last_failed_at=round(self._last_failed_at, 1),
        )

    @asynccontextmanager
    async def acquire(
        self, model: str, *, interactive: bool, waits: bool = True
    ) -> AsyncIterator[Permit]:
        """Waits until the limit permits a call, if it `waits`. Raises UpstreamBusy if it is not
        permitted in time, with the reason UPSTREAM_FULL, or if a circuit is open."""
        self._require_closed(model)
        await self._acquire_slot(interactive=interactive, waits=waits)
        try:
            self._require_closed(model)  # a circuit may have opened meanwhile
            circuit = self._model_circuits.get(model)
            if circuit is None:
                circuit = self._model_circuits[model] = self._new_circuit()
            permit = Permit([self._upstream_circuit, circuit])
            try:
                yield permit
            except (UpstreamFailed, LimitReached) as failure:
                was_open = self._upstream_circuit.is_open or circuit.is_open
                permit.record_failure(failure)
                self._last_reason, self._last_failed_at = failure.reason, time.time()
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
        """Drops circuits without state. Clients choose the names of models, so the number of
        circuits is bounded."""
        if model in self._model_circuits and self._model_circuits[model].is_idle:
            del self._model_circuits[model]
        while len(self._model_circuits) > _MAX_MODELS:
            del self._model_circuits[next(iter(self._model_circuits))]

    def _require_closed(self, model: str) -> None:
        pause = self.seconds_open(model)
        if pause > 0:
            # Only the reason: the words of that failure may be about another project's request.
            circuits = [self._upstream_circuit, *filter(None, [self._model_circuits.get(model)])]
            reason = next(circuit.last_reason for circuit in circuits if circuit.is_open)
            message = (
                "The upstream is down: it has failed several times in a row "
                f"({reason}), and is not called for a while."
            )
            raise UpstreamBusy(message, reason="upstream_down", status=503, seconds=pause)

    async def _acquire_slot(self, *, interactive: bool, waits: bool) -> None:
        if self._limit is None or (
            self._running < self._limit
            and not self._interactive
            and not (self._background and not interactive)
        ):
            self._running += 1
            self._streams.set(self._running)
            return
        queue = self._interactive if interactive else self._background
        if not waits or (not interactive and len(queue) >= self._limit):
            raise self._busy_error()
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(place)
        try:
            async with asyncio.timeout(self._settings.wait.total_seconds()):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self._release_slot()  # the slot was assigned in the same moment
            elif place in queue:  # `_release_slot` may have removed it
                queue.remove(place)
            if isinstance(error, TimeoutError):
                raise self._busy_error() from error
            raise

    def _release_slot(self) -> None:
        """Gives the slot to the next waiting call; interactive ones go first."""
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
            f"The upstream is busy: it runs {self._limit} responses already, "
            "as many as this server gives it.",
            code="rate_limit_exceeded",
            reason=UPSTREAM_FULL,
            status=429,
            seconds=1.0,
            envelope_code="rate_limit_exceeded",
        )

    def _new_circuit(self) -> Circuit:
        return Circuit(self._settings.circuit_failures, self._settings.circuit_pause)
