"""What one web process has a limited amount of, and what each project may use of it (ADR 0039).

The counts are those of this process. Quotas of a project over all processes are another matter.
"""

import asyncio
from collections import Counter
from typing import Self

from models.config.web import WebSettings
from models.errors import ApiError, ShareUsedUp, Unavailable
from models.load.fair_queue import FairQueue

_MAX_WAITING = 16
"""Requests of one project that wait. Each may have sent as much as the network buffers. Bodies that
have arrived are bounded by what they have."""


class Share:
    """An amount: connections, or bytes. A project that uses nothing gets what it needs, however
    small its share is, and so does the only one that uses anything."""

    def __init__(
        self, what: str, total: int, of_project: int, wait: float = 0, period: float = 0
    ) -> None:
        """`what`: in the plural, for messages. `of_project` 0: as much as there is. `wait`: seconds
        that `Held.grow` waits. `period`: of the arrival of what parts are taken for
        (web/http/body_deadline.py), in seconds."""
        self.period = period
        self._what = what
        self._total = total
        self._of_project = of_project or total
        self._wait = wait
        self._used = 0
        self._used_by: Counter[str] = Counter()
        self._arriving: Counter[str] = Counter()
        """What bodies have that are not decoded yet, by project."""
        self._waiting: FairQueue[str, _Waiting] = FairQueue()

    @property
    def used(self) -> int:
        """By all projects together."""
        return self._used

    @property
    def in_work(self) -> int:
        """What is used, without the bodies that are not decoded yet."""
        return self._used - self._arriving.total()

    def take(self, project: str, amount: int = 1) -> "Held":
        """Takes a part. Raises ShareUsedUp (429) or Unavailable (503)."""
        held = Held(self, project)
        held.set(amount)
        return held

    def require(self, held: "Held", amount: int, *, to_decode: bool = False) -> None:
        """Raises as `take` does if this one cannot have `amount`. `to_decode`: it is a body that
        has arrived. Those that are not decoded yet do not count then: they are bounded already, and
        each would wait for the others."""
        if to_decode:
            others = self._used_by[held.project] - self._arriving[held.project]
            all_others = self.in_work
        else:
            others = self._used_by[held.project] - held.amount
            all_others = self._used - held.amount
        if others and others + amount > self._of_project:
            raise ShareUsedUp(f"Your project has too many {self._what} at this server.")
        if all_others and all_others + amount > self._total:
            raise Unavailable(f"The server has too many {self._what}. Please retry.")

    async def wait_for(
        self, held: "Held", amount: int, wait: float | None, *, to_decode: bool
    ) -> None:
        """Waits until this one has `amount`; projects take turns. Raises as `take` does, after
        `wait` seconds; without it after a few, or at once if many wait."""
        if wait is None:
            waiting = len(self._waiting.of(held.project))
            wait = self._wait if to_decode or waiting < _MAX_WAITING else 0
        one = _Waiting(held, amount, to_decode)
        self._waiting.add(held.project, one)
        try:
            async with asyncio.timeout(wait):
                await one.turn.wait()
        except TimeoutError:
            if not one.turn.is_set():
                self.require(held, amount, to_decode=to_decode)
                held.count(amount, is_decoded=to_decode)
        finally:
            if not one.turn.is_set():
                self._waiting.remove(held.project, one)

    def fits(self, held: "Held", amount: int, *, to_decode: bool) -> bool:
        """Whether this one can have `amount`."""
        try:
            self.require(held, amount, to_decode=to_decode)
        except ApiError:
            return False
        return True

    def add(self, project: str, amount: int, *, arriving: int = 0) -> None:
        """Counts what was taken, or given back if `amount` is negative. `arriving`: the same for
        bodies that are not decoded yet."""
        self._used += amount
        for counter, change in ((self._used_by, amount), (self._arriving, arriving)):
            counter[project] += change
            if not counter[project]:
                del counter[project]
        if amount < 0:
            self._give()

    def _give(self) -> None:
        """Gives what is free to those that wait for it, project by project."""
        projects = list(self._waiting)
        for project in projects:
            if (one := self._next_of(project)) is not None:
                self._waiting.remove(project, one)
                self._waiting.pass_turn(project)
                projects.append(project)
                one.held.count(one.amount, is_decoded=one.to_decode)
                one.turn.set()

    def _next_of(self, project: str) -> "_Waiting | None":
        fitting = (
            one
            for one in self._waiting.of(project)
            if self.fits(one.held, one.amount, to_decode=one.to_decode)
        )
        return next(fitting, None)


