"""Stores new responses; the outcome is known even after a lost connection to Postgres (I9)."""

import asyncio
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
    fetch_idempotent,
    retry_while_unavailable,
)
from models.db.queries import create
from models.db.queries.end import COMPLETE_PRECOMPUTED
from models.db.queries.read import RESPONSE
from models.db.statement import Query
from models.db.tables import ONE_OPEN_PER_CONVERSATION
from models.errors import Unavailable
from models.ownership.lease import Lease
from web.responses.continuation import conversation_locked
from web.responses.idempotency import IdempotencyKey, matched_response_id
from web.responses.precomputed import PrecomputedResponse

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


class InsertResponse:
    """Stores new responses."""

    def __init__(self, pool: Pool, lease: Lease) -> None:
        self._pool = pool
        self._lease = lease
        self._deletions: set[asyncio.Task[None]] = set()

    async def insert(self, new: NewResponse) -> UUID | None:
        """Stores the response; returns its id, or the id of the response that an equal request made
        before.

        Returns None if the conversation was changed after the request was checked against it. If
        the connection is lost, the same row is inserted once more: it is stored then, or it was
        stored before. If that fails too, the row is deleted and Unavailable is raised.
        """
        if new.values["background"] is False and not self._lease.is_valid:
            # A sweep would cancel it: its web process looks dead.
            raise Unavailable
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
            await self._begin_deletion(new)
            raise Unavailable from error

    async def _insert(self, new: NewResponse, pool_timeout: float | None = None) -> UUID | None:
        if new.values["conversation"] is not None:
            return await self._insert_in_conversation(new, pool_timeout)
        key = new.idempotency_key
        if key is None:
            await self._execute(create.INSERT, new, pool_timeout)
            return new.id
        while not await self._execute(create.INSERT_WITH_KEY, new, pool_timeout):
            for holder in await fetch_idempotent(
                self._pool,
                create.IDEMPOTENCY_KEY_HOLDER,
                {"project": new.project, "key": key.key},
            ):
                return matched_response_id(holder, key)
        return new.id

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
        values = new.values | {"web": self._lease.id}
        if new.idempotency_key is not None:
            values |= new.idempotency_key.sql_values()
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

    async def _begin_deletion(self, new: NewResponse) -> None:
        """Starts the deletion of a response that may have been stored; waits at most 1 s for it.

        The heartbeat deletes it too: the lease is not renewed before that.
        """
        self._lease.unresolved_creates[new.id] = new.project
        deletion = asyncio.create_task(self._delete_unclear(new.id, new.project))
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)
        await asyncio.wait({deletion}, timeout=1)

    async def _delete_unclear(self, unclear_id: UUID, project: UUID) -> None:
        """Deletes the response before it can run.

        Retries while Postgres is unavailable, until it or the heartbeat succeeds.
        """
        unclear = {"id": unclear_id, "project": project}

        async def delete() -> None:
            if unclear_id in self._lease.unresolved_creates:
                await execute(self._pool, create.DELETE_UNCLEAR_CREATE, unclear)
                await execute(self._pool, create.DELETE_UNCLEAR_SECRETS, unclear)
                self._lease.unresolved_creates.pop(unclear_id, None)

        await retry_while_unavailable(
            delete, "delete_unclear_create_failed", response=str(unclear_id)
        )
