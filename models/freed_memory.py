"""Gives back the memory that large requests have needed.

libpq keeps a buffer of the size of the largest message of each connection, and the C library keeps
most of what was freed: four bodies of 60 MiB, one after the other, left 900 MiB in a web process.
What a process may read at a time is bounded elsewhere (`web.bodies`, ADR 0039).
"""

import asyncio

from models.db.database import Pool
from models.garbage import collect_new_objects
from models.load.budget import SharedBudget
from models.process import release_free_memory, resident_bytes

_INTERVAL = 0.25
"""Seconds between two looks at the memory."""
_GROWTH = 128 * 1024 * 1024
"""Bytes: memory is given back after so much growth."""
_SETTLING = 1.0
"""Seconds after which connections that were replaced are closed."""


class MemoryTrimmer:
    """Returns freed memory of one web process to the system."""

    def __init__(self, pool: Pool, bodies: SharedBudget) -> None:
        """`bodies`: see `Budgets`."""
        self._pool = pool
        self._bodies = bodies

    async def run(self) -> None:
        """Looks several times a second. Returns at once where the system does not show the
        memory."""
        least = resident_bytes()
        while least is not None:
            await asyncio.sleep(_INTERVAL)
            if not self._bodies.in_work:
                collect_new_objects()
            resident = resident_bytes() or least
            least = min(least, resident)
            if resident >= least + _GROWTH:
                await self._give_back()
                # What is left is needed, by streams for example. It shrinks again when they end.
                least = max(least, (resident_bytes() or least) - _GROWTH // 2)

    async def _give_back(self) -> None:
        """Closes the connections that are free, and the others when they are; then returns what was
        freed to the system, in a thread: that takes tens of milliseconds."""
        await self._pool.drain()
        await asyncio.sleep(_SETTLING)
        await asyncio.to_thread(release_free_memory)
