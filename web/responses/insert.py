"""Stores new responses; the outcome is known even after a lost connection to Postgres (I9)."""

from dataclasses import dataclass
from uuid import UUID

import psycopg
import structlog

from models.db.database import (
    DATABASE_UNAVAILABLE,
    NOT_EXECUTED,
    Pool,
    execute,
    fetch,
)
from models.db.queries import create
from models.db.queries.end import COMPLETE_PRECOMPUTED
from models.db.queries.read import RESPONSE
from models.db.statement import Query
from models.db.tables import ONE_OPEN_PER_CONVERSATION
from models.errors import Unavailable
from models.ownership.creates import UnclearCreate
from models.ownership.lease import Lease
from web.responses.continuation import conversation_locked
from web.responses.idempotency import IdempotencyKey
from web.responses.precomputed import PrecomputedResponse
from web.responses.unclear_creates import UnclearCreates

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class NewResponse:
    """A response before it is stored."""

    id: UUID
    project: UUID
    values: dict[str, object]
    """of the statement that inserts it"""
    idempotency_key: IdempotencyKey | None
    precomputed: PrecomputedResponse | None
    """None: a worker has to run it"""
    waiter: UUID
    """the connection that waits for the answer"""


class InsertResponse:
    """Stores new responses."""

    def __init__(self, pool: Pool, lease: Lease, unclear_creates: UnclearCreates) -> None:
        self._pool = pool
        self._lease = lease
        self._unclear_creates = unclear_creates

    async def insert(self, new: NewResponse) -> UUID | None:
        """Stores the response and returns its id.

        Returns None if another request holds its idempotency key, or if the conversation was
        changed after the request was checked against it. If
        the connection is lost, the same row is inserted once more: it is stored then, or it was
        stored before. If that fails too, the create is voided and Unavailable is raised.
        """
        if new.values["background"] is False and not self._lease.is_valid:
            # A sweep would cancel it: its web process looks dead.
            raise Unavailable
        number = self._lease.creates.begin()
        try:
            return await self._insert_or_void(new, number)
        finally:
            self._lease.creates.end(number)

    async def _insert_or_void(self, new: NewResponse, number: int) -> UUID | None:
        try:
            return await self._insert(new)
        except NOT_EXECUTED as error:
            logger.warning("create_refused", response=str(new.id), error=str(error).strip())
            raise Unavailable from error
        except DATABASE_UNAVAILABLE as error:
            logger.warning("create_outcome_unknown", response=str(new.id), error=str(error).strip())
        try:
            await self._pool.check()
            return await self._insert(new, pool_timeout=1.0) or await self._find_inserted(new.id)
        except psycopg.errors.UniqueViolation:
            return new.id
        except DATABASE_UNAVAILABLE as error:
            await self._unclear_creates.void(UnclearCreate(new.id, new.project, number))
            raise Unavailable from error

    async def _insert(self, new: NewResponse, pool_timeout: float | None = None) -> UUID | None:
        if new.values["conversation"] is not None:
            return await self._insert_in_conversation(new, pool_timeout)
        statement = create.INSERT if new.idempotency_key is None else create.INSERT_WITH_KEY
        return new.id if await self._execute(statement, new, pool_timeout) else None

    async def _insert_in_conversation(
        self, new: NewResponse, pool_timeout: float | None
    ) -> UUID | None:
        statement = (
            create.INSERT_IN_CONVERSATION
            if new.idempotency_key is None
            else create.INSERT_IN_CONVERSATION_WITH_KEY
        )
        try:
            rows = await self._execute(statement, new, pool_timeout)
        except psycopg.errors.UniqueViolation as error:
            if error.diag.constraint_name == ONE_OPEN_PER_CONVERSATION:
                raise conversation_locked() from None
            raise
        return new.id if rows else None

    async def _find_inserted(self, new_id: UUID) -> UUID | None:
        """The id if a first try stored the response: then a second try inserts nothing."""
        return new_id if await fetch(self._pool, RESPONSE, {"id": new_id}) else None

    async def _execute(
        self, statement: Query[UUID], new: NewResponse, pool_timeout: float | None
    ) -> list[UUID]:
        values = new.values | {"web": self._lease.id, "waiter": new.waiter}
        if new.idempotency_key is not None:
            values |= new.idempotency_key.sql_values(new.id)
        if new.precomputed is None:
            return await fetch(self._pool, statement, values, pool_timeout)
        async with (
            self._pool.connection(timeout=pool_timeout) as connection,
            connection.transaction(),
        ):
            rows = await fetch(connection, statement, values)
            if rows:
                await execute(connection, COMPLETE_PRECOMPUTED, new.precomputed.values)
            return rows
