"""The console in a worker: what the worker has ended, added to a table once a minute, for the
plots (docs/console.md).

Responses are counted in memory, so that their endings cost no statement. A worker that is killed
loses what it has counted since the last minute; one that stops writes it.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from features.console.activity_parts import CountsByPart
from models.db.arrays import Ints
from models.db.database import DATABASE_UNAVAILABLE, Jsonb, Pool, execute, fetch
from models.db.queries import console, operations
from models.db.queries.activity import (
    ADD_ACTIVITY,
    BOUNDS,
    MINUTE,
    SET_SAMPLE,
    TAKE_SAMPLE,
    AddedActivity,
    add_counts,
    bucket_of,
)
from models.ended_line import EndedLine
from models.lifecycle import Status
from worker.run.resources import Resources, WorkerFeature

logger = structlog.get_logger()

_SPREAD = 5.0
"""Seconds within which the workers write after a minute has ended."""
_COUNTED_OPEN = 10_000
"""The oldest open responses, among which those that wait are counted."""
_LAST_WRITE = 2.0
"""Seconds that a process that stops has for it."""


def _no_durations() -> list[int]:
    return [0] * len(BOUNDS)


@dataclass(slots=True)
class _EndCounts:
    """What was counted since the last time."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0
    first_token: list[int] = field(default_factory=_no_durations)
    total: list[int] = field(default_factory=_no_durations)
    parts: CountsByPart = field(default_factory=CountsByPart)

    def values(self) -> dict[str, object]:
        """The parameters of ADD_ACTIVITY. Durations without any are empty arrays."""
        return {
            "completed": self.completed,
            "failed": self.failed,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost": self.cost,
            "parts": Jsonb(self.parts.largest()),
            "first_token_counts": Ints(self.first_token if any(self.first_token) else []),
            "total_counts": Ints(self.total if any(self.total) else []),
        }


class Activity:
    """The counts of this process."""

    def __init__(self) -> None:
        self._counts = _EndCounts()

    def count_end(self, line: EndedLine) -> None:
        """Counts a response that has ended. Cancelled ones count with their tokens only."""
        counts = self._counts
        counts.parts.add(line)
        counts.cost += line.cost or 0
        if line.usage is not None:
            counts.input_tokens += line.usage.get("input_tokens") or 0
            counts.output_tokens += line.usage.get("output_tokens") or 0
        if line.status is Status.CANCELLED:
            return
        if line.status is Status.FAILED:
            counts.failed += 1
        else:
            counts.completed += 1
        counts.total[bucket_of(line.seconds)] += 1
        if line.first_token_seconds is not None:
            counts.first_token[bucket_of(line.first_token_seconds)] += 1

    def take(self) -> _EndCounts:
        """What was counted since the last call."""
        taken, self._counts = self._counts, _EndCounts()
        return taken

    def put_back(self, taken: _EndCounts) -> None:
        """Counts this again: it could not be written."""
        now = self._counts
        now.parts.add_all(taken.parts)
        self._counts = _EndCounts(
            now.completed + taken.completed,
            now.failed + taken.failed,
            now.input_tokens + taken.input_tokens,
            now.output_tokens + taken.output_tokens,
            now.cost + taken.cost,
            add_counts((now.first_token, taken.first_token)),
            add_counts((now.total, taken.total)),
            now.parts,
        )


class ActivityWriter:
    """Writes the counts of this process, and a sample of what waits if no other worker has."""

    def __init__(self, pool: Pool, activity: Activity) -> None:
        self._pool = pool
        self._activity = activity

    async def run(self) -> None:
        """Writes some seconds after each minute. Never returns.

        Any error ends only this write: a worker must not stop because of a plot.
        """
        while True:
            await asyncio.sleep(MINUTE - time.time() % MINUTE + _SPREAD * random.random())  # noqa: S311
            try:
                await self.write()
            except Exception:
                logger.exception("activity_failed")

    async def write(self) -> None:
        """Writes now. What could not be written is written the next time."""
        counts = self._activity.take()
        try:
            written = await fetch(self._pool, ADD_ACTIVITY, counts.values())
        except DATABASE_UNAVAILABLE as error:
            self._activity.put_back(counts)
            logger.warning("activity_not_written", error=str(error).strip())
            return
        try:
            if await fetch(self._pool, TAKE_SAMPLE, {"minute": written[0].begins_at}):
                await self._sample(written)
        except DATABASE_UNAVAILABLE as error:
            logger.warning("activity_not_sampled", error=str(error).strip())

    async def write_last(self) -> None:
        """Writes before the process ends, if Postgres answers soon."""
        try:
            async with asyncio.timeout(_LAST_WRITE):
                await self.write()
        except TimeoutError:
            logger.warning("activity_not_written", error="Postgres does not answer")

    async def _sample(self, written: Sequence[AddedActivity]) -> None:
        limit = {"max_rows": _COUNTED_OPEN}
        rows = await fetch(self._pool, operations.OLDEST_BACKLOG, limit)
        waiting = [row for row in rows if row.is_in_line]
        slots = await fetch(self._pool, console.SLOTS, {})
        sample: dict[str, object] = {
            "waiting": sum(row.responses for row in waiting),
            "oldest_seconds": max((row.oldest for row in waiting), default=0.0),
            "running": sum(kind.running - kind.retrying for kind in slots),
        }
        # One statement a row: a statement for both could lock them in another order than others do.
        for row in written:
            known = {"width": row.width, "begins_at": row.begins_at}
            await execute(self._pool, SET_SAMPLE, sample | known)


class Console(WorkerFeature):
    """Counts in every worker, also in one of the quarantine."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        activity = Activity()
        self._writer = ActivityWriter(resources.pool, activity)
        resources.on_ended.append(activity.count_end)
        resources.side_tasks.start(self._writer.run(), "activity")

    async def close(self) -> None:
        """Writes what was counted last."""
        await self._writer.write_last()


FEATURE = Console
