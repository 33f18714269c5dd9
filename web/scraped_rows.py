"""Figures that one query gives, read at a scrape of `/metrics`."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch_idempotent
from models.db.statement import Query, RowT
from web.counters import REGISTRY

_TIMEOUT = 3.0


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
