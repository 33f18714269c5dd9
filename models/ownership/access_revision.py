"""How a process notices that a project or a key was changed.

The database counts these changes (`access_revision`, migrations/functions.sql). Each heartbeat
reads the number, with the statement that renews the lease: so it costs no statement, and needs no
Redis. A process acts on a change at most one heartbeat after its commit, half a second by default
(docs/projects.md).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress


class AccessRevision:
    """The number that this process has seen last. The thread of the heartbeat sets it; those that
    watch it are called in the event loop."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._watchers: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []

    def watch(self, on_change: Callable[[], None]) -> None:
        """Calls `on_change` in this event loop after each change, and once when the number is known
        first: what was read before that may be older."""
        self._watchers.append((asyncio.get_running_loop(), on_change))

    def forget(self) -> None:
        """The next number counts as a change, whichever it is."""
        self._number = None

    def set(self, number: int) -> None:
        """The number that a heartbeat has read."""
        if number == self._number:
            return
        self._number = number
        for loop, on_change in self._watchers:
            # The loop may have ended: then nobody uses what was read.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(on_change)
