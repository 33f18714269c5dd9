"""Requests of operators, raced against owners, clients and other workers (I10)."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest

from models.db.database import fetch
from models.db.queries import end as end_queries
from models.db.queries import leases, operations
from models.db.queries import sweep as sweep_queries
from models.errors import Cancelled
from models.lifecycle import Status
from models.ownership.claims import ReleaseReason
from models.ownership.steps import Tail
from models.ownership.takeover import EndReason
from tests.support.stack import Databases
from tests.support.worker_rows import (
    DatabaseWorker,
    SeededDatabase,
    ending,
    frames,
    open_seeded_database,
    turn,
)

ROUNDS = 20


@pytest.fixture(scope="module")
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 16) as database:
        yield database


async def _owned(worker: DatabaseWorker) -> dict[object, leases.OwnedResponse]:
    return {
        row.id: row for row in await fetch(worker.pool, leases.OWNED_RESPONSES, {"me": worker.id})
    }


async def _orphans(worker: DatabaseWorker, *, quarantine: bool) -> set[UUID]:
    values = {
        "waiting": timedelta(days=1),
        "max_rows": 1000,
        "quarantine": quarantine,
        "in_line": True,
    }
    return set(await fetch(worker.pool, sweep_queries.ORPHANS, values))


async def test_a_fail_and_an_ending_race_and_the_ending_is_kept(database: SeededDatabase) -> None:
    owner = await database.create_worker()
    for _ in range(ROUNDS):
        response_id = await database.create_response()
        claim = await owner.ownership.take(response_id)
        assert claim is not None
        await asyncio.gather(
            owner.ownership.end(claim, ending(Status.COMPLETED, 2, 3)),
            fetch(database.pool, operations.REQUEST_FAIL, {"id": response_id}),
        )
        assert (await database.response_row(response_id))["status"] == "completed"
        assert await fetch(database.pool, operations.REQUEST_FAIL, {"id": response_id}) == []
        assert response_id not in await _owned(owner)


async def test_a_fail_and_a_cancel_race_and_the_cancel_wins(database: SeededDatabase) -> None:
    owner = await database.create_worker()
    for _ in range(ROUNDS):
        response_id = await database.create_response()
        claim = await owner.ownership.take(response_id)
        assert claim is not None
        failed, _, recorded = await asyncio.gather(
            owner.ownership.end(claim, ending(Status.FAILED, 2, 3)),
            fetch(database.pool, operations.REQUEST_FAIL, {"id": response_id}),
            fetch(database.pool, end_queries.REQUEST_CANCEL, {"id": response_id}),
            return_exceptions=True,
        )
        if recorded:
            assert isinstance(failed, Cancelled)
            assert await fetch(database.pool, operations.REQUEST_FAIL, {"id": response_id}) == []
            assert (await _owned(owner))[response_id].cancelled is True
            await owner.ownership.end(claim, ending(Status.CANCELLED, 2, 3))
        assert (await database.response_row(response_id))["status"] == (
            "cancelled" if recorded else "failed"
        )


async def test_a_fail_and_a_claim_race_and_the_worker_that_claims_learns_of_the_fail(
    database: SeededDatabase,
) -> None:
    worker = await database.create_worker()
    for _ in range(ROUNDS):
        response_id = await database.create_response()
        claim, requested = await asyncio.gather(
            worker.ownership.take(response_id),
            fetch(database.pool, operations.REQUEST_FAIL, {"id": response_id}),
        )
        assert requested
        assert claim is not None
        assert (claim.end_reason is EndReason.FAILED_BY_OPERATOR) or (await _owned(worker))[
            response_id
        ].failed


async def test_a_queued_response_that_is_to_fail_is_claimed_by_any_worker_and_only_ended(
    database: SeededDatabase,
) -> None:
    normal, alone = await database.create_worker(), await database.create_worker(quarantine=True)
    for taker in (normal, alone):
        response_id = await database.create_response()
        await fetch(database.pool, operations.REQUEST_FAIL, {"id": response_id})
        assert response_id in await _orphans(taker, quarantine=taker is alone)
        claim = await taker.ownership.take(response_id)
        assert claim is not None
        assert claim.end_reason is EndReason.FAILED_BY_OPERATOR


async def test_a_released_response_that_is_to_fail_never_runs_again_and_a_cancel_wins_over_the_fail(
    database: SeededDatabase,
) -> None:
    owner, taker = await database.create_worker(), await database.create_worker()
    for cancels in (False, True):
        response_id = await database.create_response()
        claim = await owner.ownership.take(response_id)
        assert claim is not None
        await fetch(database.pool, operations.REQUEST_FAIL, {"id": response_id})
        if cancels:
            await fetch(database.pool, end_queries.REQUEST_CANCEL, {"id": response_id})
        await owner.ownership.release(claim, Tail(2, 1, b""))
        last = await taker.ownership.take(response_id)
        assert last is not None
        assert last.end_reason is (EndReason.CANCELLED if cancels else EndReason.FAILED_BY_OPERATOR)


async def test_a_requeue_and_an_ending_race_and_an_ended_response_is_not_claimed(
    database: SeededDatabase,
) -> None:
    owner, other = await database.create_worker(), await database.create_worker()
    for _ in range(ROUNDS):
        response_id = await database.create_response()
        claim = await owner.ownership.take(response_id)
        assert claim is not None
        await asyncio.gather(
            owner.ownership.end(claim, ending(Status.COMPLETED, 2, 3)),
            fetch(database.pool, operations.REQUEST_REQUEUE, {"id": response_id}),
        )
        assert await other.ownership.take(response_id) is None
        assert response_id not in await _orphans(other, quarantine=False)
        assert (await database.response_row(response_id))["status"] == "completed"
        assert await fetch(database.pool, operations.REQUEST_REQUEUE, {"id": response_id}) == []


async def test_a_requeue_and_a_claim_race_and_the_response_has_one_owner(
    database: SeededDatabase,
) -> None:
    worker, other = await database.create_worker(), await database.create_worker()
    for _ in range(ROUNDS):
        response_id = await database.create_response()
        claim, requested = await asyncio.gather(
            worker.ownership.take(response_id),
            fetch(database.pool, operations.REQUEST_REQUEUE, {"id": response_id}),
        )
        assert requested
        assert claim is not None
        assert await other.ownership.take(response_id) is None, "a request alone frees nothing"
        if (await _owned(worker))[response_id].requeued:
            await worker.ownership.release(claim, Tail(2, 1, b""), ReleaseReason.REQUEUED)
            next_claim = await other.ownership.take(response_id)
            assert next_claim is not None
            assert (next_claim.row.crashes, (await _owned(other))[response_id].requeued) == (
                0,
                False,
            )


async def test_a_requeue_of_a_response_without_an_owner_is_enqueued_once_by_the_next_sweep(
    database: SeededDatabase,
) -> None:
    response_id = await database.create_response()
    long_queues = dict.fromkeys(("interactive", "background", "quarantine"), False)
    sweep = {"interval": timedelta(days=1), **long_queues}
    enqueued = await fetch(database.pool, sweep_queries.REENQUEUE, sweep)
    assert response_id not in {row.id for row in enqueued}
    await fetch(database.pool, operations.REQUEST_REQUEUE, {"id": response_id})
    assert response_id in await _orphans(await database.create_worker(), quarantine=False)
    assert response_id in {
        row.id for row in await fetch(database.pool, sweep_queries.REENQUEUE, sweep)
    }
    assert response_id not in {
        row.id for row in await fetch(database.pool, sweep_queries.REENQUEUE, sweep)
    }


async def test_a_drain_reaches_the_worker_by_its_heartbeat_and_takes_nothing_by_force(
    database: SeededDatabase,
) -> None:
    for _ in range(ROUNDS):
        worker = await database.create_worker()
        response_id = await database.create_response()
        claim, requested = await asyncio.gather(
            worker.ownership.take(response_id),
            fetch(database.pool, operations.REQUEST_DRAIN, {"ids": [worker.id]}),
        )
        assert requested
        assert claim is not None
        renewal = {"me": worker.id, "lease": timedelta(seconds=600)} | leases.NO_LOOK
        [renewed] = await fetch(database.pool, leases.RENEW, renewal)
        assert renewed.draining is True
        assert (await worker.journal(1, response_id, 1, 2, 3)).live
        await worker.ownership.release(claim, Tail(2, 3, frames(2, 3)))
    await database.declare_dead(worker)
    assert await fetch(database.pool, operations.REQUEST_DRAIN, {"ids": [worker.id]}) == []


async def test_every_attempt_is_listed_with_its_outcome(database: SeededDatabase) -> None:
    response_id = await database.create_response()
    first, second, third = (
        await database.create_worker(),
        await database.create_worker(),
        await database.create_worker(),
    )
    await first.ownership.take(response_id)
    await database.declare_dead(first)
    claim = await second.ownership.take(response_id)
    assert claim is not None
    assert claim.seconds_lost is not None
    await second.ownership.checkpoint(claim, Tail(2, 4, frames(2, 4)), turn([], None))
    await second.ownership.release(claim, Tail(5, 4, b""), ReleaseReason.REQUEUED)
    await third.ownership.take(response_id)
    await third.ownership.release_unknown(response_id, 3)
    last = await second.ownership.take(response_id)
    assert last is not None
    assert last.seconds_lost is None
    await second.ownership.end(last, ending(Status.COMPLETED, 5, 6))
    rows = await fetch(database.pool, operations.ATTEMPTS, {"id": response_id})
    attempts = [
        (
            row.attempt,
            row.worker,
            row.outcome,
            len(row.turns_ended_at),
            row.ended_at is not None,
        )
        for row in rows
    ]
    assert attempts == [
        (1, first.id, "died", 0, True),
        (2, second.id, "requeued", 1, True),
        (3, third.id, "returned", 0, True),
        (4, second.id, None, 0, False),
    ]
