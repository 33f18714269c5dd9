"""How many creates one web process works on at a time, and in one turn of its event loop.

All creates of a burst become ready in the same turn. Checked one after another, eight hundred would
delay each running stream by a quarter of a second, and neither Postgres nor the workers would have
anything to do meanwhile (docs/adr/0036-a-web-process-works-on-few-creates-at-a-time.md).
"""

import asyncio

import structlog

from models.errors import Unavailable
from models.turns import Turns

logger = structlog.get_logger()

MAX_CREATES = 64
"""Creates that are checked and stored at a time. With fewer, a Postgres whose commits take long
would limit the rate."""
MAX_IN_A_TURN = 4
"""Creates that are checked in one turn of the event loop: a millisecond or two."""
_MAX_WAIT = 5.0
"""Seconds: as long as a statement waits for a connection of the pool."""


class CreateSlots:
    """As an async context manager it holds one slot. Creates get theirs in the order of arrival."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_CREATES)
        self._turns = Turns(MAX_IN_A_TURN)

    async def __aenter__(self) -> None:
        """Waits for a slot, and for a turn of the event loop. Raises Unavailable if there is no
        slot within five seconds."""
        if not self._free.locked():
            await self._free.acquire()
        else:
            try:
                async with asyncio.timeout(_MAX_WAIT):
                    await self._free.acquire()
            except TimeoutError:
                logger.warning("create_waited_too_long", seconds=_MAX_WAIT)
                raise Unavailable from None
        try:
            await self._turns.wait()
        except BaseException:
            self._free.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._free.release()
