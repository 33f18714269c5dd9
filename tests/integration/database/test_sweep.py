"""What a sweep costs, and what a watch sees, with many responses and processes."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from models.db.database import Connection, fetch
from models.db.queries import leases, sweep
from models.db.statement import Query
from tests.support.api import until
from tests.support.sql import rows_read, run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import DatabaseWorker, SeededDatabase, open_seeded_database

OPEN_RESPONSES = 3000
SWEEP_VALUES = {
    "waiting": timedelta(seconds=5),
    "interval": timedelta(seconds=5),
    "max_rows": 250,
    "quarantine": False,
    "in_line": True,
    "background": True,
    "interactive": True,
}


@pytest.fixture(scope="module")
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 4) as database:
        yield database


async def _insert_running(database: SeededDatabase, owner: DatabaseWorker, number: int) -> None:
    await run_sql(
        database.pool,
        "INSERT INTO responses (id, project_id, status, background, store, model, parameters,"
        " created_at, expires_at, enqueued_at, deadline, attempt, started_at, worker)"
        " SELECT gen_random_uuid(), %(project)s, 'in_progress', true, true, 'm', '{}', now(),"
        " now() + interval '1 day', now() - interval '1 minute', now() + interval '1 day', 1,"
        " now(), %(owner)s FROM generate_series(1, %(number)s)",
        {"project": database.project, "owner": owner.id, "number": number},
    )


async def _insert_backlog(database: SeededDatabase, number: int, **seconds: int) -> None:
    """Queued responses that only wait. `enqueued`, `overdue`: seconds ago."""
    values = {"enqueued": 0, "overdue": -86400} | seconds
    await run_sql(
        database.pool,
        "INSERT INTO responses (id, project_id, status, background, store, model, parameters,"
        " created_at, expires_at, enqueued_at, deadline)"
        " SELECT gen_random_uuid(), %(project)s, 'queued', true, true, 'm', '{}', now(),"
        " now() + interval '1 day', now() - make_interval(secs => %(enqueued)s),"
        " now() - make_interval(secs => %(overdue)s) FROM generate_series(1, %(number)s)",
        {"project": database.project, "number": number, **values},
    )


@pytest.mark.parametrize(
    ("query", "selected"),
    [(sweep.ORPHANS, 10 + 20), (sweep.ORPHANS_TO_END, 20), (sweep.REENQUEUE, 0)],
    ids=["orphans", "to-end", "reenqueue"],
)
async def test_a_sweep_reads_neither_responses_of_live_workers_nor_the_backlog(
    database: SeededDatabase, query: Query[Any], selected: int
) -> None:
    await run_sql(database.pool, "DELETE FROM responses")
    live, dead = await database.create_worker(), await database.create_worker()
    await _insert_running(database, live, OPEN_RESPONSES)
    await _insert_running(database, dead, 10)
    await _insert_backlog(database, OPEN_RESPONSES)
    await _insert_backlog(database, 20, overdue=5)
    await _insert_backlog(database, 30, enqueued=30)
    await run_sql(database.pool, "ANALYZE responses, workers")
    await database.declare_dead(dead)
    async with (
        database.pool.connection() as connection,
        connection.transaction(force_rollback=True),
    ):
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {query.sql}"
        async with connection.transaction(force_rollback=True):
            cursor = await connection.execute(explain.encode(), SWEEP_VALUES)
            row = await cursor.fetchone()
        assert len(await fetch(connection, query, SWEEP_VALUES)) == selected
    assert row is not None
    assert sum(rows_read(row[0][0]["Plan"])) < 600


async def test_a_free_lock_means_nothing_before_a_process_was_tied(
    database: SeededDatabase,
) -> None:
    """A process that starts does not hold the lock yet."""
    worker = await database.create_worker()

    async def untied() -> bool:
        watched = await database.watched()
        return next(process.untied for process in watched if process.id == worker.id)

    assert not await untied()
    async with await Connection.connect(database.dsn, autocommit=True) as session:
        await fetch(session, leases.LOCK_TIE, {"me": worker.id})
        await session.execute(leases.MARK_TIED.sql, {"me": worker.id})
        assert not await untied()
        [seen] = await run_sql(
            database.pool, "SELECT expires_at FROM workers WHERE id = %(id)s", {"id": worker.id}
        )
        verdict = {"id": worker.id, "seen": seen["expires_at"]}
        assert not await fetch(database.pool, leases.REAP_LOCK_UNTIED, verdict)
    await until(untied)
    assert await fetch(database.pool, leases.REAP_LOCK_UNTIED, verdict) == [worker.id]
    renewal = {"me": worker.id, "lease": timedelta(seconds=600)} | leases.NO_LOOK
    await fetch(database.pool, leases.RENEW, renewal)
    assert not await fetch(database.pool, leases.REAP_LOCK_UNTIED, verdict), "renewed since"
