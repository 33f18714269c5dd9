"""What a web process counts, and `GET /metrics`.

The figures about all responses come from the database: open rows only, one query, at most every few seconds. What has ended is
counted by those who ended it.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator

from fastapi import APIRouter, Request
from prometheus_client import Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.responses import Response

from models.db.database import DATABASE_UNAVAILABLE, Pool, Row, read
from models.db.queries import operations
from models.errors import Unauthenticated
from models.lifecycle import TRANSITIONS
from models.metrics import CONTENT_TYPE, scrape_allowed
from models.redis.channels import BACKGROUND, INTERACTIVE, QUARANTINE
from web.counters import REGISTRY
from web.http.errors import unknown_url
from web.state import AppState, app_state

router = APIRouter()

_REFRESH_INTERVAL = 5.0
"""Seconds for which the database's figures are shown again."""
_QUERY_TIMEOUT = 3.0
_QUEUES = (INTERACTIVE, BACKGROUND, QUARANTINE)

READERS = Gauge(
    "backburner_readers",
    "Streams and waiting requests that this process serves from a response's log.",
    registry=REGISTRY,
)
SOCKETS = Gauge("backburner_sockets", "WebSockets that this process holds.", registry=REGISTRY)
BUS_HEALTHY = Gauge(
    "backburner_bus_healthy",
    "1 while Redis delivers live events to this process; 0: readers are served from Postgres.",
    registry=REGISTRY,
)
LEASE_AGE = Gauge(
    "backburner_lease_age_seconds",
    "Since the last renewal of this process's lease.",
    registry=REGISTRY,
)


class Backlog(Collector):
    """The open responses, as the database counts them."""

    def __init__(self) -> None:
        self._rows: list[Row] | None = None
        self._refreshed_at = float("-inf")
        self._lock = asyncio.Lock()

    async def refresh(self, pool: Pool) -> None:
        """Asks, unless the last answer is fresh. While Postgres is away there are no figures, and `backburner_database_up` is 0."""
        async with self._lock:
            if time.monotonic() - self._refreshed_at < _REFRESH_INTERVAL:
                return
            try:
                async with asyncio.timeout(_QUERY_TIMEOUT):
                    self._rows = await read(pool, operations.GAUGES, {})
            except (*DATABASE_UNAVAILABLE, TimeoutError):
                self._rows = None
            self._refreshed_at = time.monotonic()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The names, without a look at the database."""
        return self._families([])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What the last look saw."""
        up = GaugeMetricFamily(
            "backburner_database_up", "1 when Postgres answered the last look at the backlog."
        )
        up.add_metric([], float(self._rows is not None))
        yield up
        if self._rows is not None:
            yield from self._families(self._rows)

    def _families(self, rows: list[Row]) -> list[GaugeMetricFamily]:
        by_status = GaugeMetricFamily(
            "backburner_responses", "Open responses by status.", labels=["status"]
        )
        depth = GaugeMetricFamily(
            "backburner_queue_depth",
            "Responses that wait for a worker, by queue.",
            labels=["queue"],
        )
        oldest = GaugeMetricFamily(
            "backburner_queue_oldest_seconds",
            "Since the creation of the oldest that waits, by queue.",
            labels=["queue"],
        )
        for status in TRANSITIONS:
            by_status.add_metric(
                [status.value], sum(row["responses"] for row in rows if row["status"] == status)
            )
        for queue in _QUEUES:
            waiting = [row for row in rows if row["waiting"] and row["queue"] == queue]
            depth.add_metric([queue], sum(row["responses"] for row in waiting))
            oldest.add_metric(
                [queue], max((max(0.0, row["oldest"]) for row in waiting), default=0.0)
            )
        return [by_status, depth, oldest]


BACKLOG = Backlog()
REGISTRY.register(BACKLOG)


def bind_gauges(state: AppState) -> None:
    """The gauges look at this front from now on."""
    READERS.set_function(lambda: state.bus.readers)
    SOCKETS.set_function(lambda: state.open_sockets)
    BUS_HEALTHY.set_function(lambda: float(state.bus.healthy))
    LEASE_AGE.set_function(lambda: state.lease.age)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """This process's figures, and those of the backlog, in Prometheus' text format. Served where only this machine can ask, or to those
    who bring the token that the operator has set."""
    state = app_state(request)
    is_allowed = scrape_allowed(
        state.settings.metrics, request.app.state.host, request.headers.get("authorization")
    )
    if is_allowed is None:
        raise unknown_url(request)
    if not is_allowed:
        raise Unauthenticated("Send the metrics token: 'Authorization: Bearer TOKEN'.")
    await BACKLOG.refresh(state.pool)
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE)
