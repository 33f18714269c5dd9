"""The circuits of an upstream: its own, those of its models, and those of projects there
(docs/adr/0014)."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TypeVar
from uuid import UUID

import structlog

from models.config.upstream import UpstreamSettings
from models.errors import LimitReached, UpstreamBusy, UpstreamFailed, UpstreamUnreached
from models.ids import PROJECT, admin_id
from models.redis.upstream_states import OpenCircuit
from worker.upstream.circuit import Circuit

logger = structlog.get_logger()

KeyT = TypeVar("KeyT")

_OUTAGE_REASONS = re.compile(r"first_token|upstream_unreachable|upstream_reset|upstream_5\d\d")
"""Reasons of failures that count: after several in a row the upstream is down."""
_PROJECTS = 2
"""Projects whose calls of a model fail, before nobody's calls of it are made."""
_MAX_CIRCUITS = 1000
"""Models with a circuit, and pairs of a model and a project with one."""
_SHOWN_CIRCUITS = 20
"""Open circuits of an upstream that the console shows, of each worker."""


class Permit:
    """A permitted call."""

    def __init__(
        self,
        upstream: Circuit,
        model: Circuit,
        of_project: Circuit,
        project: UUID,
        *,
        repeats: bool = False,
        answered_since: bool = False,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """`model`: of the model, for all projects. `of_project`: of the model, for this one.
        `repeats`: the last try of the same request failed with an answer. `answered_since`: the
        model has answered others since then. `on_answer`: called at the first output."""
        self._upstream = upstream
        self._model = model
        self._of_project = of_project
        self._project = project
        self._counts_for_all = not of_project.is_open
        """A project whose own circuit is open may be the cause of its failures: they show nothing
        about the model any more."""
        self._counting = [upstream, of_project, *([model] if self._counts_for_all else [])]
        self._probes = [circuit for circuit in self._counting if circuit.is_open]
        self._repeats = repeats
        self._answered_since = answered_since
        self._on_answer = on_answer
        self._has_result = False
        for circuit in self._counting:
            circuit.record_call()

    def record_success(self) -> None:
        """The call has output. To be called at the first output; further calls have no effect."""
        if not self._has_result:
            self._on_answer()
            self._close_circuits()

    def _close_circuits(self) -> None:
        self._has_result = True
        for circuit in (self._upstream, self._model, self._of_project):
            circuit.record_success()

    def record_failure(self, failure: UpstreamFailed | LimitReached) -> None:
        """The call failed before its first output.

        If the upstream cannot be reached, it is down for all models; if it answers with an error,
        for this model. A request that gets an error again counts only while it probes an open
        circuit, and not if the model has answered others in between.
        """
        if self._has_result:
            return
        if not _OUTAGE_REASONS.fullmatch(failure.reason):
            self._close_circuits()
            return
        self._has_result = True
        unsent = isinstance(failure, UpstreamUnreached)
        repeats = self._repeats and isinstance(failure, UpstreamFailed) and failure.may_be_request
        for failed in self._counting:
            if (failed is self._upstream) == unsent:
                is_probe = failed in self._probes
                if repeats and (self._answered_since or not is_probe):
                    continue
                failed.record_failure(time.monotonic(), as_probe=is_probe, project=self._project)
                failed.last_reason = failure.reason
        if not unsent:
            self._upstream.record_success()

    def record_end(self) -> None:
        """The call ended."""
        for circuit in self._counting:
            circuit.record_end(as_probe=circuit in self._probes)


class Circuits:
    """All circuits of one upstream.

    A model has a circuit for each project, and one for all. An answer that fails counts in both,
    but the one for all opens only after failures of two projects: requests of one may be the cause.
    """

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._upstream = self._new_circuit()
        self._models: dict[str, Circuit] = {}
        self._projects: dict[tuple[str, UUID], Circuit] = {}
        self._answered: dict[str, float] = {}
        """When each model answered last, in seconds since the epoch."""
        self.last_reason: str | None = None
        """The reason of the call that failed last; None: none has failed."""
        self.last_failed_at = 0.0
        """When that was, in seconds since the epoch."""

    @property
    def open_count(self) -> int:
        """Circuits that are open."""
        circuits = chain([self._upstream], self._models.values(), self._projects.values())
        return sum(circuit.is_open for circuit in circuits)

    def open_circuits(self) -> tuple[OpenCircuit, ...]:
        """Some of those that are open, for the console; those of all projects first."""
        now = time.monotonic()
        circuits: Iterator[tuple[str | None, UUID | None, Circuit]] = chain(
            [(None, None, self._upstream)],
            ((model, None, circuit) for model, circuit in self._models.items()),
            ((model, project, each) for (model, project), each in self._projects.items()),
        )
        shown = [
            OpenCircuit(
                circuit.last_reason,
                round(circuit.wait(now), 1),
                model,
                None if project is None else admin_id(PROJECT, project),
            )
            for model, project, circuit in circuits
            if circuit.is_open
        ]
        return tuple(shown[:_SHOWN_CIRCUITS])

    def seconds_open(self, model: str, project: UUID) -> float:
        """Seconds until the project may call this model because a circuit is open; 0: now."""
        now = time.monotonic()
        return max(circuit.wait(now) for circuit in self._of_call(model, project))

    def require_closed(self, model: str, project: UUID) -> None:
        """Raises UpstreamBusy if the project may not call this model now."""
        pause = self.seconds_open(model, project)
        if pause > 0:
            # Only the reason: the words of that failure may be about another project's request.
            circuits = self._of_call(model, project)
            reason = next(circuit.last_reason for circuit in circuits if circuit.is_open)
            message = (
                "The upstream is down: it has failed several times in a row "
                f"({reason}), and is not called for a while."
            )
            raise UpstreamBusy(message, reason="upstream_down", status=503, seconds=pause)

    def answered_at(self, model: str) -> float:
        """When the model answered last, in seconds since the epoch; 0: never, or long ago."""
        return self._answered.get(model, 0.0)

    @contextmanager
    def permit(self, model: str, project: UUID, failed_at: float | None = None) -> Iterator[Permit]:
        """A call of this model, which the caller makes within the context. `failed_at`: when the
        last try of the same request failed with an answer, in seconds since the epoch."""
        for_all = self._models.setdefault(model, self._new_circuit(_PROJECTS))
        own = self._projects.setdefault((model, project), self._new_circuit())
        permit = Permit(
            self._upstream,
            for_all,
            own,
            project,
            repeats=failed_at is not None,
            answered_since=failed_at is not None and self.answered_at(model) > failed_at,
            on_answer=partial(self._note_answer, model),
        )
        try:
            yield permit
        except (UpstreamFailed, LimitReached) as failure:
            closed = [each for each in (self._upstream, for_all, own) if not each.is_open]
            permit.record_failure(failure)
            self.last_reason, self.last_failed_at = failure.reason, time.time()
            for circuit in closed:
                if circuit.is_open:
                    logger.warning(
                        "circuit_opened",
                        upstream=self._settings.name,
                        reason=failure.reason,
                        project=str(project) if circuit is own else None,
                    )
            raise
        finally:
            permit.record_end()
            _drop_idle(self._models, model)
            _drop_idle(self._projects, (model, project))

    def _note_answer(self, model: str) -> None:
        self._answered.pop(model, None)
        self._answered[model] = time.time()
        if len(self._answered) > _MAX_CIRCUITS:
            del self._answered[next(iter(self._answered))]

    def _of_call(self, model: str, project: UUID) -> list[Circuit]:
        """Those that have to be closed for a call."""
        known = self._models.get(model), self._projects.get((model, project))
        return [self._upstream, *(circuit for circuit in known if circuit is not None)]

    def _new_circuit(self, projects: int = 1) -> Circuit:
        settings = self._settings
        return Circuit(settings.circuit_failures, settings.circuit_pause, projects)


def _drop_idle(circuits: dict[KeyT, Circuit], key: KeyT) -> None:
    """Drops the circuit if it has no state. Clients choose the names of models, so the number of
    circuits is bounded."""
    if key in circuits and circuits[key].is_idle:
        del circuits[key]
    while len(circuits) > _MAX_CIRCUITS:
        del circuits[next(iter(circuits))]
