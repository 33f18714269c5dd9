"""One web process put together."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from uuid import UUID

import structlog
from fastapi import Request
from redis.asyncio import Redis

from models.config.settings import Settings
from models.db.database import AWAY, Pool, fetch, open_pool
from models.db.queries import statements
from models.ownership.lease import Lease
from models.redis.answer_cache import AnswerCache
from models.redis.channels import queue_for
from models.redis.client import live_client
from models.redis.queue import Bell
from web.chat_proxy import Passage
from web.conversations import Chronicle
from web.http.auth import Keys
from web.model_catalog import Catalogue
from web.responses.answer_cache import Caching
from web.responses.create import Intake
from web.responses.store import Archive
from web.stream.bus import Bus
from web.stream.reader import Relay

logger = structlog.get_logger()

_POOL = 16


@dataclass
class Front:
    """Everything a route needs. `open` connects, `close` gives back."""

    settings: Settings
    pool: Pool
    redis: Redis
    lease: Lease
    bell: Bell
    bus: Bus
    relay: Relay
    archive: Archive
    chronicle: Chronicle
    intake: Intake
    keys: Keys
    catalogue: Catalogue
    passage: Passage
    cache: AnswerCache
    stopping: bool = False
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """The same, for those who wait for it."""
    sockets: int = 0
    """WebSockets that are open."""
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    """The grace period is over: whoever still waits for a foreground response is told to try elsewhere."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    async def open(cls, settings: Settings) -> "Front":
        """Connects and takes up a lease. Raises `psycopg.OperationalError` when Postgres is away."""
        lease = Lease(settings, "web")
        pool = open_pool(settings, str(lease.id), _POOL)
        await pool.open(wait=True)
        await asyncio.to_thread(lease.register)
        redis = live_client(settings, f"web-control-{lease.id.hex}")
        bell = Bell(settings)
        bus = Bus(settings, pool, lease.id)
        relay = Relay(pool, bus)
        cache = AnswerCache(settings, f"web-cache-{lease.id.hex}")
        drained = asyncio.Event()
        front = cls(
            settings=settings, pool=pool, redis=redis, lease=lease, bell=bell, bus=bus, relay=relay,
            archive=Archive(pool, redis, relay, cache, settings.web.cancel_wait.total_seconds()),
            chronicle=Chronicle(settings, pool),
            intake=Intake(settings, pool, bell, lease, Caching(settings, pool, cache)), keys=Keys(pool), catalogue=Catalogue(settings), cache=cache,
            passage=Passage(settings, drained), drained=drained,
        )  # fmt: skip
        front._watch(asyncio.create_task(lease.tick(), name="tick"))
        front._watch(asyncio.create_task(bus.run(), name="bus"))
        front._watch(asyncio.create_task(bus.stand_in(), name="stand-in"))
        front._watch(asyncio.create_task(bus.watch_silence(), name="silence"))
        front.spawn(front._ring_at_start())
        return front

    def stop_soon(self) -> None:
        """SIGTERM has come: no longer ready; background streams end cleanly, foreground requests drain."""
        self.stopping = True
        self.stopped.set()
        self.relay.close()
        asyncio.get_running_loop().call_later(
            self.settings.web.grace.total_seconds(), self.drained.set
        )

    async def close(self) -> None:
        """Gives everything back; foreground requests that did not drain are cancelled by the sweep, which sees our lease end."""
        pending = set(self._tasks)
        while pending:
            for task in pending:
                task.cancel()
            # Again, if need be: a cancellation that meets another error on its way out is lost.
            _, pending = await asyncio.wait(pending, timeout=0.5)
        await asyncio.to_thread(self.bell.close)
        await asyncio.to_thread(self.lease.say_goodbye)
        await self.catalogue.close()
        await self.passage.close()
        await self.cache.close()
        await self.redis.aclose()
        await self.pool.close()

    def abandon(self, response_id: UUID) -> None:
        """A foreground client has left: its response is cancelled."""
        self.spawn(self._cancel(response_id))

    async def _cancel(self, response_id: UUID) -> None:
        while True:
            try:
                for row in await fetch(self.pool, statements.RESPONSE, {"id": response_id}):
                    await self.archive.request_cancel(row, "client_gone")
            except AWAY as error:
                logger.warning(
                    "cancel_unclear", response=str(response_id), error=str(error).strip()
                )
                await asyncio.sleep(0.5)
            else:
                return

    async def _ring_at_start(self) -> None:
        """Rows whose bell was rung by a process that died before it sounded."""
        try:
            values = {
                "interval": self.settings.lease.ring_interval,
                "lease": self.settings.lease.duration,
            }
            for row in await fetch(self.pool, statements.RING, values):
                self.bell.ring(
                    row["id"], queue_for(background=row["background"], deaths=row["deaths"])
                )
        except AWAY as error:
            logger.warning("start_ring_away", error=str(error).strip())  # the sweepers ring as well

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Work that outlives the request it comes from."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _watch(self, task: asyncio.Task[None]) -> None:
        """A side task that dies takes the process along: a front that cannot hear or beat must not serve."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("side_task_died", task=task.get_name(), exc_info=error)
            self.lease.die()


def front_of(request: Request) -> Front:
    """The process's Front."""
    front: Front = request.app.state.front
    return front
