"""The validation of a batch: each line of its input is checked before the first one runs.

In groups: a group's lines are stored, and the cursor is moved, in one transaction. A `custom_id`
that is there twice is found by a unique index, so that no process holds all of them. A large input
is checked in slices: after each, it may be another batch's turn.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from features.batches.lines import (
    CheckedLines,
    InputLine,
    InvalidLine,
    check_lines,
    duplicate,
    group_lines,
    read_lines,
)
from features.batches.queries import (
    ADD_LINES,
    END_VALIDATION,
    INSERT_LINES,
    MAX_ERRORS,
    MAX_MODELS,
    MOVE_VALIDATION,
)
from features.batches.take_queries import TakenBatch
from features.batches.work import GROUPS_OF_A_SLICE, LEASE, Outcome, read_input
from models.config.settings import Settings
from models.db.arrays import Ints, Texts
from models.db.database import Json, Pool, fetch
from models.files.storage import FileStorage
from models.wire.json_input import BodyLimits


class Validation:
    """Checks the input of batches."""

    def __init__(self, settings: Settings, pool: Pool, storage: FileStorage) -> None:
        self._settings = settings.batches
        limits = settings.limits
        self._limits = BodyLimits(settings.batches.line, limits.text, limits.values)
        self._pool = pool
        self._storage = storage

    async def run(self, batch: TakenBatch) -> Outcome:
        """Checks a slice of the input from where it was checked last, or to its end, or until there
        are too many errors. Raises InputGone, StorageError, and what DATABASE_UNAVAILABLE names."""
        position, groups = batch.validated_bytes, 0
        found = batch.project_id, batch.input_file_id
        content = await read_input(self._pool, self._storage, *found, position)
        async with aclosing(content) as chunks:
            lines = read_lines(chunks, batch.validated_lines, position, self._settings.line)
            async for group in group_lines(lines):
                checked = await asyncio.to_thread(check_lines, group, batch.endpoint, self._limits)
                is_over = await self._store(batch, position, group, checked)
                if is_over is None:
                    return Outcome.WAITS
                position, groups = group[-1].end, groups + 1
                if is_over:
                    break
                if groups == GROUPS_OF_A_SLICE:
                    return Outcome.MORE
        await self._end(batch, position)
        return Outcome.WAITS

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
            "max_models": MAX_MODELS,
            "lease": LEASE,
        }
        async with self._pool.connection() as connection, connection.transaction():
            if not await fetch(connection, MOVE_VALIDATION, moved):
                return None
            new = {
                "id": batch.id,
                "lines": Ints(checked.numbers),
                "custom_ids": Texts(checked.custom_ids),
            }
            stored = set(await fetch(connection, INSERT_LINES, new))
            errors = checked.errors + [
                duplicate(custom_id).at(number)
                for number, custom_id in zip(checked.numbers, checked.custom_ids, strict=True)
                if number not in stored
            ]
            errors.sort(key=_line)
            values = {"id": batch.id, "added": len(stored), "errors": Json(errors[:MAX_ERRORS])}
            [now] = await fetch(connection, ADD_LINES, values)
            if now.total > self._settings.requests:
                too_many = InvalidLine(
                    "too_many_tasks",
                    f"The batch has more than {self._settings.requests} requests.",
                ).at(None)
                values = {"id": batch.id, "added": 0, "errors": Json([too_many])}
                await fetch(connection, ADD_LINES, values)
        return now.total > self._settings.requests or now.errors >= MAX_ERRORS

    async def _end(self, batch: TakenBatch, position: int) -> None:
        values = {"id": batch.id, "from_byte": position, "errors": None}
        if not await self._has_requests(batch):
            empty = InvalidLine("empty_file", "The input file has no requests.").at(None)
            values["errors"] = Json([empty])
        await fetch(self._pool, END_VALIDATION, values)

    async def _has_requests(self, batch: TakenBatch) -> bool:
        values = {"id": batch.id, "added": 0, "errors": Json([])}
        [now] = await fetch(self._pool, ADD_LINES, values)
        return now.total > 0


def _line(error: dict[str, Any]) -> int:
    number: int = error["line"]
    return number