class Shares:
    """The shares of one process."""

    def __init__(self, web: WebSettings) -> None:
        wait = web.bodies_wait.total_seconds()
        self.bodies = Share(
            "large requests",
            web.bodies,
            web.bodies_per_project,
            wait,
            web.body_pause.total_seconds(),
        )
        """Bytes of the request bodies that are read and checked, and of what is made of them."""
        self.spools = Share("uploads", web.spools, web.spools_per_project, wait)
        """Bytes of uploads in temporary files."""
        self.sockets = Share("open WebSockets", web.sockets, web.sockets_per_project)
        self.streams = Share(
            "open streams and waiting requests", web.streams, web.streams_per_project
        )
        """Streams, and requests that wait for the end of a response."""
        self.uploads = Share("uploads and downloads", web.uploads, web.uploads_per_project)
        """Files that are being received or sent."""
        self.webhook_tests = Share("webhook tests", 64, 16)
        """Requests that wait for the first try of an event."""


class Held:
    """What one request or connection has of a share."""

    __slots__ = ("_share", "amount", "is_arriving", "project")

    def __init__(self, share: Share, project: str) -> None:
        self._share = share
        self.project = project
        self.amount = 0
        self.is_arriving = False
        """It is a body that is not decoded yet. Set before it has anything."""

    @property
    def period(self) -> float:
        """Seconds: see `Share`."""
        return self._share.period

    def set(self, amount: int) -> None:
        """Has so much from now on. Raises as `Share.take` does; then nothing has changed."""
        if amount > self.amount:
            self._share.require(self, amount)
        self.count(amount)

    def count(self, amount: int, *, is_decoded: bool = False) -> None:
        """Has so much from now on, which was found to fit. `is_decoded`: also for its objects."""
        before, self.amount = self.amount, amount
        arriving = 0
        if self.is_arriving:
            arriving = (0 if is_decoded else amount) - before
            self.is_arriving = not is_decoded
        if before != amount or arriving:
            self._share.add(self.project, amount - before, arriving=arriving)

    async def grow(self, amount: int, wait: float | None = None) -> None:
        """Has at least so much from now on, after a wait for it, of `wait` seconds or as the share
        has it. Raises as `Share.take` does."""
        if amount > self.amount:
            await self._grow(amount, wait, to_decode=False)

    async def grow_to_decode(self, amount: int) -> None:
        """The same for a body that has arrived, and its objects."""
        await self._grow(max(amount, self.amount), None, to_decode=True)

    async def _grow(self, amount: int, wait: float | None, *, to_decode: bool) -> None:
        if self._share.fits(self, amount, to_decode=to_decode):
            self.count(amount, is_decoded=to_decode)
        else:
            await self._share.wait_for(self, amount, wait, to_decode=to_decode)

    def split(self) -> Self:
        """Gives all that it has to a new object."""
        other = type(self)(self._share, self.project)
        other.amount, self.amount = self.amount, 0
        other.is_arriving = self.is_arriving
        return other

    def release(self) -> None:
        """Has nothing any more. May be called again."""
        self.set(0)


class _Waiting:
    """One that waits for a part."""

    def __init__(self, held: Held, amount: int, to_decode: bool) -> None:
        self.held = held
        self.amount = amount
        self.to_decode = to_decode
        self.turn = asyncio.Event()
        """Set when it has the part."""
