"""Measures one call of an upstream: for the metrics, and for its span where traces are on."""

import time
from types import TracebackType
from typing import Any, Self

from models.tracing.spans import Span
from worker.model_metrics import count_project_tokens, turn_series
from worker.run.call_span import end_call_span
from worker.translation.turn import Turn


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
