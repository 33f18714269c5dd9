"""Makes the index of the search documents again when it has twice its size.

A GIN index never gives up the entry of a word, also if no document has it any more. Texts have
numbers, times and ids that are in no other one: so the index would grow for ever, although
responses are deleted.
"""

from typing import Final

import psycopg
import structlog

from models.config.settings import Settings
from models.db.database import Connection, Pool, connect, execute, fetch
from models.db.queries import search_documents
from models.due_work import repeat

logger = structlog.get_logger()

_LOCK: Final = 0x6262_2E73_6561_7263
"""The advisory lock for making the index: "bb.searc" in ASCII."""
_PAUSE: Final = 600.0
"""Seconds between two looks at its size."""
_SMALL: Final = 2 * 1024 * 1024
"""Bytes of an index that may be as it is."""


class SearchIndex:
    """The index, for one worker."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool = pool
        self._settings = settings

    async def run(self) -> None:
        """Looks until it is cancelled."""
        await repeat("search_index", self._look, _PAUSE)

    async def _look(self) -> None:
        try:
            await self.make_if_large()
        except psycopg.Error as error:
            logger.warning("search_index_not_made", error=str(error).strip())

    async def make_if_large(self) -> None:
        """Makes it again if it has twice the size that it had when it was made, unless another
        worker does. Searches and new documents use the old one meanwhile: the disk has both. Raises
        `psycopg.Error`, such as for a full disk."""
        if not await self._has_doubled(self._pool):
            return
        async with await connect(self._settings, "search-index") as connection:
            if not (await fetch(connection, search_documents.TRY_INDEX_LOCK, {"key": _LOCK}))[0]:
                return
            if not await self._has_doubled(connection):
                return
            await connection.execute("SET statement_timeout = 0")
            await _drop_unfinished(connection)
            remake = f"REINDEX INDEX CONCURRENTLY {search_documents.INDEX}"
            try:
                await connection.execute(remake.encode())
            except psycopg.Error:
                # It would keep a full disk full.
                await _drop_unfinished(connection)
                raise
            await execute(connection, search_documents.NOTE_INDEX, {})
        logger.info("search_index_made")

    async def _has_doubled(self, on: Pool | Connection) -> bool:
        return (await fetch(on, search_documents.HAS_DOUBLED, {"small": _SMALL}))[0]


async def _drop_unfinished(connection: Connection) -> None:
    for name in await fetch(connection, search_documents.UNFINISHED_INDEXES, {}):
        await connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}".encode())
