"""Stores new responses and enqueues them; whether one is stored is known even after a lost
connection to Postgres (I9).

Creates that arrive while one statement is on its way are stored together by the next one
(docs/architecture.md). Creates that were answered with 503 although they may have been stored are
voided.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import psycopg
import structlog

from models.celery.queue import JobQueue
from models.config.settings import Settings
from models.db.database import (
    DATABASE_UNAVAILABLE,
    NOT_EXECUTED,
    Connection,
    Pool,
    connect,
    execute,
    fetch,
    fetch_idempotent,
    large_connection,
    retry_while_unavailable,
)
from models.db.queries import create
from models.db.queries.chains import AWAIT_PREVIOUS, CONFIRM_WAITING, WAIT
from models.db.queries.create import NewRow
from models.db.queries.end import COMPLETE_PRECOMPUTED
from models.db.queries.read import RESPONSE
from models.db.queries.steers import COMMIT_PENDING, RETURN_VOIDED
from models.db.statement import Query
from models.ended_line import EndedLine
from models.errors import Unavailable
from models.ids import response_id
from models.lifecycle import ONE_OPEN_PER_CONVERSATION, Status
from models.ownership.creates import UnclearCreate, void_values
from models.ownership.grouping import GroupedRequests
from models.ownership.lease import Lease
from models.redis.channels import BACKGROUND, queue_for
from web.counters import RESPONSES_ENDED, count_accepted
from web.responses.continuation import conversation_locked
from web.responses.opening import PrecomputedResponse
from web.stream.inboxes import Channel
from web.stream.reader import KnownEvents

logger = structlog.get_logger()

_MAX_GROUP = 64
"""Creates in one statement: as many as are admitted at a time (web/admission.py)."""
_MAX_GROUP_BYTES = 256 * 1024
"""Bytes in one statement. A larger create has a statement of its own, and delays no other."""
_LEASE_WAIT = 2.0
"""Seconds. When Postgres is back after a long outage, the pool can have a connection before the
heartbeat has renewed the lease: it tries each second, or more often."""
_STATEMENTS = {
    (False, False): create.INSERT_WITH_OPTIONS,
    (False, True): create.INSERT_WITH_KEY,
    (True, False): create.INSERT_IN_CONVERSATION,
    (True, True): create.INSERT_IN_CONVERSATION_WITH_KEY,
}
"""(it is in a conversation, its client sent a key) -> statement"""
_MAX_VOIDED = 1000
"""Creates that one statement voids."""
_VOIDING_WAIT = 1.0
"""Seconds that the client of an unclear create waits for its voiding before it gets its 503."""


class _OutcomeUnknown(Exception):
    """Responses may have been stored."""


@dataclass(slots=True, eq=False)
class NewResponse:
    """A response that is to be stored."""

    row: NewRow
    has_client_key: bool
    """another request may hold its key (`Idempotency-Key`)"""
    is_streamed: bool
    channel: Channel | None
    """prepared for the reader of its events, if a worker has to run it for a stream"""
    precomputed: PrecomputedResponse | None
    """None: a worker has to run it"""
    pause: Callable[[], Awaitable[None]]
    """To be awaited between two steps over all of a large row."""
    steers: tuple[UUID, ...] = ()
    """the pending steers with which its input begins"""
    known_events: KnownEvents | None = None
    """Its opening events for the reader of `channel`, once it is stored."""
    retry_of: UUID | None = None
    """The response that it runs again."""
    waits: bool = False
    """It begins when its previous response has ended (ADR 0073)."""

    @property
    def needs_transaction(self) -> bool:
        """Its INSERT is not all."""
        return (
            self.precomputed is not None
            or self.waits
            or self.retry_of is not None
            or bool(self.steers)
        )

    @property
    def may_share_statement(self) -> bool:
        """Nothing that another request does can refuse it, and it is small."""
        return (
            self.row.conversation is None
            and not self.has_client_key
            and not self.needs_transaction
            and self.row.size <= _MAX_GROUP_BYTES
        )


class UnclearCreates:
    """The creates of one web process that were answered with 503 although they may have been
    stored: they are voided.

    That has a connection of its own, and a task beside the heartbeat: a slow voiding delays no
    renewal of the lease. Until a create is voided, the lease says so, and no sweep claims it
    (models/ownership/creates.py).
    """

    def __init__(self, settings: Settings, lease: Lease) -> None:
        self._settings = settings
        self._lease = lease
        self._batch_size = _MAX_VOIDED
        self._added = asyncio.Event()
        self._waiting: dict[UUID, asyncio.Event] = {}

    async def void(self, unclear: UnclearCreate) -> None:
        """Has a create voided; waits at most a second for it. If Postgres is unavailable for
        longer, it is voided later."""
        self._lease.creates.add_unclear(unclear)
        voided = self._waiting[unclear.response_id] = asyncio.Event()
        self._added.set()
        try:
            async with asyncio.timeout(_VOIDING_WAIT):
                await voided.wait()
        except TimeoutError:
            logger.warning(
                "unclear_create_not_voided_yet", response=response_id(unclear.response_id)
            )
        finally:
            del self._waiting[unclear.response_id]

    async def run(self) -> None:
        """Voids creates as they become unclear. Never returns."""
        while True:
            await self._added.wait()
            await retry_while_unavailable(self._void_all, "delete_unclear_create_failed")

    async def _void_all(self) -> None:
        async with await connect(self._settings, str(self._lease.id)) as connection:
            while unclear := self._lease.creates.unclear(self._batch_size):
                try:
                    await self._void(connection, unclear)
                except psycopg.errors.QueryCanceled:
                    # Slow inserts: fewer of them fit into the time limit of one statement.
                    self._batch_size = max(1, len(unclear) // 2)
                    raise
            self._added.clear()
        self._batch_size = _MAX_VOIDED

    async def _void(self, connection: Connection, unclear: list[UnclearCreate]) -> None:
        values = void_values(unclear, self._lease.id)
        await execute(connection, create.VOID_UNCLEAR_CREATES, values)
        await execute(connection, create.DELETE_VOIDED_SECRETS, values)
        await execute(connection, RETURN_VOIDED, values)
        voided_ids = [one.response_id for one in unclear]
        self._lease.creates.remove_unclear(voided_ids)
        for voided_id in voided_ids:
            if voided_id in self._waiting:
                self._waiting[voided_id].set()
        logger.info("unclear_creates_voided", responses=len(unclear))


class InsertResponse:
    """Stores new responses."""

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        lease: Lease,
        unclear_creates: UnclearCreates,
        job_queue: JobQueue,
    ) -> None:
        self._retention: timedelta = settings.retention
        self._queue_wait: timedelta = settings.limits.queue_wait
        self._lead: timedelta = settings.line.continuation_lead
        self._pool = pool
        self._lease = lease
        self._unclear_creates = unclear_creates
        self._job_queue = job_queue
        self._groups = GroupedRequests(
            self._insert_group,
            lambda new: new.row.size,
            max_requests=_MAX_GROUP,
            max_bytes=_MAX_GROUP_BYTES,
            gap=0,
        )

    async def insert(self, new: NewResponse) -> UUID | None:
        """Stores the response and returns its id.

        Returns None if another request holds its idempotency key or has taken its steers, if the
        conversation was changed after the request was checked against it, or if the response for
        which it is to wait has ended. If the connection is lost, the same row is inserted once
        more: it is stored then, or it was stored before. If that fails too, the create is voided
        and Unavailable is raised.
        """
        if not new.row.background:
            await self._wait_for_lease()
        number = self._lease.creates.begin()
        try:
            return await self._insert_or_void(new, number)
        finally:
            self._lease.creates.end(number)

    async def _wait_for_lease(self) -> None:
        """Waits until this process's lease is valid: a sweep would cancel the response of a process
        that looks dead. Raises Unavailable if the lease is not renewed within two seconds."""
        try:
            async with asyncio.timeout(_LEASE_WAIT):
                await self._lease.wait_until_valid()
        except TimeoutError:
            logger.warning("create_without_lease", lease_age=round(self._lease.age, 1))
            raise Unavailable from None

    async def _insert_or_void(self, new: NewResponse, number: int) -> UUID | None:
        row = new.row
        try:
            return row.id if await self._insert(new) else None
        except NOT_EXECUTED as error:
            logger.warning("create_refused", response=response_id(row.id), error=str(error).strip())
            raise Unavailable from error
        except _OutcomeUnknown as error:
            await self._unclear_creates.void(UnclearCreate(row.id, row.project, number))
            raise Unavailable from error

    async def _insert(self, new: NewResponse) -> bool:
        """Whether the response is stored, with others or alone."""
        if not new.may_share_statement:
            return await self._insert_alone(new)
        try:
            return await self._groups.submit(new)
        except DATABASE_UNAVAILABLE:
            raise
        except psycopg.Error:
            # Postgres refused the statement, and stored none of its responses. Only one of them
            # may be the cause.
            return await self._insert_alone(new)

    async def _insert_group(self, group: list[NewResponse]) -> list[bool]:
        """Stores all of these responses, or raises and stores none."""
        rows = [new.row for new in group]
        has_options = any(row.has_options for row in rows)
        statement = create.INSERT_WITH_OPTIONS if has_options else create.INSERT
        values = self._values(rows, with_options=has_options)

        async def insert(pool_timeout: float | None) -> bool:
            return bool(await fetch(self._pool, statement, values, pool_timeout))

        is_stored = await self._repeat_if_lost(insert, rows)
        if is_stored:
            for new in group:
                self._on_stored(new)
        return [is_stored] * len(rows)

    async def _insert_alone(self, new: NewResponse) -> bool:
        """Stores the response with a statement of its own. False: another request refuses it."""
        in_conversation = new.row.conversation is not None
        statement = _STATEMENTS[in_conversation, new.has_client_key]

        async def insert(pool_timeout: float | None) -> bool:
            try:
                return bool(await self._execute(statement, new, pool_timeout))
            except psycopg.errors.UniqueViolation as error:
                if error.diag.constraint_name == ONE_OPEN_PER_CONVERSATION:
                    raise conversation_locked() from None
                raise

        is_stored = await self._repeat_if_lost(insert, [new.row])
        if is_stored and new.waits:
            await self._on_stored_to_wait(new)
        elif is_stored:
            self._on_stored(new)
        return is_stored

    async def _on_stored_to_wait(self, new: NewResponse) -> None:
        """It is certain that a response is stored which waits for another one. It is enqueued only
        if that one has ended meanwhile. If Postgres is unavailable, a sweep finds it once the lease
        of this process says that its create has a known outcome."""
        self._note_events(new)
        count_accepted(background=True)
        with suppress(*DATABASE_UNAVAILABLE):
            ready = await fetch_idempotent(self._pool, CONFIRM_WAITING, {"id": new.row.id})
            if ready and ready[0]:
                self._job_queue.enqueue(new.row.id, BACKGROUND)

    def _note_events(self, new: NewResponse) -> None:
        """Before the enqueue, which lets a worker publish."""
        if new.channel is not None:
            row, channel = new.row, new.channel
            new.known_events = KnownEvents(row.frames, row.last, channel.is_subscribed)

    def _on_stored(self, new: NewResponse) -> None:
        """It is certain that the response is stored. Called before any task runs that waits for
        another response of the same statement: a worker can begin while its request is
        continued."""
        row = new.row
        self._note_events(new)
        if row.background and not new.is_streamed:
            # Its client waits only for the answer: that is written before Redis is.
            asyncio.get_running_loop().call_soon(self._start, row, new.precomputed)
        else:
            self._start(row, new.precomputed)

    def _start(self, row: NewRow, precomputed: PrecomputedResponse | None) -> None:
        """Enqueues a response that was stored, if a worker has to run it."""
        count_accepted(background=row.background)
        if precomputed is None:
            self._job_queue.enqueue(row.id, queue_for(background=row.background, crashes=0))
            return
        RESPONSES_ENDED.labels(Status.COMPLETED.value).inc()
        EndedLine(
            response=row.id,
            request=row.request_id,
            status=Status.COMPLETED,
            model=row.model,
            background=row.background,
            seconds=0.0,
            usage=precomputed.response["usage"],
            output=precomputed.response["output"],
        ).write()

    async def _repeat_if_lost(
        self, insert: Callable[[float | None], Awaitable[bool]], rows: list[NewRow]
    ) -> bool:
        """Whether `insert` has stored these rows. If the connection is lost, it is called once
        more: it stores them then, or finds that they were stored before. `insert` takes the seconds
        to wait for a free connection. Raises _OutcomeUnknown if the second call fails too."""
        try:
            return await insert(None)
        except NOT_EXECUTED:
            raise
        except DATABASE_UNAVAILABLE as error:
            ids = [response_id(row.id) for row in rows]
            logger.warning("create_outcome_unknown", responses=ids, error=str(error).strip())
        try:
            await self._pool.check()
            return await insert(1.0) or await self._is_stored(rows[0].id)
        except psycopg.errors.UniqueViolation:
            return True
        except DATABASE_UNAVAILABLE as error:
            raise _OutcomeUnknown from error

    async def _is_stored(self, new_id: UUID) -> bool:
        """Whether a first try stored the response: then a second try inserts nothing."""
        return bool(await fetch(self._pool, RESPONSE, {"id": new_id}))

    async def _execute(
        self, statement: Query[UUID], new: NewResponse, pool_timeout: float | None
    ) -> list[UUID]:
        await new.pause()
        values = self._values([new.row])
        await new.pause()
        if not new.needs_transaction:
            return await fetch(self._pool, statement, values, pool_timeout, size=new.row.size)
        stored: list[UUID] = []
        async with (
            large_connection(self._pool, new.row.size, pool_timeout) as connection,
            connection.transaction() as transaction,
        ):
            previous = {"id": new.row.previous, "project": new.row.project}
            if new.waits and not await fetch(connection, AWAIT_PREVIOUS, previous):
                return []
            stored = await fetch(connection, statement, values)
            if stored and not await _commit_steers(connection, new):
                stored = []
                raise psycopg.Rollback(transaction)
            if stored and new.precomputed is not None:
                await execute(connection, COMPLETE_PRECOMPUTED, new.precomputed.values)
            if stored and new.waits:
                await execute(connection, WAIT, {"id": new.row.id})
            if stored and new.retry_of is not None:
                values = {"id": new.retry_of, "new": new.row.id}
                await execute(connection, create.NOTE_RETRY, values)
        return stored

    def _values(self, rows: list[NewRow], *, with_options: bool = True) -> dict[str, object]:
        lead = self._lead if with_options else None
        return create.insert_values(rows, self._lease.id, self._retention, self._queue_wait, lead)


async def _commit_steers(connection: Connection, new: NewResponse) -> bool:
    """Marks the steers of a response that is being stored. False: another create has some."""
    if not new.steers:
        return True
    values = {"id": new.row.previous, "successor": new.row.id, "steers": list(new.steers)}
    return len(await fetch(connection, COMMIT_PENDING, values)) == len(new.steers)
