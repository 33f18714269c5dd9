"""The work on batches: one task of each worker.

A worker takes one batch at a time for a short lease, and does what there is to do: it checks lines
of its input, or writes the results of lines that have ended. Another worker goes on where one has
stopped or died. Web processes make the responses (web/batches/expander.py).
"""

import asyncio
from datetime import timedelta
from typing import Final

import psycopg
import structlog
from redis.asyncio import Redis

from models.config.settings import Settings
from models.db.database import DATABASE_UNAVAILABLE, Json, Pool, fetch
from models.db.queries.batches import (
    CANCEL_LINES,
    DELETE_LINES,
    END_BATCH,
    FAIL_BATCH,
    RELEASE_BATCH,
    TAKE_BATCH,
    TakenBatch,
)
from models.files.storage import FileStorage, StorageError
from models.ids import batch_id
from models.redis.channels import control
from models.redis.client import REDIS_ERRORS
from worker import metrics
from worker.batches.collection import Collection
from worker.batches.validation import InputGone, Validation

logger = structlog.get_logger()

LEASE: Final = timedelta(seconds=20)
"""So long a batch is this worker's since it has taken it, or has stored something of it."""
_POLL = 1.0
"""Seconds between two looks for batches."""
_PAUSE: Final = timedelta(milliseconds=500)
_PAUSE_AFTER_ERROR: Final = timedelta(seconds=5)
_ROWS = 500
"""Lines that one statement deletes, or whose cancel it records."""
_INPUT_GONE = {
    "code": "input_file_not_found",
    "line": None,
    "message": "The input file was deleted, or has expired, before all of it was read.",
    "param": "input_file_id",
}


class BatchWork:
    """The work of one process on batches."""

    def __init__(self, settings: Settings, pool: Pool, redis: Redis, storage: FileStorage) -> None:
        self._pool = pool
        self._redis = redis
        self._validation = Validation(settings, pool, storage, LEASE)
        self._collection = Collection(settings, pool, storage, LEASE)

    async def run(self) -> None:
        """Works until it is cancelled. No error ends it: the process runs responses too."""
        while True:
            is_idle = True
            try:
                is_idle = not await self._work_on_next()
            except DATABASE_UNAVAILABLE as error:
                logger.warning("batches_interrupted", error=str(error).strip())
            except Exception:
                logger.exception("batches_failed")
            if is_idle:
                await asyncio.sleep(_POLL)

    async def _work_on_next(self) -> bool:
        """Does what there is to do for one batch; False if there is none."""
        taken = await fetch(self._pool, TAKE_BATCH, {"lease": LEASE})
        if not taken:
            return False
        batch = taken[0]
        pause = _PAUSE
        try:
            await self._work_on(batch)
        except InputGone:
            await self._fail(batch)
        except (StorageError, psycopg.IntegrityError) as error:
            # A violation of a constraint: another worker has written the same part.
            logger.warning("batch_interrupted", batch=batch_id(batch.id), error=str(error).strip())
            pause = _PAUSE_AFTER_ERROR
        await fetch(self._pool, RELEASE_BATCH, {"id": batch.id, "pause": pause})
        return True

    async def _work_on(self, batch: TakenBatch) -> None:
        if batch.is_valid:
            if batch.ending is not None:
                await self._cancel_lines(batch)
            is_over = await self._collection.collect(batch)
        elif batch.ending is None:
            await self._validation.run(batch)
            is_over = False
        else:
            await self._delete_lines(batch)
            is_over = True
        if is_over:
            await self._end(batch)

    async def _end(self, batch: TakenBatch) -> None:
        for status in await fetch(self._pool, END_BATCH, {"id": batch.id}):
            metrics.BATCHES.labels(status).inc()
            logger.info(
                "batch_ended",
                batch=batch_id(batch.id),
                project=str(batch.project_id),
                status=status,
            )

    async def _fail(self, batch: TakenBatch) -> None:
        values = {"id": batch.id, "errors": Json([_INPUT_GONE])}
        await fetch(self._pool, FAIL_BATCH, values)

    async def _delete_lines(self, batch: TakenBatch) -> None:
        values = {"id": batch.id, "rows": _ROWS}
        while len(await fetch(self._pool, DELETE_LINES, values)) == _ROWS:
            pass

    async def _cancel_lines(self, batch: TakenBatch) -> None:
        """Records the cancel of all open responses of the batch, and notifies their workers."""
        values = {"id": batch.id, "rows": _ROWS}
        is_complete = False
        while not is_complete:
            cancelled = await fetch(self._pool, CANCEL_LINES, values)
            is_complete = not cancelled
            for line in cancelled:
                if line.worker is not None:
                    await self._notify(control(line.worker), line.id.hex.encode())

    async def _notify(self, channel: str, payload: bytes) -> None:
        try:
            await self._redis.publish(channel, payload)
        except REDIS_ERRORS as error:
            # Nothing is lost: workers see cancels at their heartbeat.
            logger.warning("publish_failed", channel=channel, error=str(error))
