"""The vector stores that a request may name: those of its project, where the server has any."""

from collections.abc import Sequence
from uuid import UUID

from features.retrieval.options import parse_search_options
from features.retrieval.search_queries import HAS_EMBEDDINGS, SEARCHED_STORES, SearchedStore
from models.db.arrays import Uuids
from models.db.database import Pool, fetch_idempotent
from models.db.queries.api_keys import ApiKey
from models.errors import InvalidRequest, NotFound
from models.ids import VECTOR_STORE, parse_admin_id
from models.wire.checks.faults import shorten
from models.wire.request import CreateRequest
from models.wire.tools import FILE_SEARCH, is_own_file_search


class StoreAccess:
    """Finds the stores for one process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._is_available = False

    async def require_available(self, key: ApiKey) -> None:
        """Raises InvalidRequest where the database has no pgvector, or if the project keeps
        nothing."""
        if key.policy.zero_retention:
            raise InvalidRequest(
                "This project has zero retention: it has no vector stores.",
                code="unsupported_parameter",
            )
        if not self._is_available:
            [self._is_available] = await fetch_idempotent(self._pool, HAS_EMBEDDINGS, {})
        if not self._is_available:
            raise InvalidRequest(
                "This server has no vector stores: its database lacks the extension pgvector. "
                "'backburner config check' tells its operator what to do.",
                code="vector_stores_not_available",
            )

    async def find(
        self, key: ApiKey, ids: Sequence[str], param: str = "vector_store_id"
    ) -> list[SearchedStore]:
        """The stores with these ids, in any order. Raises NotFound for an id that is none of the
        project's, and InvalidRequest for a store that has expired. `param`: their place in the
        request."""
        parsed = {each: parse_admin_id(VECTOR_STORE, each) for each in ids}
        values = {
            "project": key.project_id,
            "ids": Uuids([each for each in parsed.values() if each is not None]),
        }
        found = {
            store.id: store for store in await fetch_idempotent(self._pool, SEARCHED_STORES, values)
        }
        for public_id, store_id in parsed.items():
            if store_id is None or store_id not in found:
                raise store_not_found(public_id, param)
            if found[store_id].is_expired:
                raise store_expired(public_id, param)
        return list(found.values())

    async def check_tools(self, request: CreateRequest, key: ApiKey, *, native: bool) -> None:
        """Checks the searches of tools `file_search` in a create: one that this server cannot do
        raises InvalidRequest or NotFound. A create without the tool costs nothing.

        `native`: the model's upstream has vector stores too, and searches in those that are not of
        this server.
        """
        for index, tool in enumerate(request.parameters.get("tools", ())):
            if tool["type"] != FILE_SEARCH or (native and not is_own_file_search(tool)):
                continue
            where = f"tools[{index}]"
            parse_search_options(tool, f"{where}.")
            await self.require_available(key)
            await self.find(key, tool["vector_store_ids"], f"{where}.vector_store_ids")


def parse_store_id(public_id: str) -> UUID:
    """The id of a store. Raises NotFound for what is none."""
    parsed = parse_admin_id(VECTOR_STORE, public_id)
    if parsed is None:
        raise store_not_found(public_id)
    return parsed


def store_not_found(public_id: str, param: str = "vector_store_id") -> NotFound:
    """The error for a store that the project does not have. `param`: its place in the request."""
    return NotFound(f"Vector store with id '{shorten(public_id)}' not found.", param=param)


def store_expired(public_id: str, param: str = "vector_store_id") -> InvalidRequest:
    """The error for what is not possible with a store that has expired."""
    return InvalidRequest(
        f"Vector store '{shorten(public_id)}' is expired.",
        param=param,
        code="vector_store_expired",
    )
