"""HNSW indexes of pgvector: one for each large store, made by a worker when files have made it so,
or by a sweep if that worker has died or failed.

An index of one store, not of all: a search in it never meets what other stores have, small stores
need none, and it goes when its store goes (docs/vector-stores.md). While it is being built, and
where it cannot be built, the store is searched by comparing each chunk.
"""

import time
from functools import partial
from typing import Final
from uuid import UUID

import psycopg
import structlog
from psycopg import sql

from features.retrieval import worker_queries
from models.config.settings import Settings
from models.db.database import Connection, Pool, connect, fetch
from models.due_work import repeat
from models.ids import vector_store_id

logger = structlog.get_logger()

_LOCK = 0x6262_2E76_6563_746F
"""The advisory lock for making or dropping an index: "bb.vecto" in ASCII."""
_SWEEP_INTERVAL = 30.0
"""Seconds between two looks of the sweep."""
_SWEPT_STORES: Final = 200
"""Stores of one look."""
_FIRST: Final = UUID(int=0)
_RETRY_PAUSE = 600.0
"""Seconds after which a worker makes an index again that it could not make."""
_NO_ROOM = "no longer fits into maintenance_work_mem"
"""In the notice of pgvector that an index is larger than the memory in which it is made."""


class VectorIndexes:
    """Makes the indexes for one worker, one at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_building = False
        self._swept = _FIRST
        """Behind which store the next look of the sweep begins."""
        self._not_before: dict[UUID, float] = {}
        """store -> the moment after which the sweep makes its index again, which has failed."""

    async def sweep(self, pool: Pool) -> None:
        """Makes the indexes that are missing, because the worker that made one has died, or has
        made another one then. Looks at some stores at a time. Never returns; no error ends it."""
        await repeat("vector_index_sweep", partial(self._sweep_stores, pool), _SWEEP_INTERVAL)

    async def _sweep_stores(self, pool: Pool) -> None:
        values: dict[str, object] = {"after": self._swept, "rows": _SWEPT_STORES}
        values["chunks"] = self._settings.retrieval.index_from
        stores = await fetch(pool, worker_queries.SWEEP_STORES, values)
        for store in stores:
            if store.wants_index and time.monotonic() >= self._not_before.get(store.id, 0.0):
                await self.make_if_large(store.id)
        self._swept = stores[-1].id if len(stores) == _SWEPT_STORES else _FIRST

    async def make_if_large(self, store: UUID) -> None:
        """Makes the index of a store that has become large, unless another one is being made: the
        next file of the store, or the sweep, tries again. Raises nothing."""
        if self._is_building:
            return
        self._is_building = True
        try:
            async with await connect(self._settings, "vector-index") as connection:
                await self._make_if_large(connection, store)
        except psycopg.Error as error:
            self._not_before[store] = time.monotonic() + _RETRY_PAUSE
            logger.warning(
                "vector_index_not_made",
                vector_store=vector_store_id(store),
                error=str(error).strip(),
            )
        finally:
            self._is_building = False

    async def _make_if_large(self, connection: Connection, store: UUID) -> None:
        values = {"store": store, "chunks": self._settings.retrieval.index_from}
        wanted = await fetch(connection, worker_queries.INDEX_WANTED, values)
        if (
            not wanted
            or not (await fetch(connection, worker_queries.TRY_INDEX_LOCK, {"key": _LOCK}))[0]
        ):
            return
        memory = self._settings.retrieval.index_memory // 1024
        await connection.execute("SET statement_timeout = 0")
        await connection.execute(
            sql.SQL("SET maintenance_work_mem = {}").format(sql.Literal(f"{memory}kB"))
        )
        connection.add_notice_handler(partial(_log_notice, store))
        name = sql.Identifier(worker_queries.index_name(store))
        # Of a worker that has died while it made one.
        await connection.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(name))
        await connection.execute(
            sql.SQL(
                "CREATE INDEX CONCURRENTLY {name} ON vector_store_chunks USING hnsw "
                "((embedding::{home}.halfvec({dimensions})) {home}.halfvec_cosine_ops) "
                "WHERE store_id = {store}"
            ).format(
                name=name,
                home=sql.Identifier(wanted[0].home),
                dimensions=sql.Literal(wanted[0].dimensions),
                store=sql.Literal(str(store)),
            )
        )
        await fetch(connection, worker_queries.SET_HAS_INDEX, {"store": store})
        self._not_before.pop(store, None)
        logger.info("vector_index_made", vector_store=vector_store_id(store))


def _log_notice(store: UUID, notice: psycopg.errors.Diagnostic) -> None:
    """Tells the operator why the index takes long."""
    if _NO_ROOM in (notice.message_primary or ""):
        logger.warning(
            "vector_index_needs_memory",
            vector_store=vector_store_id(store),
            error=f"{notice.message_primary}; raise BACKBURNER_RETRIEVAL__INDEX_MEMORY",
        )


async def drop_unused(connection: Connection) -> None:
    """Drops the indexes of stores that were deleted, and those that a worker has not finished."""
    if not (await fetch(connection, worker_queries.TRY_INDEX_LOCK, {"key": _LOCK}))[0]:
        return
    try:
        for name in await fetch(connection, worker_queries.UNUSED_INDEXES, {}):
            drop = sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(sql.Identifier(name))
            await connection.execute(drop)
    finally:
        await connection.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])
