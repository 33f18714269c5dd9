"""What is measured by model and upstream, on request by project: responses, calls of upstreams,
their tokens, and the span of each call where traces are on. What in an answer this server does not
understand is noted.

Clients choose the names of models. A name is a label only if a route has it, or if an upstream has
answered it and there are not too many such names yet. Otherwise the label is `other`.
"""

import time
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Self

import structlog

from models.config.groups import MetricsSettings
from models.errors import UNKNOWN_CONTENT, FailedCall
from models.lifecycle import TERMINAL, Status
from models.metrics import SECOND_BUCKETS
from models.prices import BILLIONTHS
from models.tracing.spans import Span
from worker.metrics import UNKNOWN_CONTENT_TURNS, counter, histogram
from worker.run.attempt import Attempt
from worker.run.spans import end_call_span
from worker.translation.turn import Turn
from worker.upstream.upstreams import Candidate

logger = structlog.get_logger()

OTHER = "other"
"""The label of a model or a project that has none of its own."""
NO_UPSTREAM = "none"
"""The label of a response that no upstream has answered."""
_MAX_PROJECTS = 1000

RESPONSE_SECONDS = histogram(
    "backburner_response_seconds",
    "From the creation of a response to its end, by the upstream of its last turn.",
    ["model", "upstream", "status"],
    buckets=SECOND_BUCKETS,
)
FIRST_TOKEN_SECONDS = histogram(
    "backburner_upstream_first_token_seconds",
    "From the request of a turn to its first output.",
    ["model", "upstream"],
    buckets=SECOND_BUCKETS,
)
TURN_SECONDS = histogram(
    "backburner_upstream_turn_seconds",
    "From the request of a turn to the end of its output, of turns that an upstream has answered.",
    ["model", "upstream"],
    buckets=SECOND_BUCKETS,
)
TOKENS = counter(
    "backburner_tokens",
    "Tokens by the upstreams' own counts: input, and cached_input as a part of it; output, and "
    "reasoning as a part of it.",
    ["model", "upstream", "kind"],
)
PROJECT_RESPONSES = counter(
    "backburner_project_responses_ended",
    "Responses ended, by project and status. Only with BACKBURNER_METRICS__PROJECTS.",
    ["project", "status"],
)
PROJECT_TOKENS = counter(
    "backburner_project_tokens",
    "As backburner_tokens_total, by project. Only with BACKBURNER_METRICS__PROJECTS.",
    ["project", "kind"],
)
COST = counter(
    "backburner_cost",
    "What responses cost, in the currency of the settings, by the upstream of the last turn; "
    "without those whose cost is not known.",
    ["model", "upstream"],
)
PROJECT_COST = counter(
    "backburner_project_cost",
    "As backburner_cost_total, by project. Only with BACKBURNER_METRICS__PROJECTS.",
    ["project"],
)


class Labels:
    """Which names are labels. One for the process, as the metrics are."""

    def __init__(self) -> None:
        self.configure(MetricsSettings(), ())

    def configure(self, settings: MetricsSettings, routed_models: Collection[str]) -> None:
        """`routed_models`: names of models that routes have without a `*`."""
        self._max_models = settings.models
        self._shows_projects = settings.projects
        self._routed_models = frozenset(routed_models)
        self._answered_models: set[str] = set()
        self._projects: set[str] = set()

    def model(self, name: str) -> str:
        """The label of a model as clients name it."""
        return name if name in self._routed_models or name in self._answered_models else OTHER

    def answered_model(self, name: str) -> str:
        """The label of a model that an upstream has answered."""
        if name not in self._routed_models and len(self._answered_models) < self._max_models:
            self._answered_models.add(name)
        return self.model(name)

    def project(self, project: str) -> str | None:
        """The label of a project; None if projects are not shown."""
        if not self._shows_projects:
            return None
        if len(self._projects) < _MAX_PROJECTS:
            self._projects.add(project)
        return project if project in self._projects else OTHER


LABELS = Labels()


class TurnSeries:
    """The series of one model at one upstream."""

    __slots__ = ("_tokens", "first_token_seconds", "turn_seconds")

    def __init__(self, model: str, upstream: str) -> None:
        """Both are labels."""
        self.first_token_seconds = FIRST_TOKEN_SECONDS.labels(model, upstream)
        self.turn_seconds = TURN_SECONDS.labels(model, upstream)
        self._tokens = {kind: TOKENS.labels(model, upstream, kind) for kind in _TOKEN_COUNTS}

    def count_tokens(self, usage: Mapping[str, Any]) -> None:
        """`usage`: of the turn, in the Responses shape."""
        for kind, tokens in _token_counts(usage):
            if tokens:
                self._tokens[kind].inc(tokens)


_turn_series: dict[tuple[str, str], TurnSeries] = {}


def turn_series(model: str, upstream: str) -> TurnSeries:
    """The series of a model that this upstream has answered. `model`: as clients name it."""
    key = LABELS.answered_model(model), upstream
    series = _turn_series.get(key)
    if series is None:
        series = _turn_series[key] = TurnSeries(*key)
    return series


def count_project_tokens(project: str, usage: Mapping[str, Any]) -> None:
    """Counts the usage of a turn for the project, if projects are shown."""
    label = LABELS.project(project)
    if label is not None:
        for kind, tokens in _token_counts(usage):
            PROJECT_TOKENS.labels(label, kind).inc(tokens)


def observe_end(
    model: str, upstream: str | None, project: str, status: Status, seconds: float
) -> None:
    """Observes the end of a response, so many seconds after its creation."""
    labels = LABELS.model(model), upstream or NO_UPSTREAM, status.value
    RESPONSE_SECONDS.labels(*labels).observe(seconds)
    label = LABELS.project(project)
    if label is not None:
        for each in TERMINAL:
            PROJECT_RESPONSES.labels(label, each.value)
        PROJECT_RESPONSES.labels(label, status.value).inc()


def count_cost(model: str, upstream: str | None, project: str, cost: int | None) -> None:
    """Counts what a response cost, in billionths of the currency; None: nobody knows."""
    if not cost:
        return
    COST.labels(LABELS.model(model), upstream or NO_UPSTREAM).inc(cost / BILLIONTHS)
    label = LABELS.project(project)
    if label is not None:
        PROJECT_COST.labels(label).inc(cost / BILLIONTHS)


_TOKEN_COUNTS = {
    "input": ("input_tokens", None),
    "cached_input": ("input_tokens_details", "cached_tokens"),
    "output": ("output_tokens", None),
    "reasoning": ("output_tokens_details", "reasoning_tokens"),
}
"""kind -> the field of a usage, and of its details"""


def _token_counts(usage: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [
        (kind, usage[field] if detail is None else usage[field][detail])
        for kind, (field, detail) in _TOKEN_COUNTS.items()
    ]


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
