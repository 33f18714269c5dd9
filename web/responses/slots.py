"""How many creates one web process works on at a time, and in one turn of its event loop.

All creates of a burst become ready in the same turn. Checked one after another, eight hundred would
delay each running stream by a quarter of a second, and neither Postgres nor the workers would have
anything to do meanwhile (docs/architecture.md).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID

import structlog

from models.errors import Unavailable
from models.load.fair_queue import FairQueue
from models.load.pacing import Pacer

logger = structlog.get_logger()

MAX_CREATES = 64
"""Creates that are checked and stored at a time, two thirds of them of one project. With fewer, a
Postgres whose commits take long would limit the rate."""
MAX_IN_A_TURN = 4
"""Creates that are checked in one turn of the event loop: a millisecond or two."""
_MAX_WAIT = 5.0
"""Seconds: as long as a statement waits for a connection of the pool."""


class CreateSlots:
    """Projects take turns; the creates of a project get their slots in the order of arrival."""

    def __init__(self) -> None:
        self._slots = FairQueue(MAX_CREATES)
        self._pacer = Pacer(MAX_IN_A_TURN)

    @asynccontextmanager
    async def take(self, project: UUID) -> AsyncIterator[None]:
        """A slot, from the beginning of the context to its end, and at the beginning a turn of the
        event loop. Raises Unavailable if there is no slot within five seconds."""
        async with AsyncExitStack() as slot:
            try:
                async with asyncio.timeout(_MAX_WAIT):
                    await slot.enter_async_context(self._slots.permit(project))
            except TimeoutError:
                logger.warning("create_waited_too_long", seconds=_MAX_WAIT)
                raise Unavailable from None
            await self._pacer.wait(project)
            yield
