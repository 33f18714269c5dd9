"""Bursts: work of many tasks that became ready at once, spread over time."""

import asyncio
from collections import deque


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
