"""The work on batches: a task of each web process and of each worker.

A process takes one batch at a time for a short lease, does a slice of what there is to do, and
gives it back. Then it may be another project's turn (features/batches/take_queries.py). Another
process goes on where one has stopped or died. The lease only saves work: what two processes do at
once is stored once (features/batches/queries.py).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from typing import Final, Protocol, TypeVar
from uuid import UUID

import psycopg
import structlog

from features.batches.queries import FAIL_BATCH, FIND_INPUT
from features.files.queries import FILE_PARTS
from models.db.database import (
    DATABASE_UNAVAILABLE,
    Json,
    Pool,
    fetch,
    fetch_idempotent,
    retry_while_unavailable,
)
from models.db.statement import Query
from models.due_work import DuePoll, DueWork, KindOfWork
from models.errors import Unavailable
from models.fence import RowLease
from models.files.content import read_content
from models.files.storage import FileStorage, StorageError
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
_INPUT_GONE: Final = {
    "code": "input_file_not_found",
    "line": None,
    "message": "The input file was deleted before all of it was read.",
    "param": "input_file_id",
}
"""The error of a batch whose input is gone."""
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


class Outcome(Enum):
    """Whether a slice of work has left more to do."""

    MORE = "more, at once"
    WAITS = "nothing until something else has happened"
    COMPLETE = "nothing any more"


class InputGone(Exception):
    """The input file of a batch is not there any more."""


async def read_input(
    pool: Pool, storage: FileStorage, project: UUID, file: UUID, start: int
) -> AsyncGenerator[bytes, None]:
    """The input of a batch from the byte `start` on. Raises InputGone, here, and StorageError."""
    if not await fetch_idempotent(pool, FIND_INPUT, {"id": file, "project": project}):
        raise InputGone
    parts = await fetch_idempotent(pool, FILE_PARTS, {"id": file})
    return read_content(storage, parts, start)


async def fail(pool: Pool, batch: UUID, error: Mapping[str, object]) -> None:
    """The batch ends with this error, unless it is ending already."""
    await fetch(pool, FAIL_BATCH, {"id": batch, "errors": Json([error])})


async def work_on_batches(
    pool: Pool,
    take: Query[BatchT],
    release: Query[UUID],
    is_due: Query[bool],
    work: Callable[[BatchT], Awaitable[timedelta]],
    poll: DuePoll,
) -> None:
    """Works on one batch after the other until it is cancelled. `take`, `release` and `is_due`:
    statements. `poll`: finds due batches. `work`: does what there is to do for a batch, and returns
    after what time there may be more; it may raise InputGone, StorageError, Unavailable and
    IntegrityError."""

    async def work_on(batch: BatchT, _: RowLease) -> None:
        try:
            pause = await _work_or_fail(pool, batch, work)
        except (StorageError, Unavailable, psycopg.IntegrityError, *DATABASE_UNAVAILABLE) as error:
            # A violation of a constraint: another process has written the same part.
            logger.warning("batch_interrupted", **_facts(batch), error=str(error).strip())
            pause = _PAUSE_AFTER_ERROR
        # A batch that is not given back counts as a crash.
        released = {"id": batch.id, "pause": pause}
        await retry_while_unavailable(lambda: fetch(pool, release, released))

    due = DueWork(pool, KindOfWork("batches", take, LEASE, _POLL, _room, work_on, _facts))
    due.find_by(poll, is_due)
    await due.run()


async def _work_or_fail(
    pool: Pool, batch: BatchT, work: Callable[[BatchT], Awaitable[timedelta]]
) -> timedelta:
    try:
        return await work(batch)
    except InputGone:
        await fail(pool, batch.id, _INPUT_GONE)
        return PAUSE


def _room(running: Sequence[Taken]) -> dict[str, object] | None:
    """One at a time."""
    return None if running else {}


def _facts(batch: Taken) -> dict[str, object]:
    return {"batch": batch_id(batch.id)}
