"""The objects of one web process, opened at its start and closed at its end."""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import ClassVar, Self

import structlog
from fastapi import FastAPI
from starlette.requests import HTTPConnection

from models.celery.queue import JobQueue
from models.config.routes import Routes
from models.config.settings import Settings
from models.db.database import (
    DATABASE_UNAVAILABLE,
    Pool,
    open_pool,
    retry_while_unavailable,
)
from models.db.queries.api_keys import ApiKey
from models.due_work import DuePoll
from models.egress import EgressPolicy
from models.files.opening import open_storage
from models.files.response_images import ResponseImages
from models.freed_memory import MemoryTrimmer
from models.ids import response_id
from models.ownership.lease import Lease
from models.ownership.watch import Watch, enqueue_waiting
from models.projects.routes import ProjectRoutes
from models.redis.answer_cache import AnswerCache
from models.redis.client import REDIS_ERRORS, memory_problem, redis_client
from models.secrets import Sealer
from models.tasks import SideTasks, cancel_all
from models.wire.json_input import BodyLimits
from web import counters
from web.admission import (
    Budgets,
    CreateAdmission,
    bind_admission,
    limits_of_project,
    reserve_until_end,
)
from web.hooks import Hooks, Quotas
from web.http import auth
from web.http.body import bind_bodies
from web.http.open_requests import OpenRequests
from web.idempotency.creates import Answers, CreateAnswer, Creates
from web.idempotency.keys import JoinResponse, sdk_key
from web.responses.answer_cache import RequestCache
from web.responses.create import AcceptedResponse, CreateResponse
from web.responses.insert import InsertResponse, UnclearCreates
from web.responses.prepare import PrepareRequest
from web.responses.store import ResponseStore
from web.responses.validation import RequestValidation
from web.stream.bus import Bus
from web.stream.polls import LogPolls
from web.stream.reader import EventReader

logger = structlog.get_logger()


