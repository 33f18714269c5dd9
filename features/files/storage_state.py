"""Whether the storage of files can be used, for /readyz and the log."""

import asyncio
import time

import structlog

from models.files.storage import FileStorage, StorageError

logger = structlog.get_logger()

_MAX_AGE = 10.0
"""Seconds for which a check counts."""
_WAIT = 2.0
"""Seconds that a caller waits for a check."""


class StorageState:
    """The last check of a storage. A check that takes long goes on while nobody waits for it."""

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
