"""The purge of vector stores."""

from datetime import timedelta
from typing import Final

from features.retrieval import worker_queries as statements
from features.retrieval.vector_index import drop_unused
from models.config.settings import Settings
from models.files.storage import FileStorage
from worker.process.purge import PurgeSteps

_MAX_ROWS: Final = 500
_STORE_SHOWN: Final = timedelta(days=30)
"""So long a vector store is shown after it has expired."""
_STEPS = (
    statements.HIDE_EXPIRED_STORES,
    statements.HIDE_ENTRIES,
    statements.DELETE_CHUNKS,
    statements.FORGET_CHUNKS,
    statements.DELETE_ENTRIES,
    statements.DELETE_STORES,
)


async def purge(steps: PurgeSteps, _settings: Settings, _storage: FileStorage | None) -> None:
    """Deletes vector stores that clients have deleted or that have expired, files that were removed
    from one, and what was stored of files that failed or were cancelled; then indexes that no store
    has any more."""
    await steps.repeat(statements.REPAIR_ENTRIES, {})
    values: dict[str, object] = {"rows": _MAX_ROWS, "keep": _STORE_SHOWN}
    for query in _STEPS:
        while await steps.once(query, values):
            pass
    await drop_unused(steps.connection)
