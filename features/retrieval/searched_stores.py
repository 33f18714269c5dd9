"""The vector stores that a tool `file_search` of a request names (docs/vector-stores.md).

They are looked up with one statement. A request without the tool costs nothing.
"""

from features.retrieval.options import parse_search_options
from features.retrieval.store_access import StoreAccess
from models.db.queries.api_keys import ApiKey
from models.wire.request import CreateRequest
from models.wire.tools import FILE_SEARCH, is_own_file_search


class SearchedStores:
    """Checks the vector stores that requests search."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access

    async def check(self, request: CreateRequest, key: ApiKey, *, native: bool) -> None:
        """Raises InvalidRequest or NotFound for a search that this server cannot do.

        `native`: the model's upstream has vector stores too, and searches in those that are not of
        this server.
        """
        for index, tool in enumerate(request.parameters.get("tools", ())):
            if tool["type"] != FILE_SEARCH or (native and not is_own_file_search(tool)):
                continue
            where = f"tools[{index}]"
            parse_search_options(tool, f"{where}.")
            await self._access.require_available(key)
            await self._access.find(key, tool["vector_store_ids"], f"{where}.vector_store_ids")
