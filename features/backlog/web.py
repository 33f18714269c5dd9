"""Figures of the open responses in a web process, read at a scrape of `/metrics`."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch_idempotent
from models.db.queries import operations
from models.db.queries.leases import LIVE_WORKERS
from models.lifecycle import TRANSITIONS, Lane, OperatorStatus
from models.redis.channels import BACKGROUND, INTERACTIVE, QUARANTINE
from models.windows import LANE_OF_WINDOW
from web.counters import REGISTRY
from web.state import AppState, Feature

_REFRESH_INTERVAL = 5.0
"""Seconds for which the results of the queries are used again."""
_SIZE_INTERVAL = 60.0
"""The same for the size of the database."""
_QUERY_TIMEOUT = 3.0
_MAX_PROJECTS = 100
"""Projects that are shown: those with most responses in line."""
_KINDS = ("web", "worker", "quarantine")
_QUEUES = (INTERACTIVE, BACKGROUND, QUARANTINE)


class Backlog(Collector):
    """The open responses, the live processes and the size of the database, by one
    query each."""

    def __init__(self) -> None:
        self._rows: list[operations.BacklogRow] | None = None
        self._live: dict[str, int] = {}
        self._waiting_projects: list[operations.WaitingProject] = []
        self._retrying: list[operations.RetryingResponses] = []
        self._database_bytes = 0
        self.shows_projects = False
        """Whether projects are labels (`metrics.projects`)."""
        self.upstreams: Sequence[str] = ()
        """The names of those that are configured."""
        self._refreshed_at = float("-inf")
        self._measured_at = float("-inf")
        self._lock = asyncio.Lock()

    async def refresh(self, pool: Pool) -> None:
        """Runs the queries whose last result is too old.

        While Postgres is unavailable there are no figures, and `backburner_database_up` is 0.
        """
        async with self._lock:
            if time.monotonic() - self._refreshed_at < _REFRESH_INTERVAL:
                return
            try:
                async with asyncio.timeout(_QUERY_TIMEOUT):
                    await self._query(pool)
            except (*DATABASE_UNAVAILABLE, TimeoutError):
                self._rows = None
            self._refreshed_at = time.monotonic()

    async def _query(self, pool: Pool) -> None:
        workers = await fetch_idempotent(pool, LIVE_WORKERS, {})
        self._live = {row.kind: row.live for row in workers}
        if time.monotonic() - self._measured_at >= _SIZE_INTERVAL:
            [self._database_bytes] = await fetch_idempotent(pool, operations.DATABASE_BYTES, {})
            self._measured_at = time.monotonic()
        if self.shows_projects:
            limit = {"max_rows": _MAX_PROJECTS}
            self._waiting_projects = await fetch_idempotent(
                pool, operations.WAITING_PROJECTS, limit
            )
        self._retrying = await fetch_idempotent(pool, operations.RETRYING_BY_UPSTREAM, {})
        self._rows = await fetch_idempotent(pool, operations.GAUGES, {})

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The metric names; runs no query."""
        return self._families([])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The result of the last query."""
        up = GaugeMetricFamily("backburner_database_up", "1 when the last backlog query succeeded.")
        up.add_metric([], float(self._rows is not None))
        yield up
        if self._rows is not None:
            yield from self._families(self._rows)

    def _families(self, rows: list[operations.BacklogRow]) -> list[GaugeMetricFamily]:
        by_status = GaugeMetricFamily(
            "backburner_responses",
            "Open responses by status. Those that wait for an upstream are `retrying` only.",
            labels=["status"],
        )
        depth = GaugeMetricFamily(
            "backburner_queue_depth",
            "Responses that wait for a worker, by queue.",
            labels=["queue"],
        )
        oldest = GaugeMetricFamily(
            "backburner_queue_oldest_seconds",
            "Seconds since a worker might have claimed the response that waits longest, by queue.",
            labels=["queue"],
        )
        for status in TRANSITIONS:
            of_status = [row for row in rows if row.status == status and not row.retrying]
            by_status.add_metric([status.value], sum(row.responses for row in of_status))
        retrying = sum(row.responses for row in rows if row.retrying)
        by_status.add_metric([OperatorStatus.RETRYING.value], retrying)
        for queue in _QUEUES:
            waiting = [row for row in rows if row.waiting and row.queue == queue]
            depth.add_metric([queue], sum(row.responses for row in waiting))
            oldest.add_metric([queue], max((row.oldest for row in waiting), default=0.0))
        families = [by_status, depth, oldest, *self._line_families(rows)]
        return [*families, *self._retrying_families(), *self._operator_families()]

    def _retrying_families(self) -> list[GaugeMetricFamily]:
        count = GaugeMetricFamily(
            "backburner_responses_retrying",
            "Open responses that wait for an upstream that has failed, by upstream.",
            labels=["upstream"],
        )
        oldest = GaugeMetricFamily(
            "backburner_retrying_oldest_seconds",
            "Seconds since the first failure of the response that has waited longest, by upstream.",
            labels=["upstream"],
        )
        known = dict.fromkeys(self.upstreams, (0, 0.0))
        known |= {each.upstream: (each.responses, each.oldest) for each in self._retrying}
        for upstream, (responses, seconds) in known.items():
            count.add_metric([upstream], responses)
            oldest.add_metric([upstream], seconds)
        return [count, oldest]

    def _line_families(self, rows: list[operations.BacklogRow]) -> list[GaugeMetricFamily]:
        depth = GaugeMetricFamily(
            "backburner_lane_depth", "Responses that wait for a worker, by lane.", labels=["lane"]
        )
        oldest = GaugeMetricFamily(
            "backburner_lane_oldest_seconds",
            "Seconds since a worker might have claimed the response that waits longest, by lane.",
            labels=["lane"],
        )
        for lane in Lane:
            waiting = [row for row in rows if row.waiting and row.lane == lane]
            name = lane.name.lower()
            depth.add_metric([name], sum(row.responses for row in waiting))
            oldest.add_metric([name], max((row.oldest for row in waiting), default=0.0))
        overdue = GaugeMetricFamily(
            "backburner_windows_overdue",
            "Open responses whose completion window has ended, by window.",
            labels=["window"],
        )
        for window, slow in LANE_OF_WINDOW.items():
            overdue.add_metric([window], sum(row.overdue for row in rows if row.lane == slow))
        projects = GaugeMetricFamily(
            "backburner_project_waiting",
            "Responses that wait for a slot, by project. Only with BACKBURNER_METRICS__PROJECTS.",
            labels=["project"],
        )
        for project in self._waiting_projects:
            projects.add_metric([project.project], project.responses)
        return [depth, oldest, overdue, projects]

    def _operator_families(self) -> list[GaugeMetricFamily]:
        live = GaugeMetricFamily(
            "backburner_live_processes", "Processes with a valid lease, by kind.", labels=["kind"]
        )
        for kind in _KINDS:
            live.add_metric([kind], self._live.get(kind, 0))
        size = GaugeMetricFamily(
            "backburner_database_bytes",
            "Bytes of the database on its server's disk, indexes included.",
            self._database_bytes,
        )
        return [live, size]


BACKLOG = Backlog()
REGISTRY.register(BACKLOG)


class BacklogFigures(Feature):
    """The figures of the process."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        BACKLOG.shows_projects = state.settings.metrics.projects
        BACKLOG.upstreams = tuple(state.routes.server.upstreams)

    async def refresh_gauges(self) -> None:
        """Runs the queries."""
        await BACKLOG.refresh(self.state.pool)


FEATURE = BacklogFigures
