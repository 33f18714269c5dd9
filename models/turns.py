"""Bursts: work of many tasks that became ready at once, spread over time and shared out fairly."""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from uuid import UUID

from models.load.fair_queue import FairQueue


class Turns:
    """Lets a few callers go on in each turn of the event loop, so that others run in between."""

    def __init__(self, size: int) -> None:
        """`size`: callers that go on in one turn."""
        self._size = size
        self._left = size
        """Callers that may go on in this turn."""
        self._waiting: FairQueue[Hashable, asyncio.Future[None]] = FairQueue()
        """By origin."""
        self._is_counting = False
        """`_next_turn` will be called."""

    async def wait(self, origin: Hashable = None) -> None:
        """Returns at once for the first callers of a turn, in the next turn for the next ones, and
        so on. `origin`: such as a project; callers of different origins go on in turn."""
        loop = asyncio.get_running_loop()
        if not self._is_counting:
            self._is_counting = True
            loop.call_soon(self._next_turn)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return
        turn = loop.create_future()
        self._waiting.add(origin, turn)
        await turn

    def _next_turn(self) -> None:
        self._left = self._size
        while self._left > 0 and (turn := self._waiting.take_next()) is not None:
            if not turn.done():
                turn.set_result(None)
                self._left -= 1
        self._is_counting = self._left < self._size
        if self._is_counting:
            asyncio.get_running_loop().call_soon(self._next_turn)


class Pace:
    """Lets callers go on one by one, so that what they do leaves time for everything else."""

    def __init__(self, pause: float) -> None:
        """`pause`: seconds between two callers, at least; longer if the event loop is busy."""
        self._pause = pause
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Returns when it is the caller's turn, which is a pause after the one before."""
        async with self._lock:
            await asyncio.sleep(self._pause)


_LARGE = 8 * 1024 * 1024
"""Bytes of a value from which a step over all of it (decoding, encoding, copying) takes long."""
PAUSE = 0.05
"""Seconds between two such steps. The steps of one value follow each other, and each may take a
tenth of a second: without pauses all other requests would wait for the sum."""


def is_large(size: int) -> bool:
    """Whether there are to be pauses between the steps over a value of so many bytes."""
    return size > _LARGE


async def pause_if_large(size: int) -> None:
    """Lets everything else go on between two steps over a value of so many bytes."""
    if is_large(size):
        await asyncio.sleep(PAUSE)


class ProjectSlots:
    """Slots that projects take in turns. However many pieces of work of one project wait, some
    slots are for the others, and the next one of each other project waits for few.

    A project gets another slot while it has fewer than twice as many as are free: two thirds of all
    if it is alone, less beside others. So one that begins finds a free slot at once, mostly.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._most = max(1, count - 1)
        """Slots that one project may have in any case."""
        self._used: dict[UUID, int] = {}
        self._waiting: FairQueue[UUID, asyncio.Future[None]] = FairQueue()

    @property
    def waiting(self) -> int:
        """Pieces of work that wait for a slot now."""
        return len(self._waiting)

    @asynccontextmanager
    async def take(self, project: UUID) -> AsyncIterator[None]:
        """A slot, from the beginning of the context to its end."""
        await self.acquire(project)
        try:
            yield
        finally:
            self.release(project)

    async def acquire(self, project: UUID) -> None:
        """Returns when the project has one more slot. The caller gives it back with `release`."""
        if project not in self._waiting and self._use(project):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(project, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._give()
            else:
                self.release(project)
            raise

    def release(self, project: UUID) -> None:
        """The project gives a slot back."""
        self._free += 1
        self._used[project] -= 1
        if not self._used[project]:
            del self._used[project]
        self._give()

    def _use(self, project: UUID) -> bool:
        """Gives the project a slot, if it may have one."""
        used = self._used.get(project, 0)
        if used >= min(2 * self._free, self._most):
            return False
        self._free -= 1
        self._used[project] = used + 1
        return True

    def _give(self) -> None:
        """Gives what is free to those whose turn it is: at most one to each, as no more can have
        become free."""
        for project in self._waiting:
            while (turns := self._waiting.of(project)) and turns[0].cancelled():
                self._waiting.remove(project, turns[0])
            if turns and self._use(project):
                self._waiting.take(project).set_result(None)
