"""Statements that run often touch no more pages, however many rows they do not need there are."""

from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import UUID

import pytest
from psycopg import IsolationLevel

from models.db.database import Connection, Pool, connect
from models.db.queries import claim, read, run
from models.db.statement import Query
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import SeededDatabase, open_seeded_database, settings_for


@pytest.fixture
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 4) as database:
        yield database


async def _pages_read(
    on: Pool | Connection, query: Query[Any], values: Mapping[str, object]
) -> int:
    """How many pages the statement touches at most, in memory or on disk. It is executed."""
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query.sql}"
    plan = (await run_sql(on, explain, values))[0]["QUERY PLAN"][0]["Plan"]
    # A CTE that writes may run after the rest; its pages are then not in those of the whole plan.
    writes = [part for part in plan.get("Plans", ()) if part["Node Type"] == "ModifyTable"]
    return sum(part["Shared Hit Blocks"] + part["Shared Read Blocks"] for part in (plan, *writes))


async def _fill_log(database: SeededDatabase, response: UUID, rows: int) -> None:
    """Adds rows with one event each, from number 2 on, as an attempt 1 flushes them."""
    await run_sql(
        database.pool,
        "INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)"
        " SELECT %(id)s, n, n, 1, 'frame' FROM generate_series(2, %(rows)s + 1) n",
        {"id": response, "rows": rows},
    )
    await run_sql(database.pool, "ANALYZE event_log")


async def test_the_end_of_a_long_log_is_read_without_the_rows_before_it(
    database: SeededDatabase,
) -> None:
    response = await database.create_response()
    await run_sql(database.pool, "UPDATE responses SET attempt = 2")
    await _fill_log(database, response, 14_400)
    page = {"id": response, "attempt": 1, "page": 1000, "bytes": 256 * 1024}
    for after in (14_395, 14_401):
        assert await _pages_read(database.pool, read.LOG_PAGE, page | {"after": after}) < 40


async def test_an_old_snapshot_does_not_make_flushes_and_reads_of_the_journal_slower(
    database: SeededDatabase,
) -> None:
    """While `pg_dump` runs, the batches that flushes have deleted stay in the table."""
    worker, response = await database.create_worker(), await database.create_response()
    await worker.ownership.take(response)
    snapshot = await connect(settings_for(database.dsn), "dump")
    await snapshot.set_isolation_level(IsolationLevel.REPEATABLE_READ)
    pages = []
    async with snapshot, snapshot.transaction():
        await run_sql(snapshot, "SET LOCAL idle_in_transaction_session_timeout = 0")
        await run_sql(snapshot, "SELECT count(*) FROM journal")
        for trimmed in (0, 5000):
            if trimmed:
                batches = {"me": worker.id, "id": response, "last": trimmed}
                await run_sql(database.pool, INSERT_BATCHES, batches)
                trim = {"trimmed": 1, "answered": trimmed}
                await worker.flush(response, 1, trimmed, trimmed, **trim)
            number = trimmed + 2
            await worker.journal(trimmed + 1, response, 1, number, number)
            trim = {"trimmed": trimmed, "answered": trimmed + 1}
            unflushed = {"ids": [response], "previous": [worker.id], "afters": [trimmed]}
            flush = worker.flush_values(response, 1, number, number, **trim)
            pages.append(
                [
                    await _pages_read(database.pool, read.LOG_PAGE, LOG_END | {"id": response}),
                    await _pages_read(database.pool, claim.UNFLUSHED_JOURNALS, unflushed),
                    await _pages_read(database.pool, run.FLUSH, flush),
                ]
            )
    assert all(after < before + 20 for before, after in zip(*pages, strict=True)), pages


INSERT_BATCHES = """
    INSERT INTO journal (worker, batch, response_ids, attempts, first_numbers, last_numbers, frames)
    SELECT %(me)s, n, ARRAY[%(id)s::uuid], '{1}', '{2}', '{2}', ARRAY['frame'::bytea]
    FROM generate_series(2, %(last)s) n
"""
LOG_END = {"attempt": 1, "page": 1000, "bytes": 256 * 1024, "after": 2**31 - 1}
