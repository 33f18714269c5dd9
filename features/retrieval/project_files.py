"""The files of one project, as a tool searches them."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog

from features.retrieval.embedder import EmbeddingsRefused, EmbeddingsUnavailable, TextOwner
from features.retrieval.search import ChunkSearch, SearchOptions, SearchResult, SearchTooSlow
from models.db.database import retry_while_unavailable
from models.project_policies import ProjectPolicies

logger = structlog.get_logger()


class SearchFailed(Exception):
    """The files cannot be searched. The message is for the model and the client."""


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
        Postgres is away. Raises SearchFailed."""
        try:
            return await retry_while_unavailable(
                lambda: self._find(stores, queries, options), "file_search_waits"
            )
        except SearchTooSlow as error:
            logger.warning("file_search_failed", error=str(error))
            raise SearchFailed(str(error)) from error
        except (EmbeddingsUnavailable, EmbeddingsRefused) as error:
            logger.warning("file_search_failed", error=str(error))
            raise SearchFailed(
                "The files cannot be searched now: the queries could not be embedded."
            ) from error

    async def _find(
        self, stores: Sequence[UUID], queries: Sequence[str], options: SearchOptions
    ) -> list[SearchResult]:
        policy = await self.policies.policy(self.project)
        found = await self.search.stores(self.project, stores)
        open_stores = [store for store in found if not store.is_expired]
        if not open_stores:
            raise SearchFailed("The vector stores were deleted or have expired.")
        owner = TextOwner(self.project, policy.routes, self.api_key)
        return await self.search.search(owner, open_stores, queries, options)
