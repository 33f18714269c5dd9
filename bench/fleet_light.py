"""Light processes of a simulated fleet: the statements of a process that does nothing, without its
Python. They look at their neighbours, and never take a seat of those who look at all
(models/ownership/lookout.py).
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

from models.config.settings import Settings
from models.db.database import execute, fetch, open_pool
from models.db.queries import leases, sweep
from models.ids import new_uuid
from models.ownership.lookout import Lookout


class LightProcess:
    """One worker."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._id = new_uuid()
        self._lookout = Lookout(leaves_seats=True)
        self._open = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Registers, and works until `stop`."""
        self._lookout.sightings()
        name = str(self._id)
        self._pool = await self._open.enter_async_context(open_pool(self._settings, name, 2))
        ties = await self._open.enter_async_context(open_pool(self._settings, name, 1))
        values = {"me": self._id, "kind": "worker", "host": "light", "pid": os.getpid()}
        values |= {"slots": 1, "version": "0", "lease": self._settings.lease.duration}
        await fetch(self._pool, leases.REGISTER, values)
        tie = await self._open.enter_async_context(ties.connection())
        await fetch(tie, leases.LOCK_TIE, {"me": self._id})
        await execute(tie, leases.MARK_TIED, {"me": self._id})
        lease = self._settings.lease
        for interval, work in ((lease.beat, self._renew), (lease.sweep, self._sweep)):
            self._tasks.append(asyncio.create_task(self._repeat(interval, work)))

    async def stop(self) -> None:
        """Ends it like a process that stops."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await execute(self._pool, leases.DEREGISTER, {"me": self._id})
        await self._open.aclose()

    async def _repeat(self, interval: timedelta, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval.total_seconds())
            await work()

    async def _renew(self) -> None:
        sent = time.monotonic()
        values = {"me": self._id, "lease": self._settings.lease.duration, **self._lookout.look()}
        values["takes_seat"] = False
        [renewed] = await fetch(self._pool, leases.RENEW, values)
        self._lookout.see(renewed, sent)

    async def _sweep(self) -> None:
        await fetch(self._pool, leases.OWNED_RESPONSES, {"me": self._id})
        await fetch(self._pool, sweep.IS_DUE, {})
