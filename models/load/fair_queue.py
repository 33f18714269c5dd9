"""What the projects of a process share: the order in which they are served, N permits for work of
one kind, and slots of which one project cannot keep another one waiting (ADR 0041)."""

import asyncio
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Hashable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

KeyT = TypeVar("KeyT", bound=Hashable)
EntryT = TypeVar("EntryT", bound=Hashable)


class RoundRobin(Generic[KeyT, EntryT]):
    """Entries, first come, first served for each key, such as a project. A key whose entry was
    taken is the last one then: however many entries it has, each other key waits for one of them.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[KeyT, OrderedDict[EntryT, None]] = OrderedDict()
        """The key that is next is first. None is empty."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __contains__(self, key: object) -> bool:
        return key in self._queues

    def __iter__(self) -> Iterator[KeyT]:
        """The keys that have entries now, the next one first."""
        return iter(list(self._queues))

    def of(self, key: KeyT) -> Collection[EntryT]:
        """The entries of a key, the one that came first first."""
        return self._queues.get(key, {}).keys()

    def add(self, key: KeyT, entry: EntryT) -> None:
        """Puts an entry behind the others of its key."""
        self._queues.setdefault(key, OrderedDict())[entry] = None

    def remove(self, key: KeyT, entry: EntryT) -> None:
        """Removes an entry that is not served, if it is here."""
        queue = self._queues.get(key)
        if queue is not None:
            queue.pop(entry, None)
            if not queue:
                del self._queues[key]

    def take(self, key: KeyT, entry: EntryT) -> None:
        """Removes an entry that is served: the other keys are next."""
        self.remove(key, entry)
        if key in self._queues:
            self._queues.move_to_end(key)

    def take_next(self) -> EntryT | None:
        """Removes the next entry and returns it; None if there is none."""
        if not self._queues:
            return None
        key, queue = next(iter(self._queues.items()))
        entry = next(iter(queue))
        self.take(key, entry)
        return entry


_Permit = asyncio.Future[None]
"""It has a result as soon as the work that waits for it may begin."""

_OVERTAKES = 3
"""Permits in a row that work of high priority gets while work of low priority waits."""


class FairQueue:
    """Work that waits gets permits round robin by project, that of one project in its order.

    While one project has much work, the next one must find a permit: a project gets another permit
    while it has fewer than twice as many as are free. That is two thirds of all if it is alone,
    less beside others. With a `reserve` there are more permits instead, each for a project that has
    none; then a project that is alone may have all others.
    """

    def __init__(self, permits: int | None, reserve: int | None = None) -> None:
        """`permits`: None: as many as are wanted. `reserve`: permits above them; None: a project
        leaves a third of the permits to the others."""
        self._permits = sys.maxsize if permits is None else permits
        self._reserve = reserve
        self._most = max(1, self._permits - 1)
        """Permits that one project may have in any case, without a reserve."""
        self._free = self._permits
        """Negative while permits of the reserve are in use."""
        self._used_by: dict[UUID, int] = {}
        self._high: RoundRobin[UUID, _Permit] = RoundRobin()
        self._low: RoundRobin[UUID, _Permit] = RoundRobin()
        self._overtakes = 0
        """Permits in a row for work of high priority while some of low priority waited."""

    @property
    def used(self) -> int:
        """Permits that are in use."""
        return self._permits - self._free

    @property
    def waiting(self) -> int:
        """Pieces of work that wait for a permit."""
        return len(self._high) + len(self._low)

    def waiting_of(self, project: UUID, *, low: bool = False) -> int:
        """Those of a project with this priority."""
        return len(self._queue(low=low).of(project))

    @asynccontextmanager
    async def permit(self, project: UUID) -> AsyncIterator[None]:
        """A permit, from the beginning of the context to its end."""
        await self.acquire(project)
        try:
            yield
        finally:
            self.release(project)

    def try_acquire(self, project: UUID, *, low: bool = False) -> bool:
        """Whether the project has one more permit, without waiting."""
        if project in self._queue(low=low) or not self._may_use(project):
            return False
        self._use(project)
        return True

    async def acquire(self, project: UUID, *, low: bool = False) -> None:
        """Returns when the project has one more permit. The caller gives it back with `release`.
        `low`: while work of high priority waits, this gets one permit in four."""
        if self.try_acquire(project, low=low):
            return
        permit: _Permit = asyncio.get_running_loop().create_future()
        queue = self._queue(low=low)
        queue.add(project, permit)
        try:
            await permit
        except asyncio.CancelledError:
            if permit.cancelled():
                queue.remove(project, permit)
            else:
                self.release(project)
            raise

    def release(self, project: UUID) -> None:
        """The project gives a permit back."""
        self._free += 1
        self._used_by[project] -= 1
        if not self._used_by[project]:
            del self._used_by[project]
        while self._free > -(self._reserve or 0) and self._give():
            pass

    def _queue(self, *, low: bool) -> RoundRobin[UUID, _Permit]:
        return self._low if low else self._high

    def _may_use(self, project: UUID) -> bool:
        used = self._used_by.get(project, 0)
        if self._reserve is None:
            return used < min(2 * self._free, self._most)
        return self._free > 0 or (not used and self._free > -self._reserve)

    def _use(self, project: UUID) -> None:
        self._free -= 1
        self._used_by[project] = self._used_by.get(project, 0) + 1

    def _give(self) -> bool:
        """Gives a permit to the next work that may have one. False: there is none."""
        queues = [self._high, self._low]
        if self._overtakes >= _OVERTAKES:
            queues.reverse()
        for queue in queues:
            for project in queue:
                permit = self._first(queue, project)
                if permit is not None and self._may_use(project):
                    queue.take(project, permit)
                    self._use(project)
                    permit.set_result(None)
                    overtakes = queue is self._high and self._low
                    self._overtakes = self._overtakes + 1 if overtakes else 0
                    return True
        return False

    @staticmethod
    def _first(queue: RoundRobin[UUID, _Permit], project: UUID) -> _Permit | None:
        """What waits first for the project; removes what was cancelled in this moment."""
        while waiting := queue.of(project):
            permit = next(iter(waiting))
            if not permit.done():
                return permit
            queue.remove(project, permit)
        return None


_FRACTION = 10
_LEAST = 2
"""With two projects that take all they can get, a third one finds a slot."""


@dataclass(frozen=True, slots=True)
class ReservedSlots:
    """Slots for anybody, and a few more, each for a project that has none here.

    What runs in a slot of the reserve counts as everything else does. So a slot that becomes free
    fills the reserve first, and only then goes to somebody who has others.
    """

    count: int
    """Slots for anybody: those that an operator has set."""
    reserve: int
    """Slots above them."""

    @classmethod
    def beside(cls, count: int) -> "ReservedSlots":
        """So many slots, and a tenth more as the reserve, two at least."""
        return cls(count, max(_LEAST, count // _FRACTION))

    @property
    def most(self) -> int:
        """All of them."""
        return self.count + self.reserve

    def free(self, used: int) -> int:
        """How many of the slots are free for anybody, while so many are used."""
        return max(0, self.count - used)

    def free_for_newcomers(self, used: int) -> int:
        """How many are free for projects that have none, one for each."""
        return max(0, self.most - used)
