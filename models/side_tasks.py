"""The tasks that a process runs from its start to its end, such as the Redis listener."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, NoReturn

import structlog

logger = structlog.get_logger()


class SideTasks:
    """Runs tasks beside the requests or responses of a process. If one fails, or is cancelled by
    anything but `cancel`, the process exits.

    A process without its heartbeat, journal or bus cannot keep what it promises; a new one can.
    """

    def __init__(self, exit_process: Callable[[], NoReturn]) -> None:
        self._exit_process = exit_process
        self._tasks: set[asyncio.Task[None]] = set()
        self._are_ending = False

    def start(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        """Runs `work` as a task; `name` appears in the log if it fails."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def cancel(self) -> None:
        """Cancels all of them and waits until they have ended."""
        self._are_ending = True
        await cancel_all(self._tasks)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            if self._are_ending:
                return
            error: BaseException | None = asyncio.CancelledError()
        else:
            error = task.exception()
        if error is not None:
            logger.critical("side_task_failed", task=task.get_name(), exc_info=error)
            self._exit_process()


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels the tasks and waits until they have ended.

    Cancels again every half second: a cancellation is lost if another exception meets it in its
    task.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)
        for task in pending:
            logger.warning("side_task_still_running", task=task.get_name())
