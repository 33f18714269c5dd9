"""What an archived project has open is cancelled in groups, whichever process dies in between."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from features.tenants import worker as archived_projects
from features.tenants.worker import cancel_archived
from models.db.database import fetch
from models.db.queries.organization import ARCHIVE_PROJECT
from models.due_work import DuePoll
from models.tasks import cancel_all
from tests.support.api import until
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import SeededDatabase, open_seeded_database


@pytest.fixture
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 2) as database:
        yield database


async def test_an_archived_project_is_cancelled_in_groups(
    database: SeededDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archived_projects, "_ROWS", 2)
    for _ in range(5):
        await database.create_response()

    async def left() -> int:
        count = "SELECT count(*) AS n FROM responses WHERE cancel_requested_at IS NULL"
        return int((await run_sql(database.pool, count))[0]["n"])

    async def is_marked() -> bool:
        [row] = await run_sql(database.pool, "SELECT cancelled FROM projects")
        return bool(row["cancelled"])

    async def are_none_left() -> bool:
        return not await left()

    await fetch(database.pool, ARCHIVE_PROJECT, {"id": database.project})
    assert await left() == 5
    poll = DuePoll(database.pool, "worker")
    works = (cancel_archived(database.pool, poll), poll.run())
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await until(are_none_left, 20)
        assert not await is_marked(), "a web process may not have noticed yet"
        await database.create_response()
        await until(are_none_left, 20)
        past = "UPDATE projects SET archived_at = archived_at - interval '1 hour'"
        await run_sql(database.pool, past)
        await until(is_marked, 20)
    finally:
        await cancel_all(tasks)
