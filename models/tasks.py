"""Tasks that a process runs from its start to its end, and a timeout for streams."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
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


NEVER = float("inf")
_AGAIN = 5.0
"""Seconds after which a task is cancelled again that has not ended. A cancellation is lost if
another exception, or in Python 3.11 a result of `asyncio.wait_for`, meets it in its task."""


class IdleTimeout:
    """A timeout for a stream with many short reads: cancels the task inside `extend()` when the
    deadline has passed.

    `asyncio.timeout` around each read would take a fifth of the time of a chunk at a thousand
    streams. Here the deadline is a number, which is moved by assignment. When the timer fires, it
    checks the deadline, and starts again if the deadline was moved.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = NEVER
        self._timer: asyncio.Handle | None = None
        self._fires_at = NEVER
        """When the timer fires, in the loop's time; a handle of uvloop does not always know it."""
        self._task: asyncio.Task[object] | None = None
        self._cancellations = 0
        """How often the task was cancelled here."""
        self.expired = False

    def set_deadline(self, deadline: float) -> None:
        """Moves the deadline, in the loop's time."""
        self._deadline = deadline
        if self._task is not None and deadline < self._fires_at:
            self._schedule(deadline)

    def pause(self) -> None:
        """Removes the deadline, before work whose delay is not the other side's."""
        self._deadline = NEVER

    @contextmanager
    def extend(self) -> Iterator[None]:
        """Applies the deadline to the current task. Raises TimeoutError when it has passed."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        cancels_before = task.cancelling()
        self.set_deadline(self._deadline)
        try:
            yield
        except asyncio.CancelledError:
            self._end(task)
            if self.expired and task.cancelling() <= cancels_before:
                raise TimeoutError from None
            raise
        finally:
            self._end(task)

    def _end(self, task: "asyncio.Task[object]") -> None:
        """Takes back all cancellations, also those that were lost: the next one of somebody else
        would be taken for ours, or ours for one of somebody else."""
        self._task = None
        if self._timer is not None:
            self._timer.cancel()
        while self._cancellations:
            self._cancellations -= 1
            task.uncancel()

    def _schedule(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at = when
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._fires_at = None, NEVER
        if self._task is None or self._deadline == NEVER:
            return
        if self._loop.time() < self._deadline:
            self._schedule(self._deadline)
            return
        self.expired = True
        self._cancellations += 1
        self._task.cancel()
        self._schedule(self._loop.time() + _AGAIN)
