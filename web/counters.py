"""The counters of a web process, shown at `/metrics`, and figures that one query gives there."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Generic

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch_idempotent
from models.db.statement import Query, RowT
from models.metrics import SECOND_BUCKETS, PoolCollector, new_registry

REGISTRY = new_registry()
POOL = PoolCollector()
REGISTRY.register(POOL)

OTHER_ROUTES = "other"
"""The label of a request for a path without a route."""
_METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
"""Methods that are labels; a client may send any word."""

DEATHS = Counter(
    "backburner_deaths",
    "Processes that this one has declared dead.",
    registry=REGISTRY,
)
HTTP_RESPONSES = Counter(
    "backburner_http_answers", "HTTP responses started, by status.", ["status"], registry=REGISTRY
)
HTTP_SECONDS = Histogram(
    "backburner_http_request_seconds",
    "Seconds from the head of a request to the end of its response, by method, route and status. "
    "A stream ends with its last event. WebSockets are not in it.",
    ["method", "route", "status"],
    buckets=(0.001, 0.0025, 0.005, *SECOND_BUCKETS),
    registry=REGISTRY,
)
RESPONSES_ACCEPTED = Counter(
    "backburner_responses_accepted",
    "Responses created, by mode (background, foreground).",
    ["mode"],
    registry=REGISTRY,
)
RESPONSES_ENDED = Counter(
    "backburner_responses_ended",
    "Responses ended by this process, by status: cancelled in the queue, or completed from the "
    "cache.",
    ["status"],
    registry=REGISTRY,
)
CACHE_LOOKUPS = Counter(
    "backburner_cache_lookups",
    "Cache lookups, by result.",
    ["result"],
    registry=REGISTRY,
)
ENQUEUES_DROPPED = Counter(
    "backburner_enqueues_dropped",
    "Wake-ups that were not sent because Redis was unavailable. A sweep finds their responses.",
    registry=REGISTRY,
)
CANCEL_SECONDS = Histogram(
    "backburner_cancel_seconds",
    "Seconds from a cancel request to the end of the response, at most "
    "BACKBURNER_WEB__CANCEL_WAIT.",
    buckets=SECOND_BUCKETS,
    registry=REGISTRY,
)

_ACCEPTED_IN_BACKGROUND = RESPONSES_ACCEPTED.labels("background")
_ACCEPTED_IN_FOREGROUND = RESPONSES_ACCEPTED.labels("foreground")
RESPONSES_ENDED.labels("cancelled")
RESPONSES_ENDED.labels("completed")
CACHE_LOOKUPS.labels("hit")
CACHE_LOOKUPS.labels("miss")

_request_series: dict[tuple[str, str, int], Histogram] = {}
"""`HTTP_SECONDS.labels` checks and joins its labels, which takes longer than the observation."""
_TIMEOUT = 3.0


def observe_request(method: str, route: str, status: int, seconds: float) -> None:
    """Observes an HTTP request that is over.

    `route`: the template of its path, or OTHER_ROUTES. `status`: 0 if no response has begun.
    """
    series = _request_series.get((method, route, status))
    if series is None:
        known = method if method in _METHODS else "other"
        series = HTTP_SECONDS.labels(known, route, status)
        if known == method:
            _request_series[method, route, status] = series
    series.observe(seconds)


def count_accepted(*, background: bool) -> None:
    """Counts a response that was created. Finding the child of a label takes longer than counting,
    so those of the hot paths are kept."""
    (_ACCEPTED_IN_BACKGROUND if background else _ACCEPTED_IN_FOREGROUND).inc()


@lru_cache
def _http_responses(status: int) -> Counter:
    return HTTP_RESPONSES.labels(status)


def count_http_response(status: int) -> None:
    """Counts a response that was started."""
    _http_responses(status).inc()


class ScrapedRows(Collector, Generic[RowT]):
    """The rows of a query as gauges."""

    def __init__(
        self,
        query: Query[RowT],
        seconds: float,
        families: Callable[[list[RowT]], list[GaugeMetricFamily]],
    ) -> None:
        """`seconds`: for so long rows are used again. Registers itself."""
        self._query = query
        self._seconds = seconds
        self._families = families
        self._rows: list[RowT] | None = None
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()
        REGISTRY.register(self)

    async def refresh(self, pool: Pool) -> None:
        """Reads the rows if they are too old. Without an answer there are none."""
        async with self._lock:
            if time.monotonic() - self._read_at < self._seconds:
                return
            try:
                async with asyncio.timeout(_TIMEOUT):
                    self._rows = await fetch_idempotent(pool, self._query, {})
            except (*DATABASE_UNAVAILABLE, TimeoutError):
                self._rows = None
            self._read_at = time.monotonic()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The metric names; runs no query."""
        return self._families([])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The rows that were read last."""
        if self._rows is not None:
            yield from self._families(self._rows)
