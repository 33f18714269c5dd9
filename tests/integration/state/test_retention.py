"""What is over goes, with everything it had; what is somebody's history stays."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from models.db.database import fetch, open_pool
from models.db.queries import statements
from models.lifecycle import Status
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, reply, wait_for
from tests.support.stack import Databases
from tests.support.worker_rows import SeededDatabase, ending, settings_for


@pytest.fixture
async def house(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    dsn = await database_server.create_copy()
    pool = open_pool(settings_for(dsn), "retention-tests", 4)
    await pool.open(wait=True)
    house = SeededDatabase(pool, dsn)
    await house.create_project()
    yield house
    await pool.close()


async def _ended(house: SeededDatabase, previous: UUID | None = None) -> UUID:
    worker = await house.create_worker()
    name = await house.create_response(previous=previous)
    claim = await worker.ownership.take(name)
    assert claim is not None
    await worker.ownership.end(claim, ending(Status.COMPLETED, 2, 3))
    return name


async def _expire(house: SeededDatabase, *names: UUID) -> None:
    await fetch(
        house.pool,
        "UPDATE responses SET expires_at = now() - interval '1 second' WHERE id = ANY(%(ids)s)",
        {"ids": list(names)},
    )


async def _purge(house: SeededDatabase) -> set[UUID]:
    return {row["id"] for row in await fetch(house.pool, statements.PURGE, {})}


async def _rows_of(house: SeededDatabase, name: UUID) -> int:
    counted = "SELECT (SELECT count(*) FROM items WHERE response_id = %(id)s) + (SELECT count(*) FROM event_log WHERE response_id = %(id)s) AS n"
    found: int = (await fetch(house.pool, counted, {"id": name}))[0]["n"]
    return found


async def test_an_expired_response_goes_with_its_items_and_its_log(house: SeededDatabase) -> None:
    old, young = await _ended(house), await _ended(house)
    assert await _rows_of(house, old) > 0
    await _expire(house, old)
    assert await _purge(house) == {old}
    assert await _rows_of(house, old) == 0
    assert await _rows_of(house, young) > 0


@pytest.mark.parametrize("store", [True, False])
async def test_a_response_with_a_child_stays_until_the_child_is_gone(
    house: SeededDatabase, store: bool
) -> None:
    parent = await _ended(house)
    child = await _ended(house, previous=parent)
    await fetch(house.pool, "UPDATE responses SET store = %(store)s", {"store": store})
    await _expire(house, parent)
    assert await _purge(house) == set()
    await _expire(house, child)
    assert await _purge(house) == {child}
    assert await _purge(house) == {parent}


async def test_what_has_not_ended_is_never_purged(house: SeededDatabase) -> None:
    worker = await house.create_worker()
    queued, running = await house.create_response(), await house.create_response()
    await worker.ownership.take(running)
    await _expire(house, queued, running)
    assert await _purge(house) == set()


async def test_a_deleted_response_goes_although_it_has_a_child(house: SeededDatabase) -> None:
    parent = await _ended(house)
    await _ended(house, previous=parent)
    await fetch(house.pool, statements.REQUEST_DELETE, {"id": parent, "project": house.project})
    assert await _purge(house) == {parent}


async def test_a_purge_takes_a_hundred_at_a_time(house: SeededDatabase) -> None:
    ended = [await _ended(house) for _ in range(101)]
    await _expire(house, *ended)
    assert len(await _purge(house)) == 100
    assert len(await _purge(house)) == 1


async def test_the_setting_says_how_long_and_the_sweep_does_it(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    go = asyncio.Event()
    parent_model, child_model = (
        fake.script(reply("parent")),
        fake.script([wait_for(go), *reply("child")]),
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

        async def gone() -> bool:
            return (await api.call("GET", f"/responses/{alone['id']}")).status == 404

        await until(gone, 20)
        assert (await api.get(parent["id"]))["output_text"] == "parent"
        # Its own time is over as well, so only who follows it is sure to see its end before it goes.
        async with api.follow(child) as stream:
            await stream.until("response.in_progress")
            go.set()
            await stream.to_end()
            assert stream.final["output_text"] == "child"
