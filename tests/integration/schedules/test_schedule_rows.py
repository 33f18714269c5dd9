"""Rows of schedules: whose turn it is, what the purge deletes, and a clock that was set back."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from features.schedules import queries as statements
from features.schedules.archive import archive
from models.db.database import fetch
from models.ids import new_uuid
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import (
    SeededDatabase,
    open_seeded_database,
    run_purge,
    settings_for,
)

_INSERT = """
    INSERT INTO schedules (id, project_id, api_key_id, cron, missed, template, secret_key_id,
                           secrets, decided_until, upcoming, due_at, completed_at)
    VALUES (%(id)s, %(project)s, %(id)s, '0 * * * *', 'skip', '{"input": "x"}', 'k', 'secret',
            clock_timestamp() + %(decided)s::interval, ARRAY[clock_timestamp() + interval '1 hour'],
            clock_timestamp() + %(due)s::interval, clock_timestamp() + %(completed)s::interval)"""
_RUN = """
    INSERT INTO schedule_runs (id, schedule_id, slot, status, created_at)
    VALUES (gen_random_uuid(), %(id)s, clock_timestamp() + %(age)s::interval, 'created',
            clock_timestamp() + %(age)s::interval)"""
TAKE = {"lease": timedelta(seconds=20), "free": 3}


@pytest.fixture
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 2) as database:
        yield database


async def _add(database: SeededDatabase, **changes: Any) -> UUID:
    """A schedule; times are from now on."""
    schedule = new_uuid()
    values = {"id": schedule, "project": database.project, "decided": "0 s", "due": "1 hour"}
    await run_sql(database.pool, _INSERT, {**values, "completed": None, **changes})
    return schedule


async def _run(database: SeededDatabase, schedule: UUID, age: str) -> None:
    await run_sql(database.pool, _RUN, {"id": schedule, "age": age})


async def _left(database: SeededDatabase, table: str, column: str) -> set[UUID]:
    rows = await run_sql(database.pool, f"SELECT {column} AS id FROM {table}", {})
    return {row["id"] for row in rows}


async def test_projects_take_turns(database: SeededDatabase) -> None:
    other = new_uuid()
    sql = "INSERT INTO projects (id, name) VALUES (%(id)s, 'other')"
    await run_sql(database.pool, sql, {"id": other})
    first = [await _add(database, due=f"-{9 - number} minutes") for number in range(4)]
    late = await _add(database, project=other, due="-1 second")
    await _add(database, due="1 minute")
    assert await fetch(database.pool, statements.SECONDS_UNTIL_DUE, {}) < [0.0]
    taken = await fetch(database.pool, statements.TAKE_SCHEDULES, TAKE)
    assert {row.id for row in taken} == {first[0], late, first[1]}
    taken = await fetch(database.pool, statements.TAKE_SCHEDULES, TAKE)
    assert {row.id for row in taken} == set(first[2:])
    assert [row.crashes for row in taken] == [0, 0]
    assert not await fetch(database.pool, statements.TAKE_SCHEDULES, TAKE)
    [seconds] = await fetch(database.pool, statements.SECONDS_UNTIL_DUE, {})
    assert 10 < seconds <= 20, "until the leases end"


async def test_the_purge_deletes_what_is_old_or_deleted(database: SeededDatabase) -> None:
    kept, deleted = await _add(database), await _add(database)
    completed = await _add(database, due=None, completed="-31 days")
    lately = await _add(database, due=None, completed="-29 days")
    for schedule in (kept, deleted):
        for age in ("-31 days", "-29 days"):
            await _run(database, schedule, age)
    await fetch(database.pool, statements.DELETE_SCHEDULE, {"id": deleted})
    forgotten = "SELECT template, secrets, due_at FROM schedules WHERE id = %(id)s"
    [row] = await run_sql(database.pool, forgotten, {"id": deleted})
    assert row == {"template": {}, "secrets": None, "due_at": None}
    await run_purge(settings_for(database.dsn))
    assert await _left(database, "schedules", "id") == {kept, lately}
    assert completed not in {kept, lately}
    [count] = await run_sql(database.pool, "SELECT count(*) AS runs FROM schedule_runs", {})
    assert count["runs"] == 1


async def test_the_schedules_of_an_archived_project_are_deleted(database: SeededDatabase) -> None:
    await _add(database)
    async with database.pool.connection() as connection:
        await archive(connection, database.project)
    await run_purge(settings_for(database.dsn))
    assert await _left(database, "schedules", "id") == set()


async def test_no_schedule_waits_because_the_clock_was_set_back(database: SeededDatabase) -> None:
    """Its next slot was found by a clock that was a day ahead, or a process has taken it then. A
    slot that has run by that clock is not run again."""
    ahead = await _add(database, decided="1 day", due="25 hours")
    taken = await _add(database, decided="0 s", due="1 day")
    waits = await _add(database, decided="0 s", due="1 hour")
    await run_purge(settings_for(database.dsn))
    found = await fetch(database.pool, statements.TAKE_SCHEDULES, TAKE)
    assert {row.id for row in found} == {ahead, taken}
    assert all(row.decided_until <= row.now for row in found)
    assert waits not in {row.id for row in found}
    await _run(database, ahead, "1 hour")
    [slot] = await run_sql(database.pool, "SELECT slot FROM schedule_runs", {})
    nothing = dict.fromkeys(("skipped_after", "response", "error"))
    run = {"id": new_uuid(), "schedule": ahead, **slot, "status": "created", **nothing}
    assert not await fetch(database.pool, statements.INSERT_RUN, run | {"requested": False})
    assert await fetch(database.pool, statements.INSERT_RUN, run | {"requested": True})
