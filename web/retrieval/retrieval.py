"""What the routes of vector stores need, and the connections behind it."""

from dataclasses import dataclass
from typing import Self

from models.config.settings import Settings
from models.db.database import Pool
from models.projects.routes import ProjectRoutes
from models.retrieval.embedder import Embedder
from models.retrieval.search import ChunkSearch
from models.retrieval.store_access import StoreAccess
from web.retrieval.entries import EntryStore
from web.retrieval.rewriter import QueryRewriter, RecordUsage
from web.retrieval.stores import VectorStores


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The vector stores of this server."""

    stores: VectorStores
    files: EntryStore
    """files of vector stores"""
    access: StoreAccess
    _embedder: Embedder
    _rewriter: QueryRewriter

    @classmethod
    def open(
        cls,
        settings: Settings,
        pool: Pool,
        routes: ProjectRoutes,
        access: StoreAccess,
        record_usage: RecordUsage,
    ) -> Self:
        """`record_usage` counts what rewritten queries use."""
        embedder = Embedder(settings.retrieval, routes)
        rewriter = QueryRewriter(settings.retrieval, routes, record_usage)
        files = EntryStore(settings.retrieval, settings.quotas, pool)
        stores = VectorStores(
            settings.retrieval,
            settings.quotas,
            pool,
            files,
            access,
            ChunkSearch(pool, embedder),
            rewriter,
        )
        return cls(stores, files, access, embedder, rewriter)

    async def close(self) -> None:
        """Closes the connections to upstreams."""
        await self._embedder.close()
        await self._rewriter.close()
