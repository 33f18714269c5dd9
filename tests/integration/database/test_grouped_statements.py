"""Claims and endings of many responses with one statement: each keeps its own outcome."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from uuid import UUID

import psycopg
import pytest

from models.db.database import BACKEND_PID, fetch, open_pool
from models.db.queries import end as end_queries
from models.errors import Cancelled, LeaseLost
from models.lifecycle import Status
from models.ownership.steps import Tail
from models.ownership.takeover import Claim
from tests.support.api import until
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import (
    DatabaseWorker,
    SeededDatabase,
    ending,
    frames,
    open_seeded_database,
    settings_for,
)


@pytest.fixture(scope="module")
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 16) as database:
        yield database


async def _take_all(worker: DatabaseWorker, ids: Sequence[UUID]) -> list[Claim]:
    claims = await asyncio.gather(*map(worker.ownership.take, ids))
    return [claim for claim in claims if claim is not None]


async def _transactions(database: SeededDatabase, ids: Sequence[UUID]) -> int:
    """How many transactions have written the present versions of these rows."""
    counts = await run_sql(
        database.pool,
        "SELECT count(DISTINCT xmin::text) FROM responses WHERE id = ANY(%(ids)s)",
        {"ids": list(ids)},
    )
    number: int = counts[0]["count"]
    return number


async def _waits_for_a_lock(database: SeededDatabase) -> bool:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    return bool(await run_sql(database.pool, waiting, {}))


async def test_claims_are_made_together_without_those_that_cannot_be_made(
    database: SeededDatabase,
) -> None:
    """A locked response keeps no other one waiting, and is claimed when its lock is gone."""
    worker = await database.create_worker()
    ids = [await database.create_response() for _ in range(8)]
    cancelled, deleted, locked, *others = ids
    values = {"id": cancelled, "completed_at": 1, "reason": None, "number": 2, "frames": b""}
    assert await fetch(database.pool, end_queries.CANCEL_QUEUED, values)
    await run_sql(
        database.pool, "DELETE FROM responses WHERE id = %(id)s RETURNING 1", {"id": deleted}
    )
    async with await psycopg.AsyncConnection.connect(database.dsn) as locking:
        await locking.execute("SELECT 1 FROM responses WHERE id = %s FOR UPDATE", [locked])
        taking = {each: asyncio.ensure_future(worker.ownership.take(each)) for each in ids}
        twice = asyncio.ensure_future(worker.ownership.take(others[0]))
        taken = await asyncio.gather(*(taking[each] for each in others))
        assert [claim and claim.id for claim in taken] == others
        assert (await twice, await taking[cancelled], await taking[deleted]) == (None, None, None)
        assert await _transactions(database, others) == 1
        await until(lambda: _waits_for_a_lock(database))
        assert not taking[locked].done()
    claim = await taking[locked]
    assert claim is not None
    assert claim.attempt == 1


async def test_a_claim_brings_the_input_and_the_credentials_of_its_response(
    database: SeededDatabase,
) -> None:
    """Long inputs and continuations are read later: only then can their size be counted."""
    worker = await database.create_worker()
    short, long, continuation = [
        await database.create_response(),
        await database.create_response(),
        await database.create_response(previous=UUID(int=1)),
    ]
    await run_sql(
        database.pool,
        "UPDATE items SET payload = jsonb_set(payload, '{content}',"
        " (SELECT jsonb_agg(md5(g::text)) FROM generate_series(1, 2000) g))"
        " WHERE response_id = %(id)s RETURNING 1",
        {"id": long},
    )
    await run_sql(
        database.pool,
        "INSERT INTO job_secrets (response_id, key_id, sealed) VALUES (%(id)s, 'k', 's')"
        " RETURNING 1",
        {"id": short},
    )
    rows = {claim.id: claim.row for claim in await _take_all(worker, [short, long, continuation])}
    item = {"id": "msg_1", "type": "message", "role": "user", "content": []}
    assert (rows[short].input, rows[long].input, rows[continuation].input) == ([item], None, None)
    assert (rows[short].secrets_key_id, rows[short].sealed_secrets) == ("k", b"s")
    assert (rows[long].secrets_key_id, rows[long].sealed_secrets) == (None, None)


async def test_endings_that_are_sent_together_have_their_own_outcomes(
    database: SeededDatabase,
) -> None:
    worker, other = await database.create_worker(), await database.create_worker()
    ids = [await database.create_response() for _ in range(8)]
    claims = await _take_all(worker, ids)
    cancelled, cancelled_in_time, lost, large, locked, *others = claims
    for claim in (cancelled, cancelled_in_time):
        await fetch(database.pool, end_queries.REQUEST_CANCEL, {"id": claim.id})
    await worker.ownership.release(lost, Tail(2, 1, b""))
    assert await other.ownership.take(lost.id) is not None
    endings = {claim.id: ending(Status.COMPLETED, 2, 4) for claim in claims}
    endings[cancelled_in_time.id] = ending(Status.CANCELLED, 2, 4)
    large_tail = Tail(2, 3000, frames(2, 3000))
    endings[large.id] = replace(endings[large.id], tail=large_tail)
    async with await psycopg.AsyncConnection.connect(database.dsn) as locking:
        await locking.execute("SELECT 1 FROM responses WHERE id = %s FOR UPDATE", [locked.id])
        tasks = {
            claim.id: asyncio.ensure_future(worker.ownership.end(claim, endings[claim.id]))
            for claim in claims
        }
        not_locked = [task for each, task in tasks.items() if each != locked.id]
        results = await asyncio.gather(*not_locked, return_exceptions=True)
        assert list(map(type, results)) == [Cancelled, bool, LeaseLost, *[bool] * 4]
        together = [claim.id for claim in (cancelled_in_time, *others)]
        assert await _transactions(database, together) == 1
        assert await _transactions(database, [*together, large.id]) == 2
        await until(lambda: _waits_for_a_lock(database))
        assert not tasks[locked.id].done()
    await tasks[locked.id]
    statuses = [(await database.response_row(claim.id))["status"] for claim in claims]
    assert statuses == ["in_progress", "cancelled", "in_progress", *["completed"] * 5]
    for claim in others:
        assert await database.log_ranges(claim.id) == [(0, 1, 0), (2, 4, 1)]
    assert await database.log_ranges(large.id) == [(0, 1, 0), (2, 3000, 1)]
    assert await database.log_ranges(cancelled.id) == [(0, 1, 0)]


async def test_an_ending_that_postgres_cannot_store_fails_no_other_ending(
    database: SeededDatabase,
) -> None:
    worker = await database.create_worker()
    claims = await _take_all(worker, [await database.create_response() for _ in range(4)])
    endings = [ending(Status.COMPLETED, 2, 4) for _ in claims]
    endings[1] = replace(endings[1], items=[{"id": "msg_1", "type": "message", "text": "\0"}])
    endings[2] = replace(endings[2], items=[{"id": "msg_1", "type": "message", "text": "\ud800"}])
    results = await asyncio.gather(
        *map(worker.ownership.end, claims, endings), return_exceptions=True
    )
    assert [isinstance(result, Exception) for result in results] == [False, True, True, False]
    statuses = [(await database.response_row(claim.id))["status"] for claim in claims]
    assert statuses == ["completed", "in_progress", "in_progress", "completed"]


async def test_endings_of_a_worker_that_was_declared_dead_change_nothing(
    database: SeededDatabase,
) -> None:
    worker = await database.create_worker()
    claims = await _take_all(worker, [await database.create_response() for _ in range(3)])
    await database.declare_dead(worker)
    results = await asyncio.gather(
        *(worker.ownership.end(claim, ending(Status.FAILED, 2, 4)) for claim in claims),
        return_exceptions=True,
    )
    assert list(map(type, results)) == [LeaseLost] * 3
    for claim in claims:
        assert (await database.response_row(claim.id))["status"] == "in_progress"
        assert await database.log_ranges(claim.id) == [(0, 1, 0)]


async def test_statements_that_come_one_after_another_run_in_one_session(
    database: SeededDatabase,
) -> None:
    """Their plans and caches are there, however many sessions a burst has opened."""
    async with (
        open_pool(settings_for(database.dsn), "sessions", 4) as pool,
        AsyncExitStack() as busy,
    ):
        burst = [await busy.enter_async_context(pool.connection()) for _ in range(4)]
        assert len({connection.info.backend_pid for connection in burst}) == 4
        await busy.aclose()
        pids = [(await fetch(pool, BACKEND_PID, {}))[0] for _ in range(5)]
    assert len(set(pids)) == 1


async def test_claims_and_endings_are_not_planned_each_time(database: SeededDatabase) -> None:
    async with open_pool(settings_for(database.dsn), "plans", 1) as pool:
        worker = DatabaseWorker(pool, settings_for(database.dsn))
        await database.register(worker)
        # psycopg prepares from the sixth execution on; Postgres keeps a plan five later.
        for _ in range(14):
            ids = [await database.create_response() for _ in range(3)]
            claims = [*await _take_all(worker, ids[:1]), *await _take_all(worker, ids[1:])]
            for claim in claims:
                await worker.ownership.end(claim, ending(Status.COMPLETED, 2, 4))
        kept = await run_sql(
            pool,
            "SELECT generic_plans FROM pg_prepared_statements"
            " WHERE (statement LIKE %(lock)s OR statement LIKE %(attempt)s)"
            " AND generic_plans + custom_plans >= 5",
            {"lock": "%FOR NO KEY UPDATE OF r SKIP LOCKED%", "attempt": "%INSERT INTO attempts%"},
        )
    # A claim alone, claims together, endings.
    assert len(kept) == 3
    assert all(row["generic_plans"] > 0 for row in kept)


async def test_endings_of_two_workers_at_once_have_their_own_costs(
    database: SeededDatabase,
) -> None:
    """No sum is a row for which endings wait, and none is lost."""
    workers = await database.create_worker(), await database.create_worker()
    cost, endings = 1, []
    for worker in workers:
        for claim in await _take_all(worker, [await database.create_response() for _ in range(6)]):
            one = replace(ending(Status.COMPLETED, 2, 4), turns=1, cost=None if cost > 8 else cost)
            endings.append(worker.ownership.end(claim, one))
            cost *= 2
    before = await _stored_costs(database)
    await asyncio.gather(*endings)
    after = await _stored_costs(database)
    assert [new - old for new, old in zip(after, before, strict=True)] == [12, 15, 8]


async def _stored_costs(database: SeededDatabase) -> list[int]:
    """How many entries there are, the sum of their costs, and how many have none."""
    [sums] = await run_sql(
        database.pool,
        "SELECT count(*) AS entries, coalesce(sum(cost), 0)::int AS cost,"
        " count(*) FILTER (WHERE cost IS NULL) AS unknown FROM usage_entries",
        {},
    )
    return [sums["entries"], sums["cost"], sums["unknown"]]
