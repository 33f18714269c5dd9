"""Voids creates that were answered with 503 although they may have been stored (I9).

It has a connection of its own, and a task beside the heartbeat: a slow voiding delays no renewal of
the lease. Until a create is voided, the lease says so, and no sweep claims it
(models/ownership/creates.py).
"""

import asyncio
from uuid import UUID

import psycopg
import structlog

from models.config.settings import Settings
from models.db.database import Connection, connect, execute, retry_while_unavailable
from models.db.queries import create
from models.ids import response_id as public_id
from models.ownership.creates import UnclearCreate, void_values
from models.ownership.lease import Lease

logger = structlog.get_logger()

_BATCH_SIZE = 1000
"""Creates that one statement voids."""
_MAX_WAIT = 1.0
"""Seconds that the client of an unclear create waits for its voiding before it gets its 503."""


class UnclearCreates:
    """The voiding of one web process."""

    def __init__(self, settings: Settings, lease: Lease) -> None:
        self._settings = settings
        self._lease = lease
        self._batch_size = _BATCH_SIZE
        self._added = asyncio.Event()
        self._waiting: dict[UUID, asyncio.Event] = {}

    async def void(self, unclear: UnclearCreate) -> None:
        """Has a create voided; waits at most a second for it. If Postgres is unavailable for
        longer, it is voided later."""
        self._lease.creates.add_unclear(unclear)
        voided = self._waiting[unclear.response_id] = asyncio.Event()
        self._added.set()
        try:
            async with asyncio.timeout(_MAX_WAIT):
                await voided.wait()
        except TimeoutError:
            logger.warning("unclear_create_not_voided_yet", response=public_id(unclear.response_id))
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
        self._batch_size = _BATCH_SIZE

    async def _void(self, connection: Connection, unclear: list[UnclearCreate]) -> None:
        values = void_values(unclear, self._lease.id)
        await execute(connection, create.VOID_UNCLEAR_CREATES, values)
        await execute(connection, create.DELETE_VOIDED_SECRETS, values)
        response_ids = [one.response_id for one in unclear]
        self._lease.creates.remove_unclear(response_ids)
        for response_id in response_ids:
            if response_id in self._waiting:
                self._waiting[response_id].set()
        logger.info("unclear_creates_voided", responses=len(unclear))
