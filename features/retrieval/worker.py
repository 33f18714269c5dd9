"""Vector stores in a worker: files are ingested, and models search in them."""

from collections.abc import Mapping
from typing import Any

from features.retrieval.embedder import Embedder
from features.retrieval.file_search import FileSearch, ProjectFiles
from features.retrieval.ingest import Ingest
from features.retrieval.search import ChunkSearch
from models.projects.routes import ProjectRoutes
from models.wire.tools import FILE_SEARCH
from worker.run.resources import Resources, WorkerFeature
from worker.tools.provider import ToolContext, ToolProvider


class RetrievalTasks(WorkerFeature):
    """The tool `file_search`, and the ingest."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        settings = resources.settings
        self._embedder = Embedder(settings.retrieval, ProjectRoutes(settings), resources.prices)
        self._search = ChunkSearch(resources.pool, self._embedder)
        resources.tools[FILE_SEARCH] = self._file_search

    def start(self) -> None:
        """Begins to ingest, if this server stores files."""
        resources = self.resources
        if resources.storage is not None:
            ingest = Ingest(
                resources.settings,
                resources.pool,
                resources.storage,
                self._embedder,
                resources.policies,
            )
            resources.side_tasks.start(ingest.run(resources.due_poll), "ingest")

    async def close(self) -> None:
        """Closes the connections to upstreams."""
        await self._embedder.close()

    def _file_search(self, tool: Mapping[str, Any], context: ToolContext) -> ToolProvider:
        assert context.project is not None
        files = ProjectFiles(
            self._search, self.resources.policies, context.project, context.api_key
        )
        return FileSearch(files, tool, context)


FEATURE = RetrievalTasks