class AppState:
    """Everything a route needs. `open` connects, `close` disconnects."""

    def __init__(self, settings: Settings, host: str, lease: Lease, pool: Pool) -> None:
        """`host`: the address on which the process listens. Connects to Redis when it is used
        first."""
        self.settings, self.host, self.lease, self.pool = settings, host, lease, pool
        self.redis = redis_client(settings, f"web-control-{lease.id.hex}")
        self.job_queue = JobQueue(settings, counters.ENQUEUES_DROPPED)
        self.routes = ProjectRoutes(settings)
        self.sealer = Sealer(settings.sealing_keys)
        self.egress = EgressPolicy(settings.egress)
        """The rules of this deployment; projects may have others."""
        self.storage = open_storage(settings)
        """None: this server stores no files"""
        self.due_poll = DuePoll(pool, "web")
        """Finds what features have to do at a time."""
        self.hooks = Hooks()
        self.keys = auth.Keys(pool, settings.web.guesses, settings.cell)
        self.open_requests = OpenRequests(pool)
        self.budgets = Budgets(settings.web)
        self.admission = CreateAdmission(settings.limits, self.budgets.streams, self.hooks)
        self.bus = Bus(settings, lease.id)
        self.images = ResponseImages(pool, self.storage)
        self.event_reader = EventReader(pool, self.bus, self.images)
        self.cache = AnswerCache(settings, f"web-cache-{lease.id.hex}")
        self.validation = RequestValidation(
            settings,
            self.routes,
            self.egress,
            self.sealer,
            pool,
            has_storage=self.storage is not None,
        )
        self.unclear_creates = UnclearCreates(settings, lease)
        self.answers = Answers(pool)
        self.creates = Creates(pool, lease, self.answers)
        self.response_store = _response_store(self)
        self.create_response = _create_response(self)
        self.grace_expired = asyncio.Event()
        """Set when the grace period of a stop is over: foreground requests still waiting get
        503."""
        self.stop_event = asyncio.Event()
        """Set when the process begins to stop."""
        self.side_tasks = SideTasks(lease.exit_process)
        self.features: dict[type[Feature], Feature] = {}
        """What each feature has opened, by its class."""
        self._tasks: set[asyncio.Task[None]] = set()

    def open_features(self, kinds: Iterable[type["Feature"]]) -> None:
        """Opens the features and starts their tasks. Each may use those before it."""
        for kind in kinds:
            feature = self.features[kind] = kind(self)
            feature.start()

    @property
    def quotas(self) -> Quotas:
        """The quotas of projects."""
        return self.hooks.quotas

    @property
    def body_limits(self) -> BodyLimits:
        """How large a request body may be."""
        return self.admission.body_limits

    def body_limits_of(self, key: ApiKey) -> BodyLimits:
        """How large the body of a request with this key may be."""
        return limits_of_project(self.body_limits, key.policy.limits)

    def routes_of(self, key: ApiKey) -> Routes:
        """The upstreams that serve requests with this key."""
        return self.routes.of(key.project_id, key.policy.routes)

    def count_stream(self, connection: HTTPConnection) -> None:
        """Counts this request among the streams and waiting requests until it ends. Raises
        ShareUsedUp or Unavailable."""
        reserve_until_end(connection, self.budgets.streams)

    def count_transfer(self, connection: HTTPConnection) -> None:
        """Counts this request among the files that are received or sent until it ends. Raises
        ShareUsedUp or Unavailable."""
        reserve_until_end(connection, self.budgets.uploads)

    @property
    def stopping(self) -> bool:
        """The process has begun to stop."""
        return self.stop_event.is_set()

    @classmethod
    async def open(cls, settings: Settings, host: str) -> "AppState":
        """Connects and registers a lease.

        Raises `psycopg.OperationalError` if Postgres is unavailable.
        """
        lease = Lease(settings, "web")
        pool = open_pool(settings, str(lease.id), settings.web.pool_size)
        try:
            await pool.open(wait=True)
            await asyncio.to_thread(lease.register)
        except BaseException:
            # A pool that still connects while uvloop is closed can abort the process.
            await pool.close()
            raise
        state = cls(settings, host, lease, pool)
        lease.access_revision.watch(state.keys.forget)
        lease.access_revision.watch(state.open_requests.check)
        state.side_tasks.start(state.open_requests.run(), "open-requests")
        state.side_tasks.start(lease.tick(), "tick")
        state.side_tasks.start(state.job_queue.run(), "job-queue")
        state.side_tasks.start(state.unclear_creates.run(), "unclear-creates")
        state.side_tasks.start(state.answers.run(), "answers")
        state.side_tasks.start(state.keys.refused.run(), "refused-requests")
        state.side_tasks.start(MemoryTrimmer(pool, state.budgets.bodies).run(), "freed-memory")
        state.side_tasks.start(state.bus.run(), "bus")
        state.side_tasks.start(state.due_poll.run(), "due-work")
        watch = Watch(settings, lease, state.redis, counters.DEATHS)
        state.side_tasks.start(watch.run(), "watch")
        polls = LogPolls(settings, pool, state.bus)
        state.side_tasks.start(polls.read_journals(), "poll-journals")
        state.side_tasks.start(polls.watch_idle_readers(), "poll-idle-readers")
        state.spawn(state.enqueue_at_start())
        state.spawn(state.check_redis())
        return state

    def begin_shutdown(self) -> None:
        """Starts the stop: not ready any more; background streams end at once, foreground requests
        may finish in the grace period."""
        self.stop_event.set()
        self.event_reader.close()
        asyncio.get_running_loop().call_later(
            self.settings.web.grace.total_seconds(), self._end_grace
        )

    def _end_grace(self) -> None:
        self.grace_expired.set()
        self.event_reader.abort()

    async def close(self) -> None:
        """Ends all tasks, deregisters the lease and closes all connections.

        Foreground requests that did not finish are cancelled by the sweep, which sees that the
        lease has ended.
        """
        await cancel_all(self._tasks)
        await self.side_tasks.cancel()
        with suppress(*DATABASE_UNAVAILABLE):
            await self.answers.store(is_end=True)
        with suppress(*DATABASE_UNAVAILABLE):
            await self.keys.refused.store()
        await self.job_queue.close()
        await asyncio.to_thread(self.lease.deregister)
        for feature in reversed(self.features.values()):
            await feature.close()
        if self.storage is not None:
            await self.storage.close()
        await self.cache.close()
        await self.redis.aclose()
        await self.pool.close()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Runs `work` as a task that may last longer than the request it comes from."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def record_answer(self, accepted: AcceptedResponse, request: HTTPConnection | None) -> None:
        """The client gets its answer, or the first bytes of it: no retry may take the response
        over, unless the connection of `request` ends at once and loses the answer."""
        if not accepted.is_from_sdk:
            return
        answer = CreateAnswer(accepted.project, sdk_key(accepted.id), accepted.waiter)
        if request is not None:
            self.answers.watch(answer, request)
        self.answers.add(answer)

    def cancel_abandoned(self, accepted: AcceptedResponse) -> None:
        """Cancels a foreground response whose client has disconnected, unless another connection
        has joined it."""
        self.spawn(self._cancel(accepted))

    async def _cancel(self, accepted: AcceptedResponse) -> None:
        async def cancel() -> None:
            await self.response_store.cancel_abandoned(accepted.id, accepted.waiter)

        await retry_while_unavailable(cancel, "cancel_retry", response=response_id(accepted.id))

    async def check_redis(self) -> None:
        """Logs what is wrong with the limit of Redis's memory."""
        with suppress(*REDIS_ERRORS):
            if (problem := await memory_problem(self.redis)) is not None:
                logger.warning("redis_memory", problem=problem)

    async def enqueue_at_start(self) -> None:
        """Enqueues open responses whose Celery message was lost, as when its sender crashed."""
        try:
            await enqueue_waiting(self.pool, self.job_queue, self.settings)
        except DATABASE_UNAVAILABLE as error:
            # The sweep of every worker does the same later.
            logger.warning("enqueue_at_start_failed", error=str(error).strip())


