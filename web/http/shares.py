"""What one web process has a limited amount of, and what each project may use of it (ADR 0039).

The counts are those of this process. Quotas of a project over all processes are another matter.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Self

from models.config.web import WebSettings
from models.errors import ApiError, ShareUsedUp, Unavailable

_MAX_WAITING = 16
"""Requests of one project that wait. Each may have sent as much as the network buffers."""


class Share:
    """An amount: connections, or bytes. A project that uses nothing gets what it needs, however
    small its share is, and so does the only one that uses anything."""

    def __init__(self, what: str, total: int, of_project: int, wait: float = 0) -> None:
        """`what`: in the plural, for messages. `of_project` 0: as much as there is. `wait`: seconds
        that `Held.grow` waits."""
        self._what = what
        self._total = total
        self._of_project = of_project or total
        self._wait = wait
        self._used = 0
        self._used_by: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._freed = asyncio.Event()

    @property
    def used(self) -> int:
        """By all projects together."""
        return self._used

    def take(self, project: str, amount: int = 1) -> "Held":
        """Takes a part. Raises ShareUsedUp (429) or Unavailable (503)."""
        held = Held(self, project)
        held.set(amount)
        return held

    def require(self, project: str, amount: int, own: int = 0) -> None:
        """Raises as `take` does if one that has `own` cannot have `amount`."""
        others = self._used_by.get(project, 0) - own
        if others and others + amount > self._of_project:
            raise ShareUsedUp(f"Your project has too many {self._what} at this server.")
        others = self._used - own
        if others and others + amount > self._total:
            raise Unavailable(f"The server has too many {self._what}. Please retry.")

    async def wait_for(
        self, project: str, amount: int, own: int, wait: float | None = None
    ) -> None:
        """Waits until one that has `own` can have `amount`. Raises as `take` does, after `wait`
        seconds; without it after a few, or at once if many wait."""
        if self._fits(project, amount, own):
            return
        if wait is None:
            wait = self._wait if self._waiting[project] < _MAX_WAITING else 0
        self._waiting[project] += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    while not self._fits(project, amount, own):
                        self._freed.clear()
                        await self._freed.wait()
        finally:
            self._waiting[project] -= 1
            if not self._waiting[project]:
                del self._waiting[project]
        self.require(project, amount, own)

    def _fits(self, project: str, amount: int, own: int) -> bool:
        try:
            self.require(project, amount, own)
        except ApiError:
            return False
        return True

    def add(self, project: str, amount: int) -> None:
        """Counts what was taken, or given back if `amount` is negative."""
        self._used += amount
        self._used_by[project] += amount
        if not self._used_by[project]:
            del self._used_by[project]
        if amount < 0:
            self._freed.set()


class Shares:
    """The shares of one process."""

    def __init__(self, web: WebSettings) -> None:
        wait = web.bodies_wait.total_seconds()
        self.bodies = Share("large requests", web.bodies, web.bodies_per_project, wait)
        """Bytes of the request bodies that are read and checked."""
        self.spools = Share("uploads", web.spools, web.spools_per_project, wait)
        """Bytes of uploads in temporary files."""
        self.sockets = Share("open WebSockets", web.sockets, web.sockets_per_project)
        self.streams = Share(
            "open streams and waiting requests", web.streams, web.streams_per_project
        )
        """Streams, and requests that wait for the end of a response."""
        self.uploads = Share("uploads", web.uploads, web.uploads_per_project)
        """Files that are being received."""


class Held:
    """What one request or connection has of a share."""

    __slots__ = ("_project", "_share", "amount")

    def __init__(self, share: Share, project: str) -> None:
        self._share = share
        self._project = project
        self.amount = 0

    def set(self, amount: int) -> None:
        """Has so much from now on. Raises as `Share.take` does; then nothing has changed."""
        if amount > self.amount:
            self._share.require(self._project, amount, self.amount)
        if amount != self.amount:
            self._share.add(self._project, amount - self.amount)
            self.amount = amount

    async def grow(self, amount: int, wait: float | None = None) -> None:
        """Has at least so much from now on, after a wait for it, of `wait` seconds or as the share
        has it. Raises as `Share.take` does."""
        if amount > self.amount:
            await self._share.wait_for(self._project, amount, self.amount, wait)
            self.set(amount)

    def split(self) -> Self:
        """Gives all that it has to a new object."""
        other = type(self)(self._share, self._project)
        other.amount, self.amount = self.amount, 0
        return other

    def release(self) -> None:
        """Has nothing any more. May be called again."""
        self.set(0)
