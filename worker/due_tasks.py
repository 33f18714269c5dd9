"""Runs work that is due: the loop of tasks that take rows for a short lease."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog

from models.db.database import DATABASE_UNAVAILABLE
from models.load.reserve import ReservedSlots
from models.side_tasks import cancel_all

logger = structlog.get_logger()

_POLL = 0.5
"""Seconds between two looks for due rows."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many tasks may start."""

    free: int
    """of any projects"""
    free_for_newcomers: int
    """with those that are only for projects without a task, one for each"""
    busy: Sequence[UUID]
    """the project of each task that runs"""


class DueTasks:
    """The tasks of one kind in one process: each works on a row that it has taken."""

    def __init__(self, name: str, at_once: int) -> None:
        """`name`: in the log. `at_once`: most tasks at a time, without the few more for projects
        that have none."""
        self._name = name
        self._interrupted = f"{name}_interrupted"
        self._slots = ReservedSlots.beside(at_once)
        self._tasks: dict[asyncio.Task[None], UUID] = {}
        self._has_room = asyncio.Event()

    @property
    def room(self) -> Room:
        """How many more may run now."""
        used = len(self._tasks)
        return Room(
            self._slots.free(used),
            self._slots.free_for_newcomers(used),
            list(self._tasks.values()),
        )

    def start(self, work: Coroutine[Any, Any, None], project: UUID) -> None:
        """Runs `work` for a project. It raises nothing."""
        task = asyncio.create_task(work, name=self._name)
        self._tasks[task] = project
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._has_room.set()

    async def run(self, start_due: Callable[[Room], Awaitable[int]]) -> None:
        """Calls `start_due` with what it may start, whenever there is room and rows may be due; it
        returns how many it has started. Ends when it is cancelled; tasks that run are cancelled
        too, and their rows are due again when their leases end."""
        try:
            while True:
                self._has_room.clear()
                try:
                    while (room := self.room).free_for_newcomers and await start_due(room):
                        pass
                except DATABASE_UNAVAILABLE as error:
                    logger.warning(self._interrupted, error=str(error).strip())
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL):
                        await self._has_room.wait()
        finally:
            await cancel_all(self._tasks)
