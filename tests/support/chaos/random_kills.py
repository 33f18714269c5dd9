"""Kills processes of a deployment at random, and starts as many again; restarts its PostgreSQL."""

import asyncio
import random
from collections import Counter

from cli.embedded.postgres import Postgres
from cli.errors import CommandFailed
from tests.support.api import until
from tests.support.stack import Service, Stack


class RandomKills:
    """The faults of a run. The same numbers choose the same victims."""

    def __init__(self, running: Stack, postgres: Postgres, numbers: random.Random) -> None:
        self._running = running
        self._postgres = postgres
        self._random = numbers
        self.faults: Counter[str] = Counter()
        """How often what was killed or stopped."""

    async def kill(self) -> None:
        """Kills a web process or a worker, or sometimes all, and waits until others serve."""
        workers = [one for one in self._running.workers if "quarantine" not in one.name]
        all_ = [*self._running.webs, *workers]
        victims = all_ if self._random.random() < 0.1 else [self._random.choice(all_)]
        self.faults["all processes" if len(victims) > 1 else victims[0].name.partition("-")[0]] += 1
        for victim in victims:
            self._running.kill(victim)
        await asyncio.gather(*map(self._start_again, victims))

    async def _start_again(self, victim: Service) -> None:
        if victim.port is not None:
            await self._running.start_web(victim.port)
        else:
            await self._running.start_worker()

    async def restart_postgres(self, *, crash: bool) -> None:
        """Ends PostgreSQL, with `kill -9` if it is to `crash`, and starts it again."""
        self.faults["PostgreSQL killed" if crash else "PostgreSQL stopped"] += 1
        await asyncio.to_thread(self._postgres.kill if crash else self._postgres.stop)
        await until(self._start_postgres, 60, every=0.5)

    async def _start_postgres(self) -> bool:
        """False while a session of the killed server still runs its statement: it has the shared
        memory."""
        try:
            await asyncio.to_thread(self._postgres.start)
        except CommandFailed as error:
            if "shared memory block" not in str(error):
                raise
            return False
        return True
