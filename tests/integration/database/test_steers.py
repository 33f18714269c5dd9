"""Steers race with endings on a real PostgreSQL: each is committed once, or returned."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

import pytest

from features.steering import queries
from models.db.database import Json, Jsonb, execute, fetch
from models.db.queries import steers
from models.db.queries.create import VOID_UNCLEAR_CREATES
from models.errors import Cancelled, LeaseLost, Steered
from models.ids import new_uuid
from models.lifecycle import Status
from models.ownership.creates import UnclearCreate, void_values
from models.ownership.steps import Steering, Successor
from models.ownership.takeover import Claim
from models.secrets import Sealed
from tests.support.sql import Record, run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import (
    DatabaseWorker,
    SeededDatabase,
    ending,
    frames,
    open_seeded_database,
)

OF_THE_RUN = {
    *("id", "status", "created_at", "started_at", "completed_at", "expires_at", "deadline"),
    *("worker", "attempt", "crashes", "enqueued_at", "enqueue_count", "resume_at", "confirmed"),
    *("cancel_requested_at", "delete_requested_at", "requeue_requested_at", "fail_requested_at"),
    *("turns", "checkpoint_number", "next_output_index", "unanswered_calls", "history_size"),
    *("usage", "upstream", "service_tier", "upstream_fields", "error", "reason", "failure"),
    *("previous_response_id", "conversation_id", "cache_key", "cache_ttl", "steers"),
    *("waits", "awaited", "retried_by", "window_ends_at", "urgent_at"),
}
"""Columns that a successor does not have from the response that it continues. All others are
settings of the request."""


@pytest.fixture(scope="module")
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 16) as database:
        yield database


async def _accept(database: SeededDatabase, response: UUID, word: str) -> bool:
    """Whether the steer is accepted."""
    items = [{"id": f"msg_{word}", "type": "message", "role": "user", "content": []}]
    values = {
        "steer": new_uuid(),
        "response": response,
        "project": database.project,
        "input": Json(word),
        "items": Jsonb(items),
        "size": 100,
        "max_pending": 16,
        "max_bytes": 10_000,
    }
    async with database.pool.connection() as connection, connection.transaction():
        [target] = await fetch(connection, queries.LOCK_TARGET, values)
        return target.status == "in_progress" and bool(
            await fetch(connection, queries.ACCEPT, values)
        )


async def _steering(worker: DatabaseWorker, claim: Claim) -> Steering | None:
    queued = await worker.ownership.queued_steers(claim)
    items = [item for steer in queued for item in steer.items or ()]
    if not items:
        return None
    sealed = Sealed("key", b"sealed")
    successor = Successor(new_uuid(), items, 1_800_000_000, [frames(0, 0), frames(1, 1)], sealed)
    return Steering(queued[0].steers, successor)


async def _end(worker: DatabaseWorker, claim: Claim) -> int:
    """Ends the response; returns how often it was tried."""
    steering, tries = None, 1
    while True:
        end = replace(ending(Status.COMPLETED, 2, 3), steering=steering)
        try:
            await worker.ownership.end(claim, end)
        except Steered:
            steering = await _steering(worker, claim)
            tries += 1
        else:
            return tries


async def _running(database: SeededDatabase, worker: DatabaseWorker) -> Claim:
    claim = await worker.ownership.take(await database.create_response())
    assert claim is not None
    return claim


async def _steers(database: SeededDatabase, response: UUID) -> list[Record]:
    query = "SELECT * FROM steers WHERE response_id = %(id)s ORDER BY number"
    return await run_sql(database.pool, query, {"id": response})


async def _successors(database: SeededDatabase, response: UUID) -> list[Record]:
    query = "SELECT * FROM responses WHERE previous_response_id = %(id)s"
    return await run_sql(database.pool, query, {"id": response})


async def test_what_is_accepted_while_a_response_ends_is_committed_once(
    database: SeededDatabase,
) -> None:
    worker = await database.create_worker()
    for _ in range(20):
        claim = await _running(database, worker)
        words = [f"word{number}" for number in range(5)]
        *accepted, _ = await asyncio.gather(
            *(_accept(database, claim.id, word) for word in words), _end(worker, claim)
        )
        rows = await _steers(database, claim.id)
        assert len(rows) == sum(accepted)
        assert {row["state"] for row in rows} <= {"committed"}
        successors = await _successors(database, claim.id)
        assert len(successors) == bool(rows)
        for successor in successors:
            query = "SELECT item_id FROM items WHERE response_id = %(id)s ORDER BY position"
            stored = await run_sql(database.pool, query, {"id": successor["id"]})
            sent = {f"msg_{word}" for word, is_in in zip(words, accepted, strict=True) if is_in}
            assert len(stored) == len(sent)
            assert {row["item_id"] for row in stored} == sent
        assert not await _accept(database, claim.id, "late")


async def test_a_successor_has_the_settings_of_the_response(database: SeededDatabase) -> None:
    worker = await database.create_worker()
    claim = await _running(database, worker)
    others = """
        UPDATE responses SET parameters = '{"user": "u", "instructions": "i"}', lane = 2,
               waiter = %(any)s, web = %(any)s, api_key_id = %(any)s, traceparent = 't',
               request_id = 'req', kept_for = interval '1 hour'
        WHERE id = %(id)s
    """
    await run_sql(database.pool, others, {"id": claim.id, "any": new_uuid()})
    assert await _accept(database, claim.id, "more")
    assert await _end(worker, claim) > 1
    row = await database.response_row(claim.id)
    [successor] = await _successors(database, claim.id)
    settings = row.keys() - OF_THE_RUN
    assert {name for name in settings if row[name] != successor[name]} == set()
    assert successor["status"] == "queued"
    assert await database.log_ranges(successor["id"]) == [(0, 1, 0)]
    secret = await run_sql(
        database.pool, "SELECT sealed FROM job_secrets WHERE response_id = %(id)s", successor
    )
    assert [one["sealed"] for one in secret] == [b"sealed"]
    # A worker claims it as any other.
    assert await worker.ownership.take(successor["id"]) is not None


async def test_an_ending_that_is_sent_twice_makes_one_successor(database: SeededDatabase) -> None:
    worker = await database.create_worker()
    claim = await _running(database, worker)
    assert await _accept(database, claim.id, "more")
    end = replace(ending(Status.COMPLETED, 2, 3), steering=await _steering(worker, claim))
    for _ in range(2):
        await worker.ownership.end(claim, end)
    assert len(await _successors(database, claim.id)) == 1


@pytest.mark.parametrize("required", [None, [{"type": "mcp_approval_response"}]])
async def test_without_a_successor_steers_wait_or_go_back(
    database: SeededDatabase, required: list[dict[str, str]] | None
) -> None:
    worker = await database.create_worker()
    claim = await _running(database, worker)
    assert await _accept(database, claim.id, "more")
    steering = Steering(1, required_input=required)
    await worker.ownership.end(claim, replace(ending(Status.COMPLETED, 2, 3), steering=steering))
    [steer] = await _steers(database, claim.id)
    failed = ("failed", "successor_creation_failed", None)
    outcome = (steer["state"], steer["error_code"], steer["required_input"])
    assert outcome == (failed if required is None else ("pending", None, required))
    assert not await _successors(database, claim.id)


async def test_steers_of_a_create_that_was_voided_wait_for_the_next_one(
    database: SeededDatabase,
) -> None:
    """Its client got a 503, and sends it again."""
    worker, web = await database.create_worker(), await database.create_worker(kind="web")
    claim = await _running(database, worker)
    assert await _accept(database, claim.id, "more")
    waits = Steering(1, required_input=[{"type": "mcp_approval_response"}])
    await worker.ownership.end(claim, replace(ending(Status.COMPLETED, 2, 3), steering=waits))
    created = [await database.create_response(previous=claim.id, web=web.id) for _ in range(2)]
    for create in created:
        [pending] = await fetch(database.pool, steers.PENDING_STEERS, {"id": claim.id})
        assert [item["id"] for item in pending.items] == ["msg_more"]
        values = {"id": claim.id, "successor": create, "steers": [pending.id]}
        assert await fetch(database.pool, steers.COMMIT_PENDING, values)
        assert not await fetch(database.pool, steers.PENDING_STEERS, {"id": claim.id})
        if create == created[0]:
            voided = void_values([UnclearCreate(create, database.project, 1)], web.id)
            await execute(database.pool, VOID_UNCLEAR_CREATES, voided)
            await execute(database.pool, steers.RETURN_VOIDED, voided)
    [steer] = await _steers(database, claim.id)
    assert (steer["state"], steer["successor_id"]) == ("committed", created[1])


async def test_a_recorded_cancel_comes_before_the_steers(database: SeededDatabase) -> None:
    worker = await database.create_worker()
    claim = await _running(database, worker)
    assert await _accept(database, claim.id, "more")
    cancel = "UPDATE responses SET cancel_requested_at = now() WHERE id = %(id)s"
    await run_sql(database.pool, cancel, {"id": claim.id})
    with pytest.raises(Cancelled):
        await _end(worker, claim)
    await worker.ownership.end(claim, ending(Status.CANCELLED, 2, 3))
    [steer] = await _steers(database, claim.id)
    assert (steer["state"], steer["error_code"]) == ("failed", "response_not_active")
    assert not await _successors(database, claim.id)


async def test_a_dead_owner_makes_no_successor(database: SeededDatabase) -> None:
    worker, other = await database.create_worker(), await database.create_worker()
    claim = await _running(database, worker)
    assert await _accept(database, claim.id, "more")
    steering = await _steering(worker, claim)
    await database.declare_dead(worker)
    with pytest.raises(LeaseLost):
        await worker.ownership.end(
            claim, replace(ending(Status.COMPLETED, 2, 3), steering=steering)
        )
    assert not await _successors(database, claim.id)
    taken = await other.ownership.take(claim.id)
    assert taken is not None
    await _end(other, taken)
    assert len(await _successors(database, claim.id)) == 1


async def test_an_ending_of_a_worker_of_0_1_0_returns_the_steers(database: SeededDatabase) -> None:
    """It does not look at the column `steers`."""
    worker = await database.create_worker()
    claim = await _running(database, worker)
    assert await _accept(database, claim.id, "more")
    end = "UPDATE responses SET status = 'completed', worker = NULL WHERE id = %(id)s"
    await run_sql(database.pool, end, {"id": claim.id})
    [steer] = await _steers(database, claim.id)
    assert (steer["state"], steer["error_code"]) == ("failed", "successor_creation_failed")
    assert steer["input"] == "more"
