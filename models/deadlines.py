"""A timeout for a stream with many short reads: one timer whose deadline is moved by assignment.

`asyncio.timeout` around each read would take a fifth of the time of a chunk at a thousand streams.
Here the deadline is a number. When the timer fires, it checks the deadline, and starts again if the
deadline was moved.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = float("inf")
_AGAIN = 5.0
"""Seconds after which a task is cancelled again that has not ended. A cancellation is lost if
another exception, or in Python 3.11 a result of `asyncio.wait_for`, meets it in its task."""


class IdleTimeout:
    """Cancels the task inside `extend()` when the deadline has passed."""

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
