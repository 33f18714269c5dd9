"""An expired response is purged with all its rows, unless a later response continues it."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from models.config.groups import WorkerSettings
from models.db.arrays import Uuids
from models.db.database import connect, fetch, open_pool
from models.db.queries import end as end_queries
from models.db.queries import read, retention
from models.ids import new_uuid
from models.lifecycle import Status
from models.tasks import cancel_all
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.audit import AUDITED
from tests.support.batches import line, results, start, until_status
from tests.support.fake_upstream import FakeUpstream, hang, reply, text, wait_for
from tests.support.sql import run_sql
from tests.support.stack import ROOT, SHORT_LEASES, Databases
from tests.support.worker_rows import (
    SeededDatabase,
    ending,
    open_seeded_database,
    run_purge,
    settings_for,
)
from worker.process import purge as purge_module
from worker.process.purge import Purger


@pytest.fixture
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 4) as database:
        yield database


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


async def _all_ids(database: SeededDatabase) -> set[UUID]:
    return {row["id"] for row in await run_sql(database.pool, "SELECT id FROM responses")}


async def _purge(database: SeededDatabase) -> set[UUID]:
    """The responses that one round of the purge has deleted."""
    before = await _all_ids(database)
    await run_purge(settings_for(database.dsn))
    return before - await _all_ids(database)


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
    assert await _purge(database) == {child, parent}


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
        database.pool,
        end_queries.REQUEST_DELETE,
        {"id": parent, "project": database.project, **AUDITED},
    )
    assert await _purge(database) == {parent}


async def test_one_statement_deletes_and_cancels(database: SeededDatabase) -> None:
    """A web process that dies behind it leaves nothing that runs to its own end."""
    worker = await database.create_worker()
    queued, running = await database.create_response(), await database.create_response()
    await worker.ownership.take(running)
    ended = await _create_ended(database)
    for response in (queued, running, ended):
        values = {"id": response, "project": database.project, **AUDITED}
        await fetch(database.pool, end_queries.REQUEST_DELETE, values)
    cancelled = "SELECT id FROM responses WHERE cancel_requested_at IS NOT NULL"
    rows = await run_sql(database.pool, cancelled)
    assert {row["id"] for row in rows} == {queued, running}


async def _create_chain(database: SeededDatabase, length: int) -> list[UUID]:
    """The ids of a chain of expired responses, the first one first."""
    ids = [new_uuid() for _ in range(length)]
    await run_sql(database.pool, INSERT_CHAIN, {"ids": ids, "project": database.project})
    return ids


INSERT_CHAIN = """
    WITH chain AS (
        INSERT INTO responses (id, project_id, status, background, store, model, parameters,
                               previous_response_id, created_at, completed_at, expires_at,
                               deadline, enqueued_at)
        SELECT id, %(project)s, 'completed', true, true, 'm', '{}', lag(id) OVER (ORDER BY nr),
               now(), now(), now() - interval '1 second', now(), now()
        FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS t (id, nr) RETURNING id
    )
    INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)
    SELECT id, 0, 1, 1, '' FROM chain
"""


async def test_a_whole_chain_of_expired_responses_is_hidden_at_once(
    database: SeededDatabase,
) -> None:
    chain = await _create_chain(database, 1000)
    async with database.pool.connection() as connection, connection.transaction():
        (hidden,) = await fetch(connection, retention.HIDE_EXPIRED, FROM_THE_START)
        assert (hidden.examined, hidden.hidden) == (1000, 1000)
    assert await _purge(database) == set(chain)


FROM_THE_START = {
    "expires_at": datetime.min.replace(tzinfo=UTC),
    "id": UUID(int=0),
    "rows": 5000,
}


async def test_what_two_branches_continue_is_kept_until_both_have_expired(
    database: SeededDatabase,
) -> None:
    """The first branch is two responses long; the last one of the second is kept."""
    root, fork, *first = await _create_chain(database, 4)
    second = await _create_ended(database, previous=fork)
    last = await _create_ended(database, previous=second)
    await _expire(database, second)
    assert await _purge(database) == set(first)
    await _expire(database, last)
    assert await _purge(database) == {root, fork, second, last}


async def test_expired_responses_that_are_kept_are_looked_at_in_parts(
    database: SeededDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight are kept by a ninth; behind them in time is one that nothing continues."""
    chain = await _create_chain(database, 8)
    await _create_ended(database, previous=chain[-1])
    alone = await _create_ended(database)
    await run_sql(
        database.pool,
        "UPDATE responses SET expires_at = now() - interval '1 minute' WHERE id = ANY(%(ids)s)",
        {"ids": chain},
    )
    await _expire(database, alone)
    monkeypatch.setattr(purge_module, "_ROWS", {"rows": 3})
    monkeypatch.setattr(purge_module, "MAX_ROWS", 3)
    monkeypatch.setattr(purge_module, "_MAX_IDLE_STEPS", 1)
    purger = Purger(settings_for(database.dsn), "purging", None)
    deleted = []
    for _ in range(4):
        before = await _all_ids(database)
        async with await connect(settings_for(database.dsn), "purging") as connection:
            await purger.purge(connection)
        deleted.append(before - await _all_ids(database))
    assert deleted == [set(), set(), {alone}, set()]


