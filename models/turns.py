"""Bursts: work of many tasks that became ready at once, spread over time and shared out fairly."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID


class Turns:
    """Lets a few callers go on in each turn of the event loop, so that others run in between."""

    def __init__(self, size: int) -> None:
        """`size`: callers that go on in one turn."""
        self._size = size
        self._left = size
        """Callers that may go on in this turn."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_counting = False
        """`_next_turn` will be called."""

    async def wait(self) -> None:
        """Returns at once for the first callers of a turn, in the next turn for the next ones, and
        so on."""
        loop = asyncio.get_running_loop()
        if not self._is_counting:
            self._is_counting = True
            loop.call_soon(self._next_turn)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_turn(self) -> None:
        self._left = self._size
        while self._left > 0 and self._waiting:
            turn = self._waiting.popleft()
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


class ProjectSlots:
    """Slots that projects take in turns. However many pieces of work of one project wait, at least
    one slot is for the others, and the next one of each other project waits for few."""

    def __init__(self, count: int) -> None:
        """`count`: at least two."""
        self._free = count
        self._most = count - 1
        """Slots that one project may have."""
        self._used: Counter[UUID] = Counter()
        self._waiting: dict[UUID, deque[asyncio.Future[None]]] = {}
        """By projects, the one whose turn is next first."""

    @asynccontextmanager
    async def take(self, project: UUID) -> AsyncIterator[None]:
        """A slot, from the beginning of the context to its end."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(project, deque()).append(turn)
        self._give()
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():
                self._free += 1
                self._used -= Counter([project])
            self._give()

    def _give(self) -> None:
        """Gives what is free to those whose turn it is."""
        for project in list(self._waiting):
            turns = self._waiting[project]
            while turns and turns[0].cancelled():
                turns.popleft()
            has_turn = turns and self._free > 0 and self._used[project] < self._most
            if has_turn:
                turns.popleft().set_result(None)
                self._free -= 1
                self._used[project] += 1
            if not turns:
                del self._waiting[project]
            elif has_turn:
                self._waiting[project] = self._waiting.pop(project)  # now the last one
