"""An amount that the projects of a process share: bytes, or connections (ADR 0039).

It is counted in one process. Quotas of a project over all processes are another matter.
"""

import asyncio
from collections import Counter
from typing import Self

from models.errors import ApiError, ShareUsedUp, Unavailable
from models.load.fair_queue import RoundRobin

_MAX_WAITING = 16
"""Requests of one project that wait. Each may have sent as much as the network buffers. Bodies that
have arrived are bounded by what is reserved for them."""


class SharedBudget:
    """A project that uses nothing gets what it needs, however small its share is, and so does the
    only one that uses anything. Reservations that wait are served round robin by project."""

    def __init__(self, what: str, total: int, of_project: int, wait: float = 0) -> None:
        """`what`: in the plural, for messages. `of_project` 0: as much as there is. `wait`: seconds
        that `Reservation.grow` waits."""
        self._what = what
        self._total = total
        self._of_project = of_project or total
        self._wait = wait
        self._used = 0
        self._used_by: Counter[str] = Counter()
        self._arriving: Counter[str] = Counter()
        """What is reserved for bodies that are not decoded yet, by project."""
        self._waiting: RoundRobin[str, _Waiting] = RoundRobin()

    @property
    def used(self) -> int:
        """By all projects together."""
        return self._used

    @property
    def in_work(self) -> int:
        """What is used, without the bodies that are not decoded yet."""
        return self._used - self._arriving.total()

    def reserve(self, project: str, amount: int = 1) -> "Reservation":
        """Raises ShareUsedUp (429) or Unavailable (503)."""
        reservation = Reservation(self, project)
        reservation.resize(amount)
        return reservation

    def require(self, one: "Reservation", amount: int, *, to_decode: bool = False) -> None:
        """Raises as `reserve` does if this one cannot have `amount`. `to_decode`: it is for a body
        that has arrived. Those that are not decoded yet do not count then: they are bounded
        already, and each would wait for the others."""
        if to_decode:
            others = self._used_by[one.project] - self._arriving[one.project]
            all_others = self.in_work
        else:
            others = self._used_by[one.project] - one.amount
            all_others = self._used - one.amount
        if others and others + amount > self._of_project:
            raise ShareUsedUp(f"Your project has too many {self._what} at this server.")
        if all_others and all_others + amount > self._total:
            raise Unavailable(f"The server has too many {self._what}. Please retry.")

    async def wait_for(
        self, one: "Reservation", amount: int, wait: float | None, *, to_decode: bool
    ) -> None:
        """Waits until this one has `amount`. Raises as `reserve` does, after `wait` seconds;
        without it after a few, or at once if many of its project wait."""
        if wait is None:
            waiting = len(self._waiting.of(one.project))
            wait = self._wait if to_decode or waiting < _MAX_WAITING else 0
        place = _Waiting(one, amount, to_decode)
        self._waiting.add(one.project, place)
        try:
            async with asyncio.timeout(wait):
                await place.is_served.wait()
        except TimeoutError:
            if not place.is_served.is_set():
                self.require(one, amount, to_decode=to_decode)
                one.resize_unchecked(amount, is_decoded=to_decode)
        finally:
            if not place.is_served.is_set():
                self._waiting.remove(one.project, place)

    def fits(self, one: "Reservation", amount: int, *, to_decode: bool) -> bool:
        """Whether this one can have `amount`."""
        try:
            self.require(one, amount, to_decode=to_decode)
        except ApiError:
            return False
        return True

    def add(self, project: str, amount: int, *, arriving: int = 0) -> None:
        """Counts what was reserved, or released if `amount` is negative. `arriving`: the same for
        bodies that are not decoded yet."""
        self._used += amount
        for counter, change in ((self._used_by, amount), (self._arriving, arriving)):
            counter[project] += change
            if not counter[project]:
                del counter[project]
        if amount < 0:
            self._serve()

    def _serve(self) -> None:
        projects = list(self._waiting)
        for project in projects:
            if (place := self._fitting(project)) is not None:
                self._waiting.take(project, place)
                projects.append(project)
                place.reservation.resize_unchecked(place.amount, is_decoded=place.to_decode)
                place.is_served.set()

    def _fitting(self, project: str) -> "_Waiting | None":
        """The first one of the project for which there is room."""
        fitting = (
            place
            for place in self._waiting.of(project)
            if self.fits(place.reservation, place.amount, to_decode=place.to_decode)
        )
        return next(fitting, None)


class Reservation:
    """What one request or connection has of a budget."""

    __slots__ = ("_budget", "amount", "is_arriving", "project")

    def __init__(self, budget: SharedBudget, project: str) -> None:
        """Of nothing yet."""
        self._budget = budget
        self.project = project
        self.amount = 0
        self.is_arriving = False
        """It is for a body that is not decoded yet. Set before it has anything."""

    def resize(self, amount: int) -> None:
        """Sets the amount. Raises as `SharedBudget.reserve` does; then nothing has changed."""
        if amount > self.amount:
            self._budget.require(self, amount)
        self.resize_unchecked(amount)

    def resize_unchecked(self, amount: int, *, is_decoded: bool = False) -> None:
        """Sets the amount, for which there is room. `is_decoded`: it is also for the objects of
        the body."""
        before, self.amount = self.amount, amount
        arriving = 0
        if self.is_arriving:
            arriving = (0 if is_decoded else amount) - before
            self.is_arriving = not is_decoded
        if before != amount or arriving:
            self._budget.add(self.project, amount - before, arriving=arriving)

    async def grow(self, amount: int, wait: float | None = None) -> None:
        """Raises the amount to at least this one, after a wait for room: of `wait` seconds, or as
        the budget has it. Raises as `SharedBudget.reserve` does."""
        if amount > self.amount:
            await self._grow(amount, wait, to_decode=False)

    async def grow_to_decode(self, amount: int) -> None:
        """`grow` for a body that has arrived, and its objects."""
        await self._grow(max(amount, self.amount), None, to_decode=True)

    async def _grow(self, amount: int, wait: float | None, *, to_decode: bool) -> None:
        if self._budget.fits(self, amount, to_decode=to_decode):
            self.resize_unchecked(amount, is_decoded=to_decode)
        else:
            await self._budget.wait_for(self, amount, wait, to_decode=to_decode)

    def split(self) -> Self:
        """Moves the whole amount to a new reservation."""
        other = type(self)(self._budget, self.project)
        other.amount, self.amount = self.amount, 0
        other.is_arriving = self.is_arriving
        return other

    def release(self) -> None:
        """Releases the whole reservation. Idempotent."""
        self.resize(0)


class _Waiting:
    """A reservation that waits for room."""

    def __init__(self, reservation: Reservation, amount: int, to_decode: bool) -> None:
        self.reservation = reservation
        self.amount = amount
        self.to_decode = to_decode
        self.is_served = asyncio.Event()
