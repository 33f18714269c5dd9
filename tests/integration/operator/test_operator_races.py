"""What operators request, raced against what owners, clients and other workers do (design §4.2, I10)."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from models.db.database import Row, fetch, open_pool
from models.db.queries import operations, statements
from models.errors import Cancelled
from models.lifecycle import Status
from models.ownership.claims import EndReason, ReleaseReason, Tail
from tests.support.stack import Databases
from tests.support.worker_rows import (
    DatabaseWorker,
    SeededDatabase,
    ending,
    frames,
    settings_for,
    turn,
)

ROUNDS = 20


@pytest.fixture(scope="module")
async def house(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    dsn = await database_server.create_copy()
    pool = open_pool(settings_for(dsn), "operator-races", 16)
    await pool.open(wait=True)
    house = SeededDatabase(pool, dsn)
    await house.create_project()
    yield house
    await pool.close()


async def _mine(worker: DatabaseWorker) -> dict[object, Row]:
    return {
        row["id"]: row
        for row in await fetch(worker.pool, statements.OWNED_RESPONSES, {"me": worker.id})
    }


async def _orphans(worker: DatabaseWorker, *, quarantine: bool) -> set[object]:
    values = {
        "waiting": timedelta(days=1),
        "most": 1000,
        "quarantine": quarantine,
        "lease": timedelta(seconds=10),
    }
    return {row["id"] for row in await fetch(worker.pool, statements.ORPHANS, values)}


async def test_a_fail_and_an_ending_race_and_the_ending_stands(house: SeededDatabase) -> None:
    owner = await house.create_worker()
    for _ in range(ROUNDS):
        name = await house.create_response()
        claim = await owner.ownership.take(name)
        assert claim is not None
        await asyncio.gather(
            owner.ownership.end(claim, ending(Status.COMPLETED, 2, 3)),
            fetch(house.pool, operations.REQUEST_FAIL, {"id": name}),
        )
        assert (await house.response_row(name))["status"] == "completed"
        assert await fetch(house.pool, operations.REQUEST_FAIL, {"id": name}) == []
        assert name not in await _mine(owner)


async def test_a_fail_and_a_cancel_race_and_the_cancel_wins(house: SeededDatabase) -> None:
    owner = await house.create_worker()
    for _ in range(ROUNDS):
        name = await house.create_response()
        claim = await owner.ownership.take(name)
        assert claim is not None
        failed, _, recorded = await asyncio.gather(
            owner.ownership.end(claim, ending(Status.FAILED, 2, 3)),
            fetch(house.pool, operations.REQUEST_FAIL, {"id": name}),
            fetch(house.pool, statements.REQUEST_CANCEL, {"id": name}),
            return_exceptions=True,
        )
        if recorded:
            assert isinstance(failed, Cancelled)
            assert await fetch(house.pool, operations.REQUEST_FAIL, {"id": name}) == []
            assert (await _mine(owner))[name]["cancelled"] is True
            await owner.ownership.end(claim, ending(Status.CANCELLED, 2, 3))
        assert (await house.response_row(name))["status"] == ("cancelled" if recorded else "failed")


async def test_a_fail_and_a_claim_race_and_whoever_claims_is_told(house: SeededDatabase) -> None:
    worker = await house.create_worker()
    for _ in range(ROUNDS):
        name = await house.create_response()
        claim, asked = await asyncio.gather(
            worker.ownership.take(name), fetch(house.pool, operations.REQUEST_FAIL, {"id": name})
        )
        assert asked
        assert claim is not None
        assert (claim.end_reason is EndReason.FAILED_BY_OPERATOR) or (await _mine(worker))[name][
            "failed"
        ] is True


async def test_a_queued_response_that_is_to_fail_is_swept_up_by_any_worker_and_only_ended(
    house: SeededDatabase,
) -> None:
    normal, alone = await house.create_worker(), await house.create_worker(quarantine=True)
    for taker in (normal, alone):
        name = await house.create_response()
        await fetch(house.pool, operations.REQUEST_FAIL, {"id": name})
        assert name in await _orphans(taker, quarantine=taker is alone)
        claim = await taker.ownership.take(name)
        assert claim is not None
        assert claim.end_reason is EndReason.FAILED_BY_OPERATOR


async def test_a_handed_over_response_that_is_to_fail_is_never_run_again_and_a_cancel_still_beats_it(
    house: SeededDatabase,
) -> None:
    owner, taker = await house.create_worker(), await house.create_worker()
    for cancels in (False, True):
        name = await house.create_response()
        claim = await owner.ownership.take(name)
        assert claim is not None
        await fetch(house.pool, operations.REQUEST_FAIL, {"id": name})
        if cancels:
            await fetch(house.pool, statements.REQUEST_CANCEL, {"id": name})
        await owner.ownership.release(claim, Tail(2, 1, b""))
        last = await taker.ownership.take(name)
        assert last is not None
        assert last.end_reason is (EndReason.CANCELLED if cancels else EndReason.FAILED_BY_OPERATOR)


async def test_a_requeue_and_an_ending_race_and_what_has_ended_is_nobodys(
    house: SeededDatabase,
) -> None:
    owner, other = await house.create_worker(), await house.create_worker()
    for _ in range(ROUNDS):
        name = await house.create_response()
        claim = await owner.ownership.take(name)
        assert claim is not None
        await asyncio.gather(
            owner.ownership.end(claim, ending(Status.COMPLETED, 2, 3)),
            fetch(house.pool, operations.REQUEST_REQUEUE, {"id": name}),
        )
        assert await other.ownership.take(name) is None
        assert name not in await _orphans(other, quarantine=False)
        assert (await house.response_row(name))["status"] == "completed"
        assert await fetch(house.pool, operations.REQUEST_REQUEUE, {"id": name}) == []


async def test_a_requeue_and_a_claim_race_and_the_response_has_one_owner(
    house: SeededDatabase,
) -> None:
    worker, other = await house.create_worker(), await house.create_worker()
    for _ in range(ROUNDS):
        name = await house.create_response()
        claim, asked = await asyncio.gather(
            worker.ownership.take(name), fetch(house.pool, operations.REQUEST_REQUEUE, {"id": name})
        )
        assert asked
        assert claim is not None
        assert await other.ownership.take(name) is None  # a request frees nothing
        if (await _mine(worker))[name]["requeued"]:
            await worker.ownership.release(claim, Tail(2, 1, b""), ReleaseReason.REQUEUED)
            again = await other.ownership.take(name)
            assert again is not None
            assert (again.row["deaths"], (await _mine(other))[name]["requeued"]) == (0, False)


async def test_a_requeue_of_what_nobody_runs_is_rung_by_the_next_sweep_and_only_once(
    house: SeededDatabase,
) -> None:
    name = await house.create_response()
    sweep = {"interval": timedelta(days=1), "lease": timedelta(seconds=10)}
    rung = await fetch(house.pool, statements.REENQUEUE, sweep)
    assert name not in {row["id"] for row in rung}
    await fetch(house.pool, operations.REQUEST_REQUEUE, {"id": name})
    assert name in await _orphans(await house.create_worker(), quarantine=False)
    assert name in {row["id"] for row in await fetch(house.pool, statements.REENQUEUE, sweep)}
    assert name not in {row["id"] for row in await fetch(house.pool, statements.REENQUEUE, sweep)}


async def test_a_drain_is_told_by_the_heartbeat_and_takes_nothing_by_force(
    house: SeededDatabase,
) -> None:
    for _ in range(ROUNDS):
        worker = await house.create_worker()
        name = await house.create_response()
        claim, asked = await asyncio.gather(
            worker.ownership.take(name),
            fetch(house.pool, operations.REQUEST_DRAIN, {"ids": [worker.id]}),
        )
        assert asked
        assert claim is not None
        [renewed] = await fetch(
            house.pool, statements.RENEW, {"me": worker.id, "lease": timedelta(seconds=600)}
        )
        assert renewed["draining"] is True
        assert (await worker.journal(1, name, 1, 2, 3))["me"] == 1
        await worker.ownership.release(claim, Tail(2, 3, frames(2, 3)))
    await house.declare_dead(worker)
    assert await fetch(house.pool, operations.REQUEST_DRAIN, {"ids": [worker.id]}) == []


async def test_every_attempt_is_noted_with_how_it_parted(house: SeededDatabase) -> None:
    name = await house.create_response()
    first, second, third = (
        await house.create_worker(),
        await house.create_worker(),
        await house.create_worker(),
    )
    await first.ownership.take(name)
    await house.declare_dead(first)
    claim = await second.ownership.take(name)
    assert claim is not None
    assert claim.seconds_lost is not None
    await second.ownership.checkpoint(claim, Tail(2, 4, frames(2, 4)), turn([], None))
    await second.ownership.release(claim, Tail(5, 4, b""), ReleaseReason.REQUEUED)
    await third.ownership.take(name)
    await third.ownership.release_unknown(name, 3)
    last = await second.ownership.take(name)
    assert last is not None
    assert last.seconds_lost is None
    await second.ownership.end(last, ending(Status.COMPLETED, 5, 6))
    rows = await fetch(house.pool, operations.ATTEMPTS, {"id": name})
    noted = [
        (
            row["attempt"],
            row["worker"],
            row["outcome"],
            len(row["turns_ended_at"]),
            row["ended_at"] is not None,
        )
        for row in rows
    ]
    assert noted == [
        (1, first.id, "died", 0, True),
        (2, second.id, "requeued", 1, True),
        (3, third.id, "returned", 0, True),
        (4, second.id, None, 0, False),
    ]