async def test_a_response_that_is_kept_longer_in_the_same_moment_keeps_those_before_it(
    database: SeededDatabase,
) -> None:
    """A WebSocket extends the time of its last response while a purge hides the chain."""
    parent = await _create_ended(database)
    child = await _create_ended(database, previous=parent)
    await _expire(database, parent, child)
    await run_sql(database.pool, "UPDATE responses SET store = false")
    async with database.pool.connection() as socket, socket.transaction():
        values = {"ids": [child], "lifetime": timedelta(hours=1)}
        await fetch(socket, retention.EXTEND_UNSTORED, values)
        purging = asyncio.create_task(run_purge(settings_for(database.dsn)))

        async def waits_for_the_row() -> bool:
            waiting = (
                "SELECT 1 FROM pg_stat_activity"
                " WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            return bool(await run_sql(database.pool, waiting))

        await until(waits_for_the_row, every=0.005)
    with pytest.raises(psycopg.OperationalError):  # a conflict, or a lock that was not free soon
        await purging
    assert await _purge(database) == set()


async def test_one_worker_purges_until_its_session_ends(database: SeededDatabase) -> None:
    expired = await _create_ended(database)
    await _expire(database, expired)
    settings = settings_for(database.dsn).model_copy(
        update={"worker": WorkerSettings(purge_interval=timedelta(seconds=0.05))}
    )
    async with await connect(settings, "other") as other:

        async def is_free() -> bool:
            return bool(await fetch(other, retention.LOCK_PURGE, {"key": purge_module._LOCK}))

        purging = asyncio.create_task(Purger(settings, "purging", None).run())
        await until(lambda: _is_gone(database, expired))
        assert not await is_free()
        await cancel_all([purging])
        await until(is_free)


async def _is_gone(database: SeededDatabase, response: UUID) -> bool:
    return response not in await _all_ids(database)


async def test_a_long_log_is_deleted_in_parts_and_its_readers_never_see_a_part_of_it(
    database: SeededDatabase,
) -> None:
    (response,) = await _create_chain(database, 1)
    await run_sql(
        database.pool,
        "INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)"
        " SELECT %(id)s, n, n, 1, 'frame' FROM generate_series(2, 14400) n",
        {"id": response},
    )
    await fetch(
        database.pool,
        end_queries.REQUEST_DELETE,
        {"id": response, "project": database.project, **AUDITED},
    )
    page = {"id": response, "after": 7000, "attempt": 1, "page": 64, "bytes": 4096}
    assert len(await fetch(database.pool, read.LOG_PAGE, page)) == 64
    parts = {"ids": [response], "rows": 5000, "begins": Uuids([]), "ends": Uuids([])}
    assert await fetch(database.pool, retention.DELETE_LOG, parts) == [5000]
    assert await fetch(database.pool, read.LOG_PAGE, page) == []
    assert await _purge(database) == {response}


async def test_a_shorter_retention_reaches_older_responses_by_the_documented_statement(
    database: SeededDatabase,
) -> None:
    """`expires_at` is stored with the response: the setting alone changes only new ones."""
    old, new = await _create_ended(database), await _create_ended(database)
    await run_sql(
        database.pool,
        "UPDATE responses SET created_at = now() - interval '8 days',"
        " expires_at = now() + interval '22 days' WHERE id = %(id)s",
        {"id": old},
    )
    assert await _purge(database) == set()
    (statement,) = re.findall(
        r"```sql\n(UPDATE responses SET expires_at.*?)```", OPERATIONS, re.DOTALL
    )
    await run_sql(database.pool, statement)
    assert await _purge(database) == {old}
    assert await _rows_of(database, new) > 0


OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


async def test_processes_that_died_long_ago_are_forgotten_unless_a_response_names_them(
    database: SeededDatabase,
) -> None:
    owner, web, other, recent = [await database.create_worker() for _ in range(4)]
    running, waiting = await database.create_response(), await database.create_response(web=web.id)
    await owner.ownership.take(running)
    await run_sql(
        database.pool,
        "UPDATE workers SET dead = true, expires_at = now() - interval '2 hours'"
        " WHERE id <> %(id)s",
        {"id": recent.id},
    )
    await run_purge(settings_for(database.dsn))
    left = {row["id"] for row in await run_sql(database.pool, "SELECT id FROM workers")}
    assert left == {owner.id, web.id, recent.id}
    trimmed = "SELECT 1 FROM journal WHERE worker = %(id)s"
    assert not await run_sql(database.pool, trimmed, {"id": other.id})
    assert waiting in await _all_ids(database)


PLAN_OF = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "


async def test_a_purge_with_nothing_to_do_reads_no_more_in_a_large_table(
    database: SeededDatabase,
) -> None:
    await run_sql(
        database.pool,
        """
        INSERT INTO responses (id, project_id, status, background, store, model, parameters,
                               created_at, completed_at, expires_at, deadline, enqueued_at)
        SELECT gen_random_uuid(), %(project)s, 'completed', true, true, 'm', '{}',
               now(), now(), now() + interval '1 day', now(), now()
        FROM generate_series(1, 20000)
        """,
        {"project": database.project},
    )
    await run_sql(
        database.pool,
        """
        INSERT INTO idempotency_keys (project_id, key, body_hash, response_id, expires_at)
        SELECT project_id, id::text, '', id, expires_at FROM responses
        """,
    )
    await run_sql(database.pool, "ANALYZE responses, idempotency_keys")
    values = FROM_THE_START | {"items": 5000}
    for query in (
        retention.HIDE_EXPIRED,
        retention.DELETABLE,
        retention.DELETE_OLD_WORKERS,
        retention.DELETE_EXPIRED_KEYS,
    ):
        (row,) = await run_sql(database.pool, PLAN_OF + query.sql, values)
        plan = row["QUERY PLAN"][0]["Plan"]
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 50, query.sql


async def test_a_worker_purges_a_response_after_the_retention_setting(
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
        # The child has run for longer than its retention, which counts from its end.
        released.set()
        assert (await api.wait_for_end(child))["output_text"] == "child"


async def test_the_results_of_a_batch_are_not_purged_before_they_are_collected(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """Two of three lines have ended, and wait for the third to be collected together."""
    released = asyncio.Event()
    quick, slow = (
        fake.script(reply("a"), reply("b")),
        fake.script([wait_for(released), *reply("c")]),
    )
    settings = {
        "BACKBURNER_RETENTION": "0.5",
        "BACKBURNER_WORKER__PURGE_INTERVAL": "0.1",
    }
    async with private_stack(settings=settings) as stack:
        client = stack.openai()
        batch = await start(client, [line("a", quick), line("b", quick), line("c", slow)])
        ended = (
            "SELECT count(*) FROM responses"
            " WHERE expires_at < clock_timestamp() AND status = 'completed'"
        )

        async def have_expired() -> bool:
            return bool(await stack.value(ended) == 2)

        await until(have_expired, 20)
        alone = await stack.api().create(fake.script(reply("alone")))

        async def has_purged() -> bool:
            return (await stack.api().call("GET", f"/responses/{alone['id']}")).status == 404

        await until(has_purged, 20)
        released.set()
        done = await until_status(client, batch, "completed")
        assert (await results(client, done.output_file_id)).keys() == {"a", "b", "c"}


@pytest.mark.long
async def test_a_backlog_of_the_purge_delays_no_recovery(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """A chain of a thousand responses has expired when a worker is killed."""
    settings = SHORT_LEASES | {"BACKBURNER_WORKER__PURGE_INTERVAL": "0.2"}
    async with private_stack(settings=settings) as stack:
        model = fake.script([text("unfinished"), hang()], reply("finished"))
        response = await stack.api().create_background(model)
        await until(lambda: fake.requests_for(model))
        async with open_pool(settings_for(stack.dsn), "seeding", 1) as pool:
            database = SeededDatabase(pool, stack.dsn)
            await database.create_project()
            chain = await _create_chain(database, 1000)
        await stack.start_worker()
        stack.kill(stack.workers[0])
        ended = await stack.api().wait_for_end(response, 15)
        assert ended["output_text"] == "finished"

        async def is_purged() -> bool:
            left = "SELECT count(*) FROM responses WHERE id = ANY(%s)"
            return bool(await stack.value(left, chain) == 0)

        await until(is_purged)
