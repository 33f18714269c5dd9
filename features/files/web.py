"""Files in a web process: what `/v1/files` and `/v1/uploads` use, gauges, and the readiness of the
storage."""

import asyncio
import time

import structlog
from prometheus_client.core import GaugeMetricFamily

from features.files.objects import FilePurpose
from features.files.queries import FILE_TOTALS, PurposeTotal
from features.files.store import FileStore
from features.files.uploads import Uploads
from models.files.storage import FileStorage, StorageError
from web.counters import ScrapedRows
from web.state import AppState, Feature

logger = structlog.get_logger()

_GAUGE_AGE = 60.0
"""Seconds for which the gauges count: the query reads all files."""
_MAX_AGE = 10.0
"""Seconds for which a check counts."""
_WAIT = 2.0
"""Seconds that a caller waits for a check."""


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


FILE_GAUGES = ScrapedRows(FILE_TOTALS, _GAUGE_AGE, _families)


class StorageState:
    """Whether the storage of files can be used, as of its last check. A check that takes long goes
    on while nobody waits for it."""

    def __init__(self, storage: FileStorage) -> None:
        self._storage = storage
        self._check: asyncio.Task[str] | None = None
        self._checked_at = 0.0

    async def show(self) -> str:
        """`ok`, or a sentence for operators."""
        is_old = time.monotonic() - self._checked_at > _MAX_AGE
        if self._check is None or (self._check.done() and is_old):
            self._check = asyncio.create_task(self._run())
        await asyncio.wait((self._check,), timeout=_WAIT)
        return self._check.result() if self._check.done() else "no answer until now"

    async def _run(self) -> str:
        try:
            await self._storage.check()
        except StorageError as error:
            return str(error)
        finally:
            self._checked_at = time.monotonic()
        return "ok"

    async def log_problem(self) -> None:
        """Writes a line if the storage cannot be used."""
        state = await self.show()
        if state != "ok":
            logger.error("file_storage_unusable", error=state)


class Files(Feature):
    """The files of all projects, and uploads of them in parts."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        storage = state.storage
        self.store = FileStore(state.settings, state.pool, storage)
        self.uploads = Uploads(state.settings.files, state.pool, self.store)
        self._storage_state = None if storage is None else StorageState(storage)

    def start(self) -> None:
        """Logs a storage that cannot be used."""
        if self._storage_state is not None:
            self.state.spawn(self._storage_state.log_problem())

    async def refresh_gauges(self) -> None:
        """Reads the figures if they are too old."""
        await FILE_GAUGES.refresh(self.state.pool)

    async def readiness(self) -> dict[str, str | None]:
        """The storage: `ok`, a sentence for operators, or None if there is none."""
        state = self._storage_state
        return {"files": None if state is None else await state.show()}


FEATURE = Files
