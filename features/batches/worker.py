"""Batches in a worker: it checks lines of their input, writes the results of lines that have ended,
and ends them. Web processes make the responses (features/batches/expander.py).

The validation of a batch: each line of its input is checked before the first one runs.

In groups: a group's lines are stored, and the cursor is moved, in one transaction. A `custom_id`
that is there twice is found by a unique index, so that no process holds all of them. A large input
is checked in slices: after each, it may be another batch's turn.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import structlog
from redis.asyncio import Redis

from features.batches import queries, work
from features.batches.collection import Collection
from features.batches.lines import (
    CheckedLines,
    InputLine,
    InvalidLine,
    check_lines,
    duplicate,
    group_lines,
    read_lines,
)
from features.batches.take_queries import BATCH_IS_DUE, RELEASE_BATCH, TAKE_BATCH, TakenBatch
from models.config.settings import Settings
from models.db.arrays import Ints, Texts
from models.db.database import Json, Pool, fetch
from models.due_work import DuePoll
from models.files.storage import FileStorage
from models.ids import batch_id
from models.redis.channels import control
from models.redis.client import REDIS_ERRORS
from models.wire.json_input import BodyLimits
from worker import metrics
from worker.run.resources import WorkerFeature


class Validation:
    """Checks the input of batches."""

    def __init__(self, settings: Settings, pool: Pool, storage: FileStorage) -> None:
        self._settings = settings.batches
        limits = settings.limits
        self._limits = BodyLimits(settings.batches.line, limits.text, limits.values)
        self._pool = pool
        self._storage = storage

    async def run(self, batch: TakenBatch) -> work.Outcome:
        """Checks a slice of the input from where it was checked last, or to its end, or until there
        are too many errors. Raises InputGone, StorageError, and what DATABASE_UNAVAILABLE names."""
        position, groups = batch.validated_bytes, 0
        found = batch.project_id, batch.input_file_id
        content = await work.read_input(self._pool, self._storage, *found, position)
        async with aclosing(content) as chunks:
            lines = read_lines(chunks, batch.validated_lines, position, self._settings.line)
            async for group in group_lines(lines):
                checked = await asyncio.to_thread(check_lines, group, batch.endpoint, self._limits)
                is_over = await self._store(batch, position, group, checked)
                if is_over is None:
                    return work.Outcome.WAITS
                position, groups = group[-1].end, groups + 1
                if is_over:
                    break
                if groups == work.GROUPS_OF_A_SLICE:
                    return work.Outcome.MORE
        await self._end(batch, position)
        return work.Outcome.WAITS

    async def _store(
        self,
        batch: TakenBatch,
        position: int,
        group: Sequence[InputLine],
        checked: CheckedLines,
    ) -> bool | None:
        """Stores a group that begins at the byte `position`; whether nothing more is to be checked.
        None: another worker has done it, or the batch is ending."""
        moved = {
            "id": batch.id,
            "from_byte": position,
            "to_line": group[-1].number,
            "to_byte": group[-1].end,
            "model": checked.model,
            "models": Texts(list(checked.models)),
            "max_models": queries.MAX_MODELS,
            "lease": work.LEASE,
        }
        async with self._pool.connection() as connection, connection.transaction():
            if not await fetch(connection, queries.MOVE_VALIDATION, moved):
                return None
            new = {
                "id": batch.id,
                "lines": Ints(checked.numbers),
                "custom_ids": Texts(checked.custom_ids),
            }
            stored = set(await fetch(connection, queries.INSERT_LINES, new))
            errors = checked.errors + [
                duplicate(custom_id).at(number)
                for number, custom_id in zip(checked.numbers, checked.custom_ids, strict=True)
                if number not in stored
            ]
            errors.sort(key=_line)
            values = {
                "id": batch.id,
                "added": len(stored),
                "errors": Json(errors[: queries.MAX_ERRORS]),
            }
            [now] = await fetch(connection, queries.ADD_LINES, values)
            if now.total > self._settings.requests:
                too_many = InvalidLine(
                    "too_many_tasks",
                    f"The batch has more than {self._settings.requests} requests.",
                ).at(None)
                values = {"id": batch.id, "added": 0, "errors": Json([too_many])}
                await fetch(connection, queries.ADD_LINES, values)
        return now.total > self._settings.requests or now.errors >= queries.MAX_ERRORS

    async def _end(self, batch: TakenBatch, position: int) -> None:
        values = {"id": batch.id, "from_byte": position, "errors": None}
        if not await self._has_requests(batch):
            empty = InvalidLine("empty_file", "The input file has no requests.").at(None)
            values["errors"] = Json([empty])
        await fetch(self._pool, queries.END_VALIDATION, values)

    async def _has_requests(self, batch: TakenBatch) -> bool:
        values = {"id": batch.id, "added": 0, "errors": Json([])}
        [now] = await fetch(self._pool, queries.ADD_LINES, values)
        return now.total > 0


def _line(error: dict[str, Any]) -> int:
    number: int = error["line"]
    return number


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
        await work.work_on_batches(
            self._pool, TAKE_BATCH, RELEASE_BATCH, BATCH_IS_DUE, self._try, poll
        )

    async def _try(self, batch: TakenBatch) -> timedelta:
        outcome = await self._work_on(batch)
        if outcome is work.Outcome.COMPLETE:
            await self._end(batch)
        return work.NO_PAUSE if outcome is work.Outcome.MORE else work.PAUSE

    async def _work_on(self, batch: TakenBatch) -> work.Outcome:
        if batch.crashes >= work.MAX_CRASHES:
            return await self._give_up(batch)
        if batch.is_valid:
            if batch.ending is not None:
                await self._cancel_lines(batch)
            return await self._collection.collect(batch)
        if batch.ending is None:
            return await self._validation.run(batch)
        return await self._delete_lines(batch)

    async def _end(self, batch: TakenBatch) -> None:
        for status in await fetch(self._pool, queries.END_BATCH, {"id": batch.id}):
            metrics.BATCHES.labels(status).inc()
            logger.info(
                "batch_ended",
                batch=batch_id(batch.id),
                project=str(batch.project_id),
                status=status,
            )

    async def _give_up(self, batch: TakenBatch) -> work.Outcome:
        """Forgets the lines that are left, without reading any of them."""
        logger.error("batch_given_up", batch=batch_id(batch.id), crashes=batch.crashes)
        await work.fail(self._pool, batch.id, work.CRASHED)
        await self._cancel_lines(batch)
        while await self._delete_lines(batch) is not work.Outcome.COMPLETE:
            pass
        return work.Outcome.COMPLETE

    async def _delete_lines(self, batch: TakenBatch) -> work.Outcome:
        values = {"id": batch.id, "rows": _ROWS}
        for _ in range(work.GROUPS_OF_A_SLICE):
            if len(await fetch(self._pool, queries.DELETE_LINES, values)) < _ROWS:
                return work.Outcome.COMPLETE
        return work.Outcome.MORE

    async def _cancel_lines(self, batch: TakenBatch) -> None:
        """Records the cancel of all open responses of the batch, and notifies their workers."""
        values = {"id": batch.id, "rows": _ROWS}
        is_complete = False
        while not is_complete:
            cancelled = await fetch(self._pool, queries.CANCEL_LINES, values)
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
