"""File search: the model sends queries, PostgreSQL finds passages in the files of the project's
vector stores, the model gets them with what it needs to cite them (docs/tools.md).

If nothing can be searched now, the call fails with a message for the model; the response continues.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog

from features.retrieval.embedder import EmbeddingsRefused, EmbeddingsUnavailable, TextOwner
from features.retrieval.options import SearchOptions, parse_search_options
from features.retrieval.search import ChunkSearch, SearchResult, SearchTooSlow
from models.db.database import retry_while_unavailable
from models.ids import VECTOR_STORE, file_id, parse_admin_id
from models.project_policies import ProjectPolicies
from models.wire.events import Item
from models.wire.tools import is_own_file_search
from worker.tools.provider import ToolCallError, ToolContext, ToolResult
from worker.translation.functions import ServerFunction
from worker.translation.items.server_calls import MAX_QUERIES, OpenCallFactory, OpenFileSearchCall

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProjectFiles:
    """Searches in the vector stores of one project."""

    search: ChunkSearch
    policies: ProjectPolicies
    project: UUID
    api_key: UUID | None = None
    """With which the usage of searches counts."""

    async def find(
        self, stores: Sequence[UUID], queries: Sequence[str], options: SearchOptions
    ) -> list[SearchResult]:
        """The passages that fit best, from those of the stores that still exist. Waits while
        Postgres is away. Raises ToolCallError."""
        try:
            return await retry_while_unavailable(
                lambda: self._find(stores, queries, options), "file_search_waits"
            )
        except SearchTooSlow as error:
            logger.warning("file_search_failed", error=str(error))
            raise ToolCallError(str(error)) from error
        except (EmbeddingsUnavailable, EmbeddingsRefused) as error:
            logger.warning("file_search_failed", error=str(error))
            raise ToolCallError(
                "The files cannot be searched now: the queries could not be embedded."
            ) from error

    async def _find(
        self, stores: Sequence[UUID], queries: Sequence[str], options: SearchOptions
    ) -> list[SearchResult]:
        policy = await self.policies.policy(self.project)
        found = await self.search.stores(self.project, stores)
        open_stores = [store for store in found if not store.is_expired]
        if not open_stores:
            raise ToolCallError("The vector stores were deleted or have expired.")
        owner = TextOwner(self.project, policy.routes, self.api_key)
        return await self.search.search(owner, open_stores, queries, options)


_RESULTS = 20
"""Results of a search for which the client names no number."""

_DESCRIPTION = (
    "Searches the user's files for passages. Each passage has a marker: write it behind every "
    "sentence that uses the passage."
)
_PARAMETERS = {
    "type": "object",
    "properties": {
        "queries": {
            "type": "array",
            "items": {"type": "string"},
            "description": f"What to search for: 1 to {MAX_QUERIES} questions or phrases.",
        }
    },
    "required": ["queries"],
    "additionalProperties": False,
}


class FileSearch:
    """The `file_search` tool of one request. It offers no function if the upstream runs it."""

    time: float | None = None
    in_order = False

    def __init__(self, files: ProjectFiles, tool: Mapping[str, Any], context: ToolContext) -> None:
        """`files`: those of the response's project."""
        self._is_ours = is_own_file_search(tool)
        self._files = files
        self._max_bytes = context.settings.tools.answer
        self._stores: list[UUID] = []
        self._options = SearchOptions(max_results=_RESULTS)
        if self._is_ours:
            ids = (parse_admin_id(VECTOR_STORE, each) for each in tool["vector_store_ids"])
            self._stores = list(dict.fromkeys(each for each in ids if each is not None))
            self._options = parse_search_options(tool, results=_RESULTS)

    def pending(self, history: Sequence[Item]) -> list[OpenCallFactory]:  # noqa: ARG002 - only the model starts searches
        return []

    def functions(self) -> list[ServerFunction]:
        if not self._is_ours:
            return []
        return [
            ServerFunction({"type": "file_search"}, "file_search", _open, _DESCRIPTION, _PARAMETERS)
        ]

    def owns(self, item: Item) -> bool:
        return self._is_ours and item["type"] == OpenFileSearchCall.kind

    def is_repeatable(self, item: Item) -> bool:  # noqa: ARG002 - a search changes nothing
        return True

    async def run(self, item: Item) -> ToolResult:
        """Searches with all queries, side by side. Raises ToolCallError without a query, or if
        nothing can be searched."""
        queries = item["queries"]
        if not queries:
            raise ToolCallError("A file search needs 'queries': a list of texts to search for.")
        found = await self._files.find(self._stores, queries, self._options)
        return ToolResult({"results": _limited(found, self._max_bytes)})

    async def close(self) -> None:
        """Does nothing: searches use the connections of the process."""


def _open(output_index: int, new_id: Any) -> OpenFileSearchCall:
    return OpenFileSearchCall(output_index, new_id(OpenFileSearchCall.prefix))


def _limited(found: Sequence[SearchResult], max_bytes: int) -> list[dict[str, Any]]:
    """The results as the item has them: the best ones, up to `max_bytes` of text together. The
    first that does not fit is cut, and those behind it are left out. A file that is in several
    stores gives each passage once."""
    results: dict[tuple[UUID, str], dict[str, Any]] = {}
    for result in found:
        if (result.file_id, result.text) in results:
            continue
        encoded = result.text.encode()
        text = encoded[: max(0, max_bytes)].decode(errors="ignore")
        max_bytes -= len(encoded)
        if not text:
            break
        results[result.file_id, result.text] = {
            "file_id": file_id(result.file_id),
            "filename": result.filename,
            "score": result.score,
            "attributes": result.attributes,
            "text": text,
        }
    return list(results.values())
