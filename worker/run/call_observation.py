"""Measures one call of an upstream, for the metrics and for its span where traces are on, and notes
what in its answer this server does not understand."""

import time
from types import TracebackType
from typing import Any, Self

import structlog

from models.errors import UNKNOWN_CONTENT, FailedCall
from models.tracing.spans import Span
from worker.metrics import UNKNOWN_CONTENT_TURNS
from worker.model_metrics import count_project_tokens, turn_series
from worker.run.attempt import Attempt
from worker.run.spans import end_call_span
from worker.translation.turn import Turn
from worker.upstream.upstreams import Candidate

logger = structlog.get_logger()

_MAX_NAMES = 10
"""Names that are noted of one answer."""
_MAX_NAME = 100
"""Characters of one."""
_MAX_LOGGED = 1000
"""Lines that one process logs: an upstream may make up names."""

_logged: set[tuple[str, str, str]] = set()
"""Upstream, model and name of what this process has logged."""


class CallObservation:
    """One call, as a context from the moment in which its request is sent until its turn is over,
    with an outcome or broken off."""

    def __init__(
        self,
        turn: Turn[Any],
        span: Span,
        *,
        model: str,
        upstream: str,
        project: str,
        has_content: bool,
    ) -> None:
        """`model`: as clients name it. `upstream`: its name. `has_content`: the span shows what the
        model answers. The span is ended here."""
        self._turn = turn
        self._span = span
        self._model = model
        self._upstream = upstream
        self._project = project
        self._has_content = has_content
        self._started_at = time.monotonic()
        self._has_output = False

    @property
    def traceparent(self) -> str | None:
        """The header by which the upstream continues the trace."""
        return self._span.traceparent

    def record_output(self) -> None:
        """The call has output. Further calls have no effect."""
        if self._has_output:
            return
        self._has_output = True
        seconds = time.monotonic() - self._started_at
        turn_series(self._model, self._upstream).first_token_seconds.observe(seconds)
        self._span.event("first output")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Observes the whole call."""
        turn, usage = self._turn, self._turn.upstream_usage
        if turn.outcome is not None and turn.outcome.failure is not None:
            error = turn.outcome.failure
        is_answered = turn.outcome is not None and error is None
        if is_answered or usage is not None:
            series = turn_series(self._model, self._upstream)
            if is_answered:
                series.turn_seconds.observe(time.monotonic() - self._started_at)
            if usage is not None:
                series.count_tokens(usage)
                count_project_tokens(self._project, usage)
        end_call_span(self._span, turn, error, has_content=self._has_content)


def note_unknown_content(attempt: Attempt, candidate: Candidate, names: set[str]) -> None:
    """Counts, logs once, and notes for `backburner explain`, where the upstream has sent content
    that is not understood: `delta.NAME`."""
    if not names:
        return
    UNKNOWN_CONTENT_TURNS.labels(candidate.name).inc()
    shown = [name[:_MAX_NAME] for name in sorted(names)[:_MAX_NAMES]]
    attempt.failed_calls.append(FailedCall(candidate.name, UNKNOWN_CONTENT, ", ".join(shown)))
    for name in shown:
        key = (candidate.name, candidate.model, name)
        if key not in _logged and len(_logged) < _MAX_LOGGED:
            _logged.add(key)
            logger.warning(
                "unknown_content", upstream=candidate.name, model=candidate.model, field=name
            )
