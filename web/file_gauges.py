"""What is stored of files, read at a scrape of `/metrics`."""

import asyncio
import time
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch_idempotent
from models.db.queries.files import FILE_TOTALS, PurposeTotal
from web.counters import REGISTRY
from web.files.objects import FilePurpose

_INTERVAL = 60.0
"""Seconds for which the figures are used again: the query reads all files."""
_TIMEOUT = 3.0


class FileTotals(Collector):
    """The files of all projects and their bytes, by purpose."""

    def __init__(self) -> None:
        self._totals: list[PurposeTotal] | None = None
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def refresh(self, pool: Pool) -> None:
        """Reads the figures if they are too old. Without an answer there are none."""
        async with self._lock:
            if time.monotonic() - self._read_at < _INTERVAL:
                return
            try:
                async with asyncio.timeout(_TIMEOUT):
                    self._totals = await fetch_idempotent(pool, FILE_TOTALS, {})
            except (*DATABASE_UNAVAILABLE, TimeoutError):
                self._totals = None
            self._read_at = time.monotonic()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The metric names; runs no query."""
        return _families([])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The figures that were read last."""
        if self._totals is not None:
            yield from _families(self._totals)


def _families(totals: list[PurposeTotal]) -> list[GaugeMetricFamily]:
    by_purpose = {total.purpose: total for total in totals}
    files = GaugeMetricFamily(
        "backburner_files",
        "Stored files by purpose, with deleted ones that are not purged yet.",
        labels=["purpose"],
    )
    size = GaugeMetricFamily(
        "backburner_file_bytes", "Bytes of these files, by purpose.", labels=["purpose"]
    )
    for purpose in FilePurpose:
        total = by_purpose.get(purpose)
        files.add_metric([purpose], 0 if total is None else total.files)
        size.add_metric([purpose], 0 if total is None else total.bytes)
    return [files, size]


FILE_GAUGES = FileTotals()
REGISTRY.register(FILE_GAUGES)
