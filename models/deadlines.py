"""How long we wait for somebody who speaks often: one timer that is moved by assignment, not one per word.

`asyncio.timeout` around every read costs a fifth of a chunk's time at a thousand streams. Here the deadline is a number; the timer
looks at it when it rings, and rings again later if it has moved.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = float("inf")


class IdleTimeout:
    """Cancels the task that entered it once its deadline has passed. `rest` while the delay is our own."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = NEVER
        self._timer: asyncio.Handle | None = None
        self._fires_at = NEVER
        """Of the timer; uvloop's own does not know when, if that is now."""
        self._task: asyncio.Task[object] | None = None
        self.expired = False

    def set_deadline(self, deadline: float) -> None:
        """Wait no longer than this, in the loop's time."""
        self._deadline = deadline
        if self._task is not None and deadline < self._fires_at:
            self._schedule(deadline)

    def pause(self) -> None:
        """The next delay is not the far side's."""
        self._deadline = NEVER

    @contextmanager
    def extend(self) -> Iterator[None]:
        """While this lasts, an expired deadline cancels the present task; leaving it turns that cancellation into TimeoutError."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        cancels_before = task.cancelling()
        self.set_deadline(self._deadline)
        try:
            yield
        except asyncio.CancelledError:
            if self.expired and task.uncancel() <= cancels_before:
                raise TimeoutError from None
            raise
        finally:
            self._task = None
            if self._timer is not None:
                self._timer.cancel()

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
        self._task.cancel()
