"""An expired response is purged with all its rows, unless a later response continues it."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from models.db.database import fetch, open_pool
from models.db.queries import end as end_queries
from models.db.queries import retention
from models.lifecycle import Status
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, reply, wait_for
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import SeededDatabase, ending, settings_for


@pytest.fixture
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    dsn = await database_server.create_copy()
    pool = open_pool(settings_for(dsn), "retention-tests", 4)
    await pool.open(wait=True)
    database = SeededDatabase(pool, dsn)
    await database.create_project()
    yield database
    await pool.close()


async def _create_ended(database: SeededDatabase, previous: UUID | None = None) -> UUID:
    worker = await database.create_worker()
    response_id = await database.create_response(previous=previous)
    claim = await worker.ownership.take(response_id)
    assert claim is not None
    await worker.ownership.end(claim, ending(Status.COMPLETED, 2, 3))
    return response_id


async def _expire(database: SeededDatabase, *response_ids: UUID) -> None:
    await run_sql(
        database.pool,
        "UPDATE responses SET expires_at = now() - interval '1 second' WHERE id = ANY(%(ids)s)",
        {"ids": list(response_ids)},
    )


async def _purge(database: SeededDatabase) -> set[UUID]:
    return set(await fetch(database.pool, retention.PURGE, {}))


async def _rows_of(database: SeededDatabase, response_id: UUID) -> int:
    count_rows = (
        "SELECT (SELECT count(*) FROM items WHERE response_id = %(id)s)"
        " + (SELECT count(*) FROM event_log WHERE response_id = %(id)s) AS n"
    )
    count: int = (await run_sql(database.pool, count_rows, {"id": response_id}))[0]["n"]
    return count


async def test_an_expired_response_is_purged_with_its_items_and_its_log(
    database: SeededDatabase,
) -> None:
    expired, recent = await _create_ended(database), await _create_ended(database)
    assert await _rows_of(database, expired) > 0
    await _expire(database, expired)
    assert await _purge(database) == {expired}
    assert await _rows_of(database, expired) == 0
    assert await _rows_of(database, recent) > 0


@pytest.mark.parametrize("store", [True, False])
async def test_a_response_that_another_continues_is_kept_until_that_one_is_purged(
    database: SeededDatabase, store: bool
) -> None:
    parent = await _create_ended(database)
    child = await _create_ended(database, previous=parent)
    await run_sql(database.pool, "UPDATE responses SET store = %(store)s", {"store": store})
    await _expire(database, parent)
    assert await _purge(database) == set()
    await _expire(database, child)
    assert await _purge(database) == {child}
    assert await _purge(database) == {parent}


async def test_an_open_response_is_never_purged(database: SeededDatabase) -> None:
    worker = await database.create_worker()
    queued, running = await database.create_response(), await database.create_response()
    await worker.ownership.take(running)
    await _expire(database, queued, running)
    assert await _purge(database) == set()


async def test_a_deleted_response_is_purged_although_another_continues_it(
    database: SeededDatabase,
) -> None:
    parent = await _create_ended(database)
    await _create_ended(database, previous=parent)
    await fetch(
        database.pool, end_queries.REQUEST_DELETE, {"id": parent, "project": database.project}
    )
    assert await _purge(database) == {parent}


async def test_a_purge_removes_at_most_a_hundred_responses(database: SeededDatabase) -> None:
    ended = [await _create_ended(database) for _ in range(101)]
    await _expire(database, *ended)
    assert len(await _purge(database)) == 100
    assert len(await _purge(database)) == 1


async def test_the_sweep_purges_a_response_after_the_retention_setting(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    parent_model, child_model = (
        fake.script(reply("parent")),
        fake.script([wait_for(released), *reply("child")]),
    )
    settings = {
        "BACKBURNER_RETENTION": "2",
        "BACKBURNER_WORKER__PURGE_INTERVAL": "0.2",
        "BACKBURNER_LEASE__SWEEP": "0.5",
    }
    async with private_stack(settings=settings) as stack:
        api = stack.api()
        alone = await api.create(fake.script(reply("alone")))
        parent = await api.create(parent_model)
        child = await api.create_background(child_model, previous_response_id=parent["id"])
        await until(lambda: fake.requests_for(child_model))

        async def is_deleted() -> bool:
            return (await api.call("GET", f"/responses/{alone['id']}")).status == 404

        await until(is_deleted, 20)
        assert (await api.get(parent["id"]))["output_text"] == "parent"
        # The child's retention has ended too: only a stream that follows it sees its end for sure.
        async with api.follow(child) as stream:
            await stream.until("response.in_progress")
            released.set()
            await stream.to_end()
            assert stream.final["output_text"] == "child"
