"""Circuit breakers: an upstream that is down gets no calls for a while (docs/adr/0014). An upstream
has a circuit of its own, one for each of its models, and for projects there.

While closed, a circuit permits all calls and counts failures in a row. At a threshold it opens: no
call is permitted for a pause. Then one call is permitted as a probe. Its first output closes the
circuit; its failure opens it again for twice as long.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TypeVar
from uuid import UUID

import structlog

from models.config.upstream import UpstreamSettings
from models.errors import LimitReached, UpstreamBusy, UpstreamFailed, UpstreamUnreached
from models.ids import PROJECT, admin_id
from models.redis.upstream_states import OpenCircuit

logger = structlog.get_logger()

_MAX_PAUSE_FACTOR = 4
"""Pauses grow to this many times the first."""
_PROBE_WAIT = 1.0
"""Seconds to wait while a probe runs."""


class Circuit:
    """The circuit of one upstream, or of one model there. Times are seconds of any monotonic
    clock."""

    def __init__(self, failures: int, pause: timedelta, projects: int = 1) -> None:
        """Opens after `failures` in a row, of at least so many `projects`, first for `pause`."""
        self._threshold = failures
        self._min_projects = projects
        self._projects: set[UUID | None] = set()
        """Some of those whose calls failed: as many as have to."""
        self._first_pause = pause.total_seconds()
        self._failures = 0
        self._pause = 0.0
        """The current pause in seconds; 0 while closed."""
        self._open_until = 0.0
        self._has_probe = False
        self._calls = 0
        """Calls that are running."""
        self.last_reason = ""
        """The reason of the last failure."""
        self.opened_at = 0.0
        """When it opened, in seconds since the epoch; a probe that fails does not change it."""

    @property
    def is_open(self) -> bool:
        """Whether it has opened and no call has succeeded since."""
        return self._pause > 0

    @property
    def is_idle(self) -> bool:
        """Whether it has no state worth keeping."""
        return not self._failures and not self.is_open and not self._calls

    def wait(self, now: float) -> float:
        """Seconds until a call may be permitted; 0: now."""
        if not self.is_open:
            return 0.0
        return max(self._open_until - now, _PROBE_WAIT if self._has_probe else 0.0)

    def record_call(self) -> None:
        """A call was permitted."""
        self._calls += 1
        self._has_probe = self.is_open

    def record_success(self) -> None:
        """A call has its first output: closes the circuit."""
        self._failures, self._pause, self._has_probe = 0, 0.0, False
        self._projects.clear()

    def record_failure(self, now: float, *, as_probe: bool, project: UUID | None = None) -> None:
        """A call of this project failed. In an open circuit only the probe counts; calls that began
        earlier do not."""
        self._failures += 1
        if len(self._projects) < self._min_projects:
            self._projects.add(project)
        if as_probe:
            self._open(now, min(self._pause * 2, self._first_pause * _MAX_PAUSE_FACTOR))
        elif not self.is_open and self._is_outage:
            self.opened_at = time.time()
            self._open(now, self._first_pause)

    def record_end(self, *, as_probe: bool) -> None:
        """A call ended, with any result. If a probe had neither success nor failure, another one
        may be made."""
        self._calls -= 1
        self._has_probe = self._has_probe and not as_probe

    @property
    def _is_outage(self) -> bool:
        """Whether so many calls failed, of so many projects, that it opens."""
        return self._failures >= self._threshold and len(self._projects) >= self._min_projects

    def _open(self, now: float, pause: float) -> None:
        self._pause, self._open_until, self._has_probe = pause, now + pause, False


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
                round(circuit.opened_at, 1),
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