class Feature:
    """What a feature has open in a web process: the `FEATURE` of its `web.py`
    (models/features.py)."""

    socket_protocol: ClassVar[type[asyncio.Protocol] | None] = None
    """uvicorn's protocol for WebSockets; None: the feature serves none"""

    def __init__(self, state: AppState) -> None:
        """`state` is complete, but for features that come later in the list."""
        self.state = state

    @classmethod
    def of(cls, connection: HTTPConnection) -> Self:
        """That of the process that serves this request or WebSocket."""
        return cls.in_state(app_state(connection))

    @classmethod
    def in_state(cls, state: AppState) -> Self:
        """That of a process. Raises KeyError if it is not there."""
        feature = state.features[cls]
        assert isinstance(feature, cls)
        return feature

    def start(self) -> None:
        """Starts its tasks."""

    async def refresh_gauges(self) -> None:
        """Reads what its gauges show, before each answer of `/metrics`."""

    async def readiness(self) -> dict[str, str | None]:
        """What `/readyz` reports of it."""
        return {}

    async def close(self) -> None:
        """Closes its connections. Its tasks have ended before."""


def _create_response(state: AppState) -> CreateResponse:
    settings, pool, lease = state.settings, state.pool, state.lease
    prepare = PrepareRequest(
        settings,
        pool,
        state.validation,
        RequestCache(settings.cache, pool, state.cache, state.routes, state.sealer),
        lease.clock,
        state.hooks.checks,
    )
    return CreateResponse(
        prepare,
        JoinResponse(pool, lease),
        InsertResponse(settings, pool, lease, state.unclear_creates, state.job_queue),
        state.sealer,
        state.bus,
        state.hooks,
        settings.line.window_margin,
    )


def _response_store(state: AppState) -> ResponseStore:
    return ResponseStore(
        state.pool,
        state.redis,
        state.event_reader,
        state.cache,
        state.settings.web.cancel_wait.total_seconds(),
        state.lease.clock,
        state.hooks,
    )


def bind_state(app: FastAPI, state: AppState) -> None:
    """Makes `state` the one that `app_state` returns for requests of this application."""
    app.state.app_state = state
    auth.bind_keys(app, state.keys, state.open_requests, state.quotas.headers)
    pause = state.settings.web.body_pause.total_seconds()
    bind_admission(app, state.admission)
    bind_bodies(app, state.budgets.bodies, pause)


def app_state(connection: HTTPConnection) -> AppState:
    """The state of the process that serves this request or WebSocket."""
    state: AppState = connection.app.state.app_state
    return state


def started_state(app: FastAPI) -> AppState | None:
    """The state of a running application; None before its start is complete."""
    state: AppState | None = getattr(app.state, "app_state", None)
    return state
