"""The purge of vector stores: those that clients have deleted or that have expired, files that were
removed from one, and what was stored of files that failed or were cancelled."""

from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

from models.db.database import Parameters
from models.db.queries import vector_purge
from models.db.statement import Query

_MAX_ROWS: Final = 500
_SHOWN: Final = timedelta(days=30)
"""So long a store is shown after it has expired."""
_IN_ORDER = (
    vector_purge.HIDE_EXPIRED_STORES,
    vector_purge.HIDE_ENTRIES,
    vector_purge.DELETE_CHUNKS,
    vector_purge.FORGET_CHUNKS,
    vector_purge.DELETE_ENTRIES,
    vector_purge.DELETE_STORES,
)


class Step(Protocol):
    """Runs a statement, unless another worker purges: then it returns no rows."""

    async def __call__(self, query: Query[UUID], values: Parameters, /) -> list[UUID]: ...


async def purge_vectors(step: Step) -> None:
    """One round, until nothing is left."""
    values: dict[str, object] = {"rows": _MAX_ROWS, "keep": _SHOWN}
    for query in _IN_ORDER:
        while await step(query, values):
            pass
