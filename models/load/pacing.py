"""Bursts: work of many tasks that became ready at once, spread over time."""

import asyncio
from collections.abc import Hashable

from models.load.fair_queue import RoundRobin


class Pacer:
    """Lets a few callers go on in each iteration of the event loop, so that others run in between.

    It is no `FairQueue`: what is shared out is renewed by time, and never given back.
    """

    def __init__(self, size: int) -> None:
        """`size`: callers that go on in one iteration."""
        self._size = size
        self._left = size
        """Callers that may go on in this iteration."""
        self._waiting: RoundRobin[Hashable, asyncio.Future[None]] = RoundRobin()
        """By origin."""
        self._is_counting = False
        """`_next_iteration` will be called."""

    async def wait(self, origin: Hashable = None) -> None:
        """Returns at once for the first callers of an iteration, in the next one for the next ones,
        and so on. `origin`: such as a project; callers of different origins go on round robin."""
        loop = asyncio.get_running_loop()
        if not self._is_counting:
            self._is_counting = True
            loop.call_soon(self._next_iteration)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return
        place = loop.create_future()
        self._waiting.add(origin, place)
        await place

    def _next_iteration(self) -> None:
        self._left = self._size
        while self._left > 0 and (place := self._waiting.take_next()) is not None:
            if not place.done():
                place.set_result(None)
                self._left -= 1
        self._is_counting = self._left < self._size
        if self._is_counting:
            asyncio.get_running_loop().call_soon(self._next_iteration)


LARGE = 8 * 1024 * 1024
"""Bytes of a value from which a step over all of it (decoding, encoding, copying) takes long."""
PAUSE = 0.05
"""Seconds between two such steps. The steps of one value follow each other, and each may take a
tenth of a second: without pauses all other requests would wait for the sum."""


async def pause_if_large(size: int) -> None:
    """Lets everything else go on between two steps over a value of so many bytes."""
    if size > LARGE:
        await asyncio.sleep(PAUSE)
