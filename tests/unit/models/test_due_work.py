"""The loop that takes due rows for a lease, over a table in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import psycopg
import pytest

from models import due_work
from models.db.database import Pool
from models.db.statement import Query
from models.due_work import DueWork, KindOfWork, repeat
from models.fence import RowLease, RowLeaseEnded
from tests.support.api import until

LEASE = timedelta(seconds=20)
NEVER = 3600.0
"""A poll that no test waits for."""


@dataclass
class Table:
    """Rows that are due, the work on them, and what the loop asks for."""

    due: list[int] = field(default_factory=list)
    at_once: int = 2
    errors: list[Exception] = field(default_factory=list)
    """what the next statements raise"""
    taken: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    fails_with: dict[int, Exception] = field(default_factory=dict)
    statements: int = 0

    async def fetch(self, _: Pool, __: object, values: Mapping[str, object]) -> list[int]:
        assert values["lease"] == LEASE
        self.statements += 1
        if self.errors:
            raise self.errors.pop()
        free = cast("int", values["free"])
        rows, self.due = self.due[:free], self.due[free:]
        self.taken += rows
        return rows

    def room(self, running: Sequence[int]) -> dict[str, object] | None:
        free = self.at_once - len(running)
        return {"free": free} if free else None

    async def work(self, row: int, lease: RowLease) -> None:
        await lease.require()
        if row in self.fails_with:
            raise self.fails_with[row]
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # gives the row back
            self.cancelled.append(row)
            raise
        self.ended.append(row)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    table = Table()
    monkeypatch.setattr(due_work, "fetch", table.fetch)
    return table


_UNTIL_DUE = cast("Query[float]", object())


@dataclass
class TimedTable(Table):
    """Rows that are due at a time."""

    due_in: float | None = None
    """seconds; None: no row is due at any time"""
    looks: int = 0

    async def fetch_timed(self, pool: Pool, query: object, values: Mapping[str, object]) -> object:
        if query is _UNTIL_DUE:
            self.looks += 1
            return [] if self.due_in is None else [self.due_in]
        return await self.fetch(pool, query, values)


def _facts(row: int) -> dict[str, object]:
    return {"row": row}


@asynccontextmanager
async def _running(
    table: Table, poll: float = NEVER, until_due: "Query[float] | None" = None
) -> AsyncIterator[DueWork[int]]:
    take = cast("Query[int]", None)
    kind = KindOfWork("counting", take, LEASE, poll, table.room, table.work, _facts, until_due)
    work = DueWork(cast("Pool", None), kind)
    task = asyncio.create_task(work.run())
    try:
        yield work
    finally:
        task.cancel()
        await asyncio.wait((task,))
        assert not work.running


async def _until(condition: Callable[[], object]) -> None:
    await until(condition, every=0.001)


async def test_as_many_rows_are_taken_as_there_is_room_for_and_the_next_when_one_has_ended(
    table: Table,
) -> None:
    table.due = [1, 2, 3, 4, 5]
    async with _running(table) as work:
        await _until(lambda: table.taken == [1, 2])
        assert (work.running, table.statements) == ([1, 2], 1)
        table.may_end.set()
        await _until(lambda: sorted(table.ended) == [1, 2, 3, 4, 5])


async def test_rows_that_become_due_are_found_at_the_next_poll(table: Table) -> None:
    async with _running(table, poll=0.001):
        await _until(lambda: table.statements > 1)
        table.due = [1]
        await _until(lambda: table.taken == [1])


async def test_no_statement_is_sent_while_there_is_no_room(table: Table) -> None:
    table.at_once, table.due = 1, [1, 2]
    async with _running(table, poll=0.001):
        await _until(lambda: table.taken)
        for _ in range(20):
            await asyncio.sleep(0)
        assert table.statements == 1


@pytest.mark.parametrize(
    "error",
    [
        RowLeaseEnded(),
        psycopg.OperationalError("lost"),
        ValueError("a mistake"),
    ],
)
async def test_an_error_of_a_row_is_no_matter_of_the_others(table: Table, error: Exception) -> None:
    table.due, table.fails_with = [1, 2, 3], {1: error}
    table.may_end.set()
    async with _running(table):
        await _until(lambda: table.ended == [2, 3])


@pytest.mark.parametrize(
    "error", [psycopg.OperationalError("it restarts"), ValueError("a mistake")]
)
async def test_rows_are_looked_for_again_after_a_statement_has_failed(
    table: Table, error: Exception
) -> None:
    table.due, table.errors = [1], [error, error]
    async with _running(table, poll=0.001):
        await _until(lambda: table.taken == [1])
        assert table.statements >= 3


async def test_rows_are_given_back_before_a_process_that_stops_goes_on(table: Table) -> None:
    table.due = [1, 2]
    async with _running(table):
        await _until(lambda: table.taken)
    assert sorted(table.cancelled) == [1, 2]


async def test_repeated_work_begins_at_once_when_it_is_woken() -> None:
    rounds, wake = 0, asyncio.Event()

    async def work() -> None:
        nonlocal rounds
        rounds += 1

    task = asyncio.create_task(repeat("counting", work, NEVER, wake))
    for expected in (1, 2, 3):
        await _until(lambda: rounds == expected)  # noqa: B023
        wake.set()
    task.cancel()
    await asyncio.wait((task,))


async def test_rows_that_are_due_at_a_time_are_taken_at_that_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = TimedTable()
    monkeypatch.setattr(due_work, "fetch", table.fetch_timed)
    async with _running(table, until_due=_UNTIL_DUE) as work:
        await _until(lambda: table.looks == 1)
        table.due_in = 0.02
        work.wake()
        await _until(lambda: table.looks == 2)
        assert table.statements == 0, "none is due"
        table.due, table.due_in = [1], 0
        await _until(lambda: table.taken == [1])
