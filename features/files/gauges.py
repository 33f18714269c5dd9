"""What is stored of files, read at a scrape of `/metrics`."""

from prometheus_client.core import GaugeMetricFamily

from features.files.objects import FilePurpose
from models.db.queries.files import FILE_TOTALS, PurposeTotal
from web.counters import ScrapedRows

_INTERVAL = 60.0
"""The query reads all files."""


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


FILE_GAUGES = ScrapedRows(FILE_TOTALS, _INTERVAL, _families)
