"""Vector stores in a web process."""

from features.proxy.web import Proxy
from features.retrieval.embedder import Embedder
from features.retrieval.entries import EntryStore
from features.retrieval.rewriter import QueryRewriter
from features.retrieval.search import ChunkSearch
from features.retrieval.store_access import StoreAccess
from features.retrieval.stores import VectorStores
from models.prices import PriceList
from web.state import AppState, Feature


class Retrieval(Feature):
    """The vector stores of all projects. A create that searches in one is checked."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        settings, pool, routes = state.settings, state.pool, state.routes
        prices = PriceList(settings.prices, settings)
        self._embedder = Embedder(settings.retrieval, routes, prices)
        self._rewriter = QueryRewriter(
            settings.retrieval, routes, Proxy.in_state(state).usage.add_tokens
        )
        self.access = StoreAccess(pool)
        self.files = EntryStore(settings.retrieval, settings.quotas, pool)
        self.stores = VectorStores(
            settings.retrieval,
            settings.quotas,
            pool,
            self.files,
            self.access,
            ChunkSearch(pool, self._embedder),
            self._rewriter,
        )
        state.hooks.checks.append(self.access.check_tools)

    async def close(self) -> None:
        """Closes the connections to upstreams."""
        await self._embedder.close()
        await self._rewriter.close()


FEATURE = Retrieval
