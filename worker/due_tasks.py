"""Runs work that is due: the loop of tasks that take rows for a short lease."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog

from models.db.database import DATABASE_UNAVAILABLE
from models.side_tasks import cancel_all

logger = structlog.get_logger()

_POLL = 0.5
"""Seconds between two looks for due rows."""


class DueTasks:
    """The tasks of one kind in one process: each works on a row that it has taken."""

    def __init__(self, name: str, at_once: int) -> None:
        """`name`: in the log. `at_once`: most tasks at a time."""
        self._name = name
        self._interrupted = f"{name}_interrupted"
        self._at_once = at_once
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_room = asyncio.Event()

    @property
    def free(self) -> int:
        """How many more may run."""
        return self._at_once - len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`, which raises nothing."""
        task = asyncio.create_task(work, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._has_room.set()

    async def run(self, start_due: Callable[[int], Awaitable[int]]) -> None:
        """Calls `start_due` with the number of tasks that it may start, whenever there is room and
        rows may be due; it returns how many it has started. Ends when it is cancelled; tasks that
        run are cancelled too, and their rows are due again when their leases end."""
        try:
            while True:
                self._has_room.clear()
                try:
                    while self.free > 0 and await start_due(self.free):
                        pass
                except DATABASE_UNAVAILABLE as error:
                    logger.warning(self._interrupted, error=str(error).strip())
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL):
                        await self._has_room.wait()
        finally:
            await cancel_all(self._tasks)
