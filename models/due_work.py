"""Work that is due: the loop of everything that takes rows for a lease.

A process takes rows that are due, works on each in a task of its own, and stores what came of it. A
process that dies leaves rows that are due again when their leases have ended. Each kind of work has
a statement of its own that takes rows, because what is fair depends on its table: webhooks have a
limit for each endpoint, files of vector stores a reserve for projects that have none in work,
batches a turn that all processes share.

Nearly always nothing is due. So one statement of a process asks for all kinds (`DuePoll`), and the
processes of a deployment together look as often as one that is alone.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, Literal

import structlog

from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch
from models.db.queries.due import due_query
from models.db.statement import Query, RowT
from models.fence import RowLease, RowLeaseEnded
from models.tasks import cancel_all

logger = structlog.get_logger()

_TAKEN_BY_OTHERS = 0.2
"""Seconds until the next look if other processes have taken what was due."""
_POLL = 1.0
"""Seconds between two looks of a `DuePoll` whose process is the only one of its kind."""
_IDLE_POLL, _IDLE_AFTER = 2.0, 60.0
"""The same, once nothing was found for so many seconds."""
_LONGEST_POLL = 60.0
"""Seconds between two of one among many."""


class DuePoll:
    """The looks of one process for work that is due, of all kinds."""

    def __init__(self, pool: Pool, kind: Literal["worker", "web"]) -> None:
        """`kind`: of this process."""
        self._pool = pool
        self._kind = kind
        self._asked: list[str] = []
        self._wakes: list[Callable[[], None]] = []
        self._query = due_query(())
        self._pause = _POLL
        self._found_at = time.monotonic()

    def add(self, is_due: Query[bool], wake: Callable[[], None]) -> None:
        """From now on `wake` is called when `is_due`, a statement without parameters that selects
        one boolean, finds something."""
        self._asked.append(is_due.sql)
        self._wakes.append(wake)
        self._query = due_query(self._asked)

    async def run(self) -> None:
        """Looks until it is cancelled."""
        await repeat("due_work", self._look, lambda: self._pause)

    async def _look(self) -> None:
        wakes = list(self._wakes)
        if not wakes:
            return
        [found] = await fetch(self._pool, self._query, {"kind": self._kind})
        now = time.monotonic()
        if any(found.due):
            self._found_at = now
        poll = _IDLE_POLL if now - self._found_at > _IDLE_AFTER else _POLL
        self._pause = min(_LONGEST_POLL, poll * max(1, found.processes))
        for wake, is_due in zip(wakes, found.due, strict=True):
            if is_due:
                wake()


@dataclass(frozen=True, slots=True)
class KindOfWork(Generic[RowT]):
    """What the loop knows of a kind of work."""

    name: str
    """of its tasks, and in the log"""
    take: Query[RowT]
    """takes due rows for the time `lease`"""
    lease: timedelta
    poll: float
    """seconds until due rows are looked for again, if no task ends before; without a `DuePoll`"""
    room: Callable[[Sequence[RowT]], Mapping[str, object] | None]
    """the parameters of `take` beside the lease, from the rows that are worked on here now; None:
    no more of them may be"""
    work: Callable[[RowT, RowLease], Awaitable[None]]
    """works on a row and stores the result, or gives the row back; what it raises is logged"""
    facts: Callable[[RowT], Mapping[str, object]]
    """which row it is, for the log"""
    until_due: Query[float] | None = None
    """selects the seconds until a row is due; no row: none will be. Then `take` runs only if one is
    due, and the next look is made when one is, after `poll` seconds at most. For rows that are due
    at a time, and seldom"""


class DueWork(Generic[RowT]):
    """The work of one kind in one process."""

    def __init__(self, pool: Pool, kind: KindOfWork[RowT]) -> None:
        self._pool = pool
        self._kind = kind
        self._tasks: dict[asyncio.Task[None], RowT] = {}
        self._has_room = asyncio.Event()
        self._poll = self._pause = kind.poll
        """Seconds until the next look, as it is by default and now."""

    @property
    def running(self) -> list[RowT]:
        """The rows that are worked on here now."""
        return list(self._tasks.values())

    def find_by(self, poll: DuePoll, is_due: Query[bool]) -> None:
        """From now on due rows are found by `poll`, which asks `is_due`."""
        poll.add(is_due, self.wake)
        self._poll = self._pause = _LONGEST_POLL

    def wake(self) -> None:
        """Looks for due rows at once: one was found, or this process has made one."""
        self._has_room.set()

    async def run(self) -> None:
        """Works until it is cancelled; then its tasks are cancelled too, and have ended when it
        ends. A row that none of them gives back is due again when its lease has ended."""
        kind = self._kind
        try:
            await repeat(kind.name, self._start_due, lambda: self._pause, self._has_room)
        finally:
            await cancel_all(self._tasks)

    async def _start_due(self) -> None:
        """Takes rows and starts to work on them, until none is due or there is no room."""
        kind = self._kind
        self._pause = self._poll
        while (room := kind.room(self.running)) is not None:
            if not await self._is_due():
                return
            sent_at = time.monotonic()
            taken = await fetch(self._pool, kind.take, {**room, "lease": kind.lease})
            if not taken:
                return
            for row in taken:
                work = self._work(row, RowLease(kind.lease, sent_at))
                task = asyncio.create_task(work, name=kind.name)
                self._tasks[task] = row
                task.add_done_callback(self._on_ended)

    async def _is_due(self) -> bool:
        """Whether a row may be due; sets the pause until the next look."""
        kind = self._kind
        if kind.until_due is None:
            return True
        [seconds] = await fetch(self._pool, kind.until_due, {}) or [kind.poll]
        is_due = seconds <= 0
        self._pause = _TAKEN_BY_OTHERS if is_due else min(seconds, kind.poll)
        return is_due

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._has_room.set()

    async def _work(self, row: RowT, lease: RowLease) -> None:
        facts = {"work": self._kind.name, **self._kind.facts(row)}
        try:
            await self._kind.work(row, lease)
        except RowLeaseEnded:
            # This process was frozen: another one has the row, or will take it.
            logger.warning("work_lease_ended", **facts)
        except DATABASE_UNAVAILABLE as error:
            logger.warning("work_interrupted", **facts, error=str(error).strip())
        except Exception:
            logger.exception("work_failed", **facts)


async def repeat(
    name: str,
    work: Callable[[], Awaitable[None]],
    pause: float | Callable[[], float],
    wake: asyncio.Event | None = None,
) -> None:
    """Awaits `work()` for ever, with `pause` seconds in between, or until `wake` is set. No error
    ends it: a process does other work too. `name`: in the log."""
    wake = wake or asyncio.Event()
    while True:
        wake.clear()
        try:
            await work()
        except DATABASE_UNAVAILABLE as error:
            logger.warning("work_interrupted", work=name, error=str(error).strip())
        except Exception:
            logger.exception("work_failed", work=name)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause() if callable(pause) else pause):
                await wake.wait()
