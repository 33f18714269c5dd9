"""The work on batches: a task of each web process and of each worker.

A process takes one batch at a time for a short lease, does a slice of what there is to do, and
gives it back. Then it may be another project's turn (models/db/queries/batch_turns.py). Another
process goes on where one has stopped or died. The lease only saves work: what two processes do at
once is stored once (models/db/queries/batches.py).
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Generic, Protocol, TypeVar
from uuid import UUID

import psycopg
import structlog

from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch, retry_while_unavailable
from models.db.statement import Query
from models.errors import Unavailable
from models.files.storage import StorageError
from models.ids import batch_id

logger = structlog.get_logger()

LEASE: Final = timedelta(seconds=10)
"""So long a batch is this process's since it has taken it, or has stored something of it."""
PAUSE: Final = timedelta(milliseconds=500)
"""Until a batch is looked at again for which there was nothing more to do."""
NO_PAUSE: Final = timedelta(0)
"""The same where there was more: it waits only for its next turn."""
GROUPS_OF_A_SLICE: Final = 10
"""Groups of lines that are worked on before it is the next project's turn."""
MAX_CRASHES: Final = 5
"""Processes in a row that died, or met an unexpected error, while they had a batch, and had stored
nothing of it: then it is given up."""
CRASHED: Final = {
    "code": "server_error",
    "line": None,
    "message": "The batch was given up: the processes that worked on it have crashed.",
    "param": None,
}
"""The error of a batch that is given up."""
_PAUSE_AFTER_ERROR: Final = timedelta(seconds=5)
_POLL = 1.0
"""Seconds between two looks for batches."""


class Taken(Protocol):
    """A batch that a process has taken."""

    @property
    def id(self) -> UUID: ...


BatchT = TypeVar("BatchT", bound=Taken)


class BatchWork(Generic[BatchT]):
    """The work of one process."""

    def __init__(
        self,
        pool: Pool,
        take: Query[BatchT],
        release: Query[UUID],
        work: Callable[[BatchT], Awaitable[timedelta]],
    ) -> None:
        """`take` and `release`: statements. `work`: does what there is to do for a batch, and
        returns after what time there may be more; it may raise StorageError, Unavailable and
        IntegrityError."""
        self._pool = pool
        self._take = take
        self._release = release
        self._work = work

    async def run(self) -> None:
        """Works until it is cancelled. No error ends it: the process does other work too."""
        while True:
            is_idle = True
            try:
                is_idle = not await self._work_on_next()
            except DATABASE_UNAVAILABLE as error:
                logger.warning("batches_interrupted", error=str(error).strip())
            except Exception:
                logger.exception("batches_failed")
            if is_idle:
                await asyncio.sleep(_POLL)

    async def _work_on_next(self) -> bool:
        """Works on the next batch; False if there is none."""
        taken = await fetch(self._pool, self._take, {"lease": LEASE})
        if not taken:
            return False
        batch = taken[0]
        try:
            pause = await self._work(batch)
        except (StorageError, Unavailable, psycopg.IntegrityError, *DATABASE_UNAVAILABLE) as error:
            # A violation of a constraint: another process has written the same part.
            logger.warning("batch_interrupted", batch=batch_id(batch.id), error=str(error).strip())
            pause = _PAUSE_AFTER_ERROR
        # A batch that is not given back counts as a crash.
        released = {"id": batch.id, "pause": pause}
        await retry_while_unavailable(lambda: fetch(self._pool, self._release, released))
        return True
