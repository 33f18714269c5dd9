"""Batches in a worker: it checks lines of their input, writes the results of lines that have ended,
and ends them. Web processes make the responses (features/batches/expander.py).
"""

from datetime import timedelta

import structlog
from redis.asyncio import Redis

from features.batches.collection import Collection
from features.batches.queries import CANCEL_LINES, DELETE_LINES, END_BATCH
from features.batches.take_queries import BATCH_IS_DUE, RELEASE_BATCH, TAKE_BATCH, TakenBatch
from features.batches.validation import Validation
from features.batches.work import (
    CRASHED,
    GROUPS_OF_A_SLICE,
    MAX_CRASHES,
    NO_PAUSE,
    PAUSE,
    Outcome,
    fail,
    work_on_batches,
)
from models.config.settings import Settings
from models.db.database import Pool, fetch
from models.due_work import DuePoll
from models.files.storage import FileStorage
from models.ids import batch_id
from models.redis.channels import control
from models.redis.client import REDIS_ERRORS
from worker import metrics
from worker.run.resources import WorkerFeature

logger = structlog.get_logger()

_ROWS = 500
"""Lines that one statement deletes, or whose cancel it records."""


class BatchProgress:
    """Validates, collects and ends batches."""

    def __init__(self, settings: Settings, pool: Pool, redis: Redis, storage: FileStorage) -> None:
        self._pool = pool
        self._redis = redis
        self._validation = Validation(settings, pool, storage)
        self._collection = Collection(settings, pool, storage)

    async def run(self, poll: DuePoll) -> None:
        """Works until it is cancelled. `poll`: finds due batches."""
        await work_on_batches(self._pool, TAKE_BATCH, RELEASE_BATCH, BATCH_IS_DUE, self._try, poll)

    async def _try(self, batch: TakenBatch) -> timedelta:
        outcome = await self._work_on(batch)
        if outcome is Outcome.COMPLETE:
            await self._end(batch)
        return NO_PAUSE if outcome is Outcome.MORE else PAUSE

    async def _work_on(self, batch: TakenBatch) -> Outcome:
        if batch.crashes >= MAX_CRASHES:
            return await self._give_up(batch)
        if batch.is_valid:
            if batch.ending is not None:
                await self._cancel_lines(batch)
            return await self._collection.collect(batch)
        if batch.ending is None:
            return await self._validation.run(batch)
        return await self._delete_lines(batch)

    async def _end(self, batch: TakenBatch) -> None:
        for status in await fetch(self._pool, END_BATCH, {"id": batch.id}):
            metrics.BATCHES.labels(status).inc()
            logger.info(
                "batch_ended",
                batch=batch_id(batch.id),
                project=str(batch.project_id),
                status=status,
            )

    async def _give_up(self, batch: TakenBatch) -> Outcome:
        """Forgets the lines that are left, without reading any of them."""
        logger.error("batch_given_up", batch=batch_id(batch.id), crashes=batch.crashes)
        await fail(self._pool, batch.id, CRASHED)
        await self._cancel_lines(batch)
        while await self._delete_lines(batch) is not Outcome.COMPLETE:
            pass
        return Outcome.COMPLETE

    async def _delete_lines(self, batch: TakenBatch) -> Outcome:
        values = {"id": batch.id, "rows": _ROWS}
        for _ in range(GROUPS_OF_A_SLICE):
            if len(await fetch(self._pool, DELETE_LINES, values)) < _ROWS:
                return Outcome.COMPLETE
        return Outcome.MORE

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


class BatchTasks(WorkerFeature):
    """Their validation, and the collection of their results."""

    def start(self) -> None:
        """Begins, if this server stores files."""
        resources = self.resources
        if resources.storage is not None:
            progress = BatchProgress(
                resources.settings, resources.pool, resources.redis, resources.storage
            )
            resources.side_tasks.start(progress.run(resources.due_poll), "batches")


FEATURE = BatchTasks
