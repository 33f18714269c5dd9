"""Vector stores in a web process: creating, showing, listing, changing, searching and deleting
those of a project. Always within one project (I11)."""

from functools import partial
from typing import Any
from uuid import UUID

from features.files.queries import LOCK_PROJECT
from features.proxy.web import Proxy
from features.quotas.refusal import too_much_stored
from features.retrieval import queries as vector_stores
from features.retrieval.embedder import (
    Embedder,
    EmbeddingsRefused,
    EmbeddingsUnavailable,
    TextOwner,
)
from features.retrieval.entries import EntryStore
from features.retrieval.objects import TwoWayPaging, result_object, store_object
from features.retrieval.queries import StoreRow
from features.retrieval.requests import parse_new_store, parse_search, parse_store_change
from features.retrieval.rewriter import QueryRewriter
from features.retrieval.search import ChunkSearch, SearchTooSlow
from features.retrieval.store_access import (
    StoreAccess,
    parse_store_id,
    store_expired,
    store_not_found,
)
from models.config.feature_groups import RetrievalSettings
from models.config.groups import QuotaSettings
from models.db.database import (
    Connection,
    Json,
    Pool,
    execute,
    fetch,
    fetch_idempotent,
    require_by_id,
)
from models.db.queries.api_keys import ApiKey
from models.db.queries.audit import Actor, AuditEntry
from models.errors import InvalidRequest, Unavailable
from models.ids import VECTOR_STORE, new_uuid, parse_admin_id, vector_store_id
from models.prices import PriceList
from web.idempotency.creates import note_made
from web.state import AppState, Feature


class VectorStores:
    """The vector stores of all projects."""

    def __init__(
        self,
        settings: RetrievalSettings,
        quotas: QuotaSettings,
        pool: Pool,
        entries: EntryStore,
        access: StoreAccess,
        search: ChunkSearch,
        rewriter: QueryRewriter,
    ) -> None:
        self._settings = settings
        self._quotas = quotas
        self._pool = pool
        self._entries = entries
        self._access = access
        self._search = search
        self._rewriter = rewriter

    async def create(self, key: ApiKey, body: Any) -> dict[str, Any]:
        """Makes a store, with files if there are any; returns the VectorStore object. Raises
        ApiError, with nothing stored."""
        new = parse_new_store(body)
        new_id = new_uuid()
        values = {
            "id": new_id,
            "project": key.project_id,
            "name": new.name,
            "description": new.description,
            "metadata": Json(new.metadata),
            "days": new.days,
            "model": self._settings.embedding_model,
            "dimensions": self._settings.dimensions,
            "language": self._settings.language,
        }
        async with self._pool.connection() as connection, connection.transaction():
            await self._require_quota(connection, key)
            await execute(connection, vector_stores.INSERT_STORE, values)
            if new.files:
                await self._entries.insert(connection, key, new_id, new.files)
            await note_made(connection, vector_store_id(new_id))
        return await self.show(key.project_id, vector_store_id(new_id))

    async def show(self, project: UUID, public_id: str) -> dict[str, Any]:
        """The VectorStore object. Raises NotFound."""
        return store_object(await self._find(project, public_id))

    async def page(self, project: UUID, paging: TwoWayPaging) -> dict[str, Any]:
        """A page of the project's stores. Raises NotFound if `after` or `before` is none of
        them."""
        find = partial(self._find, project)
        lists, values = vector_stores.LIST_STORES, {"project": project}
        return await paging.read(self._pool, lists, values, find, store_object)

    async def update(self, project: UUID, public_id: str, body: Any) -> dict[str, Any]:
        """Changes a store; returns the VectorStore object. Raises ApiError."""
        change = parse_store_change(body)
        row = await self._find(project, public_id)
        values = {
            "id": row.id,
            "project": project,
            "name": change.name,
            "metadata": None if change.metadata is None else Json(change.metadata),
            "set_expiry": change.set_expiry,
            "days": change.days,
        }
        if not await fetch_idempotent(self._pool, vector_stores.UPDATE_STORE, values):
            await self._find(project, public_id)
            raise store_expired(public_id)
        return await self.show(project, public_id)

    async def delete(self, project: UUID, public_id: str, actor: Actor) -> None:
        """Deletes a store: nobody sees it from now on, and the purge deletes its chunks. Its files
        stay. Raises NotFound."""
        values = {"id": parse_store_id(public_id), "project": project}
        audited = AuditEntry(actor, "vector_store.delete", public_id).values()
        if not await fetch_idempotent(self._pool, vector_stores.DELETE_STORE, values | audited):
            raise store_not_found(public_id)

    async def search(self, key: ApiKey, public_id: str, body: Any) -> dict[str, Any]:
        """The results of a search, as a page. Raises ApiError."""
        request = parse_search(body)
        stores = await self._access.find(key, [public_id])
        queries = request.queries
        if request.rewrite:
            queries = await self._rewriter.rewrite(key, queries)
        try:
            owner = TextOwner(key.project_id, key.policy.routes, key.id)
            results = await self._search.search(owner, stores, queries, request.options)
        except SearchTooSlow as error:
            # A retry would take as long.
            refusal = Unavailable(str(error))
            refusal.headers = {"x-should-retry": "false"}
            raise refusal from error
        except EmbeddingsUnavailable as error:
            raise Unavailable(
                "The query could not be embedded: no upstream makes embeddings now. Please retry."
            ) from error
        except EmbeddingsRefused as error:
            raise InvalidRequest(
                f"The query could not be embedded: {error}", param="query", code="embedding_failed"
            ) from error
        return _results_page(queries, [result_object(result) for result in results])

    async def _find(self, project: UUID, public_id: str) -> StoreRow:
        found, absent = parse_admin_id(VECTOR_STORE, public_id), store_not_found(public_id)
        query = vector_stores.FIND_STORE
        return await require_by_id(self._pool, query, found, absent, project=project)

    async def _require_quota(self, connection: Connection, key: ApiKey) -> None:
        """In the transaction that makes a store. Raises QuotaExceeded."""
        own, common = key.policy.quotas, self._quotas
        most = common.vector_stores if own.vector_stores is None else own.vector_stores
        if not most:
            return
        values = {"project": key.project_id}
        await fetch(connection, LOCK_PROJECT, values)
        [stored] = await fetch(connection, vector_stores.STORED_VECTORS, values)
        if stored.stores + 1 > most:
            raise too_much_stored(f"{most} vector stores")


def _results_page(queries: list[str], results: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "object": "vector_store.search_results.page",
        "search_query": queries,
        "data": results,
        "has_more": False,
        "next_page": None,
    }


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
