"""One web process put together."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from uuid import UUID

import structlog
from fastapi import Request
from redis.asyncio import Redis

from models.config.settings import Settings
from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch, open_pool
from models.db.queries import statements
from models.ownership.lease import Lease
from models.redis.answer_cache import AnswerCache
from models.redis.channels import queue_for
from models.redis.client import redis_client
from models.redis.queue import JobQueue
from web.chat_proxy import ChatProxy
from web.conversations import ConversationStore
from web.http.auth import Keys
from web.model_catalog import ModelCatalog
from web.responses.answer_cache import RequestCache
from web.responses.create import CreateResponse
from web.responses.store import ResponseStore
from web.stream.bus import Bus
from web.stream.reader import EventReader

logger = structlog.get_logger()

_POOL_SIZE = 16


@dataclass
class AppState:
    """Everything a route needs. `open` connects, `close` gives back."""

    settings: Settings
    pool: Pool
    redis: Redis
    lease: Lease
    job_queue: JobQueue
    bus: Bus
    event_reader: EventReader
    response_store: ResponseStore
    conversation_store: ConversationStore
    create_response: CreateResponse
    keys: Keys
    model_catalog: ModelCatalog
    chat_proxy: ChatProxy
    cache: AnswerCache
    stopping: bool = False
    stop_event: asyncio.Event = field(default_factory=asyncio.Event)
    """The same, for those who wait for it."""
    open_sockets: int = 0
    """WebSockets that are open."""
    grace_expired: asyncio.Event = field(default_factory=asyncio.Event)
    """The grace period is over: whoever still waits for a foreground response is told to try elsewhere."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    async def open(cls, settings: Settings) -> "AppState":
        """Connects and takes up a lease. Raises `psycopg.OperationalError` when Postgres is away."""
        lease = Lease(settings, "web")
        pool = open_pool(settings, str(lease.id), _POOL_SIZE)
        await pool.open(wait=True)
        await asyncio.to_thread(lease.register)
        redis = redis_client(settings, f"web-control-{lease.id.hex}")
        job_queue = JobQueue(settings)
        bus = Bus(settings, pool, lease.id)
        event_reader = EventReader(pool, bus)
        cache = AnswerCache(settings, f"web-cache-{lease.id.hex}")
        grace_expired = asyncio.Event()
        state = cls(
            settings=settings,
            pool=pool,
            redis=redis,
            lease=lease,
            job_queue=job_queue,
            bus=bus,
            event_reader=event_reader,
            response_store=ResponseStore(
                pool, redis, event_reader, cache, settings.web.cancel_wait.total_seconds()
            ),
            conversation_store=ConversationStore(settings, pool),
            create_response=CreateResponse(
                settings, pool, job_queue, lease, RequestCache(settings, pool, cache)
            ),
            keys=Keys(pool),
            model_catalog=ModelCatalog(settings),
            cache=cache,
            chat_proxy=ChatProxy(settings, grace_expired),
            grace_expired=grace_expired,
        )
        state._exit_on_failure(asyncio.create_task(lease.tick(), name="tick"))
        state._exit_on_failure(asyncio.create_task(bus.run(), name="bus"))
        state._exit_on_failure(asyncio.create_task(bus.poll_journals(), name="stand-in"))
        state._exit_on_failure(asyncio.create_task(bus.poll_idle_readers(), name="silence"))
        state.spawn(state._enqueue_waiting())
        return state

    def begin_shutdown(self) -> None:
        """SIGTERM has come: no longer ready; background streams end cleanly, foreground requests drain."""
        self.stopping = True
        self.stop_event.set()
        self.event_reader.close()
        asyncio.get_running_loop().call_later(
            self.settings.web.grace.total_seconds(), self.grace_expired.set
        )

    async def close(self) -> None:
        """Gives everything back; foreground requests that did not drain are cancelled by the sweep, which sees our lease end."""
        pending = set(self._tasks)
        while pending:
            for task in pending:
                task.cancel()
            # Again, if need be: a cancellation that meets another error on its way out is lost.
            _, pending = await asyncio.wait(pending, timeout=0.5)
        await asyncio.to_thread(self.job_queue.close)
        await asyncio.to_thread(self.lease.deregister)
        await self.model_catalog.close()
        await self.chat_proxy.close()
        await self.cache.close()
        await self.redis.aclose()
        await self.pool.close()

    def cancel_abandoned(self, response_id: UUID) -> None:
        """A foreground client has left: its response is cancelled."""
        self.spawn(self._cancel(response_id))

    async def _cancel(self, response_id: UUID) -> None:
        while True:
            try:
                for row in await fetch(self.pool, statements.RESPONSE, {"id": response_id}):
                    await self.response_store.request_cancel(row, "client_gone")
            except DATABASE_UNAVAILABLE as error:
                logger.warning(
                    "cancel_unclear", response=str(response_id), error=str(error).strip()
                )
                await asyncio.sleep(0.5)
            else:
                return

    async def _enqueue_waiting(self) -> None:
        """Rows whose bell was rung by a process that died before it sounded."""
        try:
            values = {
                "interval": self.settings.lease.ring_interval,
                "lease": self.settings.lease.duration,
            }
            for row in await fetch(self.pool, statements.REENQUEUE, values):
                self.job_queue.enqueue(
                    row["id"], queue_for(background=row["background"], deaths=row["deaths"])
                )
        except DATABASE_UNAVAILABLE as error:
            logger.warning("start_ring_away", error=str(error).strip())  # the sweepers ring as well

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Work that outlives the request it comes from."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _exit_on_failure(self, task: asyncio.Task[None]) -> None:
        """A side task that dies takes the process along: a front that cannot hear or beat must not serve."""
        self._tasks.add(task)
        task.add_done_callback(self._on_side_task_done)

    def _on_side_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("side_task_died", task=task.get_name(), exc_info=error)
            self.lease.exit_process()


def app_state(request: Request) -> AppState:
    """The process's Front."""
    state: AppState = request.app.state.app_state
    return state
