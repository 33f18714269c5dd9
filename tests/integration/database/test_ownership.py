"""The statements that everything hangs on, raced against each other on a real Postgres (design §4.2-§4.6, §5.1)."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from models.db.database import fetch, fetch_on, open_pool
from models.db.queries import statements
from models.errors import Cancelled, LeaseLost
from models.ids import new_uuid
from models.lifecycle import Status
from models.ownership.claims import EndReason, Tail
from tests.support.stack import Databases
from tests.support.worker_rows import SeededDatabase, ending, frames, settings_for, turn


@pytest.fixture(scope="module")
async def house(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    dsn = await database_server.create_copy()
    pool = open_pool(settings_for(dsn), "ownership-tests", 16)
    await pool.open(wait=True)
    house = SeededDatabase(pool, dsn)
    await house.create_project()
    yield house
    await pool.close()


async def test_of_many_claims_of_one_fresh_response_exactly_one_wins(house: SeededDatabase) -> None:
    workers = [await house.create_worker() for _ in range(4)]
    for _ in range(25):
        name = await house.create_response()
        claims = await asyncio.gather(
            *(worker.ownership.take(name) for worker in workers for _ in range(2))
        )
        won = [claim for claim in claims if claim is not None]
        assert len(won) == 1
        standing = await house.response_row(name)
        assert (standing["attempt"], standing["deaths"], standing["status"]) == (
            1,
            0,
            "in_progress",
        )


async def test_a_live_owner_keeps_its_response(house: SeededDatabase) -> None:
    owner, other = await house.create_worker(), await house.create_worker()
    name = await house.create_response()
    assert await owner.ownership.take(name) is not None
    assert await other.ownership.take(name) is None
    assert await owner.ownership.take(name) is None
    assert (await house.response_row(name))["worker"] == owner.id


async def test_an_expired_lease_alone_frees_nothing(house: SeededDatabase) -> None:
    owner, other = await house.create_worker(lease=-60), await house.create_worker()
    name = await house.create_response()
    assert await owner.ownership.take(name) is not None
    assert await other.ownership.take(name) is None


async def test_of_many_takers_of_an_orphan_exactly_one_wins_and_adopts_its_journal(
    house: SeededDatabase,
) -> None:
    takers = [await house.create_worker() for _ in range(4)]
    for _ in range(15):
        owner = await house.create_worker()
        name = await house.create_response()
        claim = await owner.ownership.take(name)
        assert claim is not None
        await owner.flush(name, 1, 2, 4)
        await owner.journal(1, name, 1, 3, 6)
        await owner.journal(2, name, 1, 7, 9)
        await house.declare_dead(owner)
        won = [
            claim
            for claim in await asyncio.gather(*(taker.ownership.take(name) for taker in takers))
            if claim is not None
        ]
        assert len(won) == 1
        assert (won[0].attempt, won[0].log_end, won[0].row["deaths"]) == (2, 9, 1)
        assert b"".join(block for _, block in won[0].frames) == frames(2, 9)
        assert await house.log_ranges(name) == [(0, 1, 0), (2, 4, 1), (5, 6, 1), (7, 9, 1)]


async def test_a_take_that_rolls_back_leaves_the_previous_owner_on_record(
    house: SeededDatabase,
) -> None:
    owner, taker = await house.create_worker(), await house.create_worker()
    name = await house.create_response()
    await owner.ownership.take(name)
    await owner.journal(1, name, 1, 2, 5)
    await house.declare_dead(owner)
    async with house.pool.connection() as connection, connection.transaction(force_rollback=True):
        values = {"me": taker.id, "id": name, "wall_clock": timedelta(hours=1)}
        assert await taker.ownership._take_over(connection, values) is not None
    standing = await house.response_row(name)
    assert (standing["worker"], standing["attempt"]) == (owner.id, 1)
    assert await house.log_ranges(name) == [(0, 1, 0)]
    again = await taker.ownership.take(name)
    assert again is not None
    assert again.log_end == 5


async def test_beyond_a_hole_in_the_journal_nothing_is_adopted(house: SeededDatabase) -> None:
    owner, taker = await house.create_worker(), await house.create_worker()
    name = await house.create_response()
    await owner.ownership.take(name)
    await owner.journal(1, name, 1, 2, 3)
    await owner.journal(2, name, 1, 6, 8)
    await house.declare_dead(owner)
    claim = await taker.ownership.take(name)
    assert claim is not None
    assert claim.log_end == 3


async def test_a_worker_declared_dead_can_write_nothing(house: SeededDatabase) -> None:
    owner = await house.create_worker()
    name, queued = await house.create_response(), await house.create_response()
    claim = await owner.ownership.take(name)
    assert claim is not None
    await house.declare_dead(owner)
    before = await house.response_row(name)
    assert (await owner.journal(1, name, 1, 2, 3))["me"] == 0
    assert await owner.flush(name, 1, 2, 3) == []
    for write in (
        owner.ownership.end(claim, ending(Status.COMPLETED, 2, 3)),
        owner.ownership.end(claim, ending(Status.CANCELLED, 2, 3)),
        owner.ownership.checkpoint(claim, Tail(2, 3, frames(2, 3)), turn([], None)),
        owner.ownership.release(claim, Tail(2, 3, frames(2, 3))),
        owner.ownership.take(queued),
    ):
        with pytest.raises(LeaseLost):
            await write
    assert await house.response_row(name) == before
    assert await house.log_ranges(name) == [(0, 1, 0)]
    assert (await house.response_row(queued))["attempt"] == 0


async def test_a_dead_worker_is_told_so_although_a_cancel_is_recorded(
    house: SeededDatabase,
) -> None:
    owner = await house.create_worker()
    name = await house.create_response()
    claim = await owner.ownership.take(name)
    assert claim is not None
    await fetch(house.pool, statements.REQUEST_CANCEL, {"id": name})
    await house.declare_dead(owner)
    with pytest.raises(LeaseLost):
        await owner.ownership.release(claim, Tail(2, 3, frames(2, 3)))
    with pytest.raises(LeaseLost):
        await owner.ownership.checkpoint(claim, Tail(2, 3, frames(2, 3)), turn([], None))


async def test_a_dead_workers_half_transaction_holds_off_the_reaper_and_its_heartbeat_is_not_held_off(
    house: SeededDatabase,
) -> None:
    owner = await house.create_worker(lease=-60)
    seen = (
        await fetch(
            house.pool, "SELECT expires_at FROM workers WHERE id = %(id)s", {"id": owner.id}
        )
    )[0]["expires_at"]
    reap = {"id": owner.id, "seen": seen}
    async with house.pool.connection() as fenced, house.pool.connection() as reaper:
        async with fenced.transaction():
            assert await fetch_on(fenced, statements.FENCE, {"me": owner.id})
            await reaper.execute("SET lock_timeout = '300ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                await fetch_on(reaper, statements.REAP_LOCK, reap)
        assert await fetch_on(reaper, statements.REAP_LOCK, reap)
        async with fenced.transaction():
            assert await fetch_on(fenced, statements.FENCE, {"me": owner.id})
            assert await fetch_on(
                reaper, statements.RENEW, {"me": owner.id, "lease": timedelta(seconds=60)}
            )
        await reaper.execute("RESET lock_timeout")


async def test_a_lease_renewed_since_it_was_seen_is_not_reaped(house: SeededDatabase) -> None:
    owner = await house.create_worker(lease=-60)
    expired = {
        row["id"]: row["expires_at"]
        for row in await fetch(house.pool, statements.EXPIRED_LEASES, {})
    }
    await fetch(house.pool, statements.RENEW, {"me": owner.id, "lease": timedelta(seconds=-30)})
    assert (
        await fetch(house.pool, statements.REAP_LOCK, {"id": owner.id, "seen": expired[owner.id]})
        == []
    )


async def test_a_cancel_and_an_ending_race_and_exactly_one_wins(house: SeededDatabase) -> None:
    owner = await house.create_worker()
    for _ in range(25):
        name = await house.create_response()
        claim = await owner.ownership.take(name)
        assert claim is not None
        ended, recorded = await asyncio.gather(
            owner.ownership.end(claim, ending(Status.COMPLETED, 2, 3)),
            fetch(house.pool, statements.REQUEST_CANCEL, {"id": name}),
            return_exceptions=True,
        )
        standing = await house.response_row(name)
        if recorded:
            assert isinstance(ended, Cancelled)
            assert (standing["status"], await house.log_ranges(name)) == (
                "in_progress",
                [(0, 1, 0)],
            )
            await owner.ownership.end(claim, ending(Status.CANCELLED, 2, 3))
            assert (await house.response_row(name))["status"] == "cancelled"
        else:
            assert ended is None
            assert (standing["status"], standing["cancel_requested_at"]) == ("completed", None)
        assert await house.log_ranges(name) == [(0, 1, 0), (2, 3, 1)]


async def test_an_ending_whose_answer_was_lost_is_repeated_without_effect(
    house: SeededDatabase,
) -> None:
    owner = await house.create_worker()
    name = await house.create_response()
    claim = await owner.ownership.take(name)
    assert claim is not None
    await owner.ownership.end(claim, ending(Status.COMPLETED, 2, 3))
    before = await house.response_row(name)
    await owner.ownership.end(claim, ending(Status.COMPLETED, 2, 3))
    assert await house.response_row(name) == before
    assert before["worker"] is None


async def test_a_released_response_is_claimed_without_a_death_and_its_old_claim_is_void(
    house: SeededDatabase,
) -> None:
    owner, other = await house.create_worker(), await house.create_worker()
    name = await house.create_response()
    old = await owner.ownership.take(name)
    assert old is not None
    await owner.ownership.release(old, Tail(2, 5, frames(2, 5)))
    await owner.ownership.release(old, Tail(2, 5, frames(2, 5)))
    claim = await other.ownership.take(name)
    assert claim is not None
    assert (claim.attempt, claim.row["deaths"], claim.log_end) == (2, 0, 5)
    for write in (
        owner.ownership.end(old, ending(Status.COMPLETED, 6, 6)),
        owner.ownership.release(old, Tail(6, 6, frames(6, 6))),
    ):
        with pytest.raises(LeaseLost):
            await write
    assert await owner.flush(name, 1, 6, 7) != []
    assert await house.log_ranges(name) == [(0, 1, 0), (2, 5, 1)]


async def test_a_checkpoint_forgets_deaths_and_is_repeated_without_effect(
    house: SeededDatabase,
) -> None:
    first, second = await house.create_worker(), await house.create_worker()
    name = await house.create_response()
    await first.ownership.take(name)
    await house.declare_dead(first)
    claim = await second.ownership.take(name)
    assert claim is not None
    assert claim.row["deaths"] == 1
    item = {"id": "msg_9", "type": "message"}
    for _ in range(2):
        await second.ownership.checkpoint(
            claim, Tail(2, 4, frames(2, 4)), turn([item], {"total_tokens": 3})
        )
    standing = await house.response_row(name)
    assert (
        standing["deaths"],
        standing["turns"],
        standing["checkpoint_number"],
        standing["next_output_index"],
    ) == (0, 1, 4, 1)
    stored = await fetch(house.pool, statements.OUTPUT_ITEMS, {"id": name})
    assert [row["payload"] for row in stored] == [item]


async def test_the_journal_says_whether_it_stored_now_before_or_lost_its_marker(
    house: SeededDatabase,
) -> None:
    owner = await house.create_worker()
    name = await house.create_response()
    await owner.ownership.take(name)
    assert await owner.journal(1, name, 1, 2, 3) == {"me": 1, "mark": 1, "ins": 1}
    assert await owner.journal(1, name, 1, 2, 3) == {"me": 1, "mark": 1, "ins": 0}
    await fetch(house.pool, "DELETE FROM journal WHERE worker = %(id)s", {"id": owner.id})
    assert await owner.journal(2, name, 1, 4, 5) == {"me": 1, "mark": 0, "ins": 0}
    await fetch(house.pool, statements.MARK_JOURNAL, {"me": owner.id})
    assert await owner.journal(2, name, 1, 4, 5) == {"me": 1, "mark": 1, "ins": 1}


async def test_a_flush_removes_the_batches_that_answered_flushes_cover_and_keeps_the_marker(
    house: SeededDatabase,
) -> None:
    owner = await house.create_worker()
    name = await house.create_response()
    await owner.ownership.take(name)
    for batch in (1, 2, 3):
        await owner.journal(batch, name, 1, 2 * batch, 2 * batch + 1)
    await owner.flush(name, 1, 2, 5, answered=2)
    left = await fetch(
        house.pool,
        "SELECT batch FROM journal WHERE worker = %(id)s ORDER BY batch",
        {"id": owner.id},
    )
    assert [row["batch"] for row in left] == [0, 3]
    look = await fetch(
        house.pool,
        statements.LOG_PAGE,
        {"id": name, "after": 1, "attempt": 0, "page": 10, "bytes": 10_000},
    )
    assert [(row["kind"], row["first"], row["last"]) for row in look] == [
        (0, 0, 0),
        (1, 2, 5),
        (2, 6, 7),
    ]


async def test_a_look_stops_after_the_row_that_fills_it(house: SeededDatabase) -> None:
    owner = await house.create_worker()
    name = await house.create_response()
    await owner.ownership.take(name)
    for number in range(2, 8):
        await owner.flush(name, 1, number, number)
    size = len(frames(2, 2))
    look = await fetch(
        house.pool,
        statements.LOG_PAGE,
        {"id": name, "after": 1, "attempt": 0, "page": 10, "bytes": 2 * size + 1},
    )
    assert [row["first"] for row in look if row["kind"] == 1] == [2, 3, 4]


@pytest.mark.parametrize("stored", ["flushed", "journalled"])
async def test_a_reader_is_told_that_a_later_attempt_tells_anew_what_it_was_shown(
    house: SeededDatabase, stored: str
) -> None:
    """The double fault: Postgres has lost the journal, and with it what the first attempt had shown beyond number 5."""
    first, second = await house.create_worker(), await house.create_worker()
    name = await house.create_response()
    await first.ownership.take(name)
    await first.flush(name, 1, 2, 5)
    await house.declare_dead(first)
    claim = await second.ownership.take(name)
    assert claim is not None
    assert claim.log_end == 5
    for low, high in ((6, 8), (9, 10), (11, 12)):
        if stored == "flushed":
            await second.flush(name, 2, low, high)
        else:
            await second.journal(low, name, 2, low, high)
    for shown, attempt, torn in ((5, 1, 0), (6, 1, 1), (10, 1, 1), (10, 2, 0), (10, 0, 0)):
        values = {"id": name, "after": shown, "attempt": attempt, "page": 10, "bytes": 10_000}
        look = await fetch(house.pool, statements.LOG_PAGE, values)
        assert look[0]["first"] == torn, (shown, attempt)


async def test_a_create_answered_503_never_runs_whichever_came_first(house: SeededDatabase) -> None:
    worker = await house.create_worker()
    late, early = new_uuid(), new_uuid()
    void = {"project": house.project}
    async with house.pool.connection() as creating:
        async with creating.transaction():
            await fetch_on(creating, statements.INSERT, house.insert_values(late))
            voiding = asyncio.create_task(
                fetch(house.pool, statements.DELETE_UNCLEAR_CREATE, {"id": late, **void})
            )
            waiting = "SELECT count(*) AS n FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%create_refused%%'"
            while (await fetch(house.pool, waiting, {}))[0]["n"] == 0:  # noqa: ASYNC110  (waits for a lock in another process)
                await asyncio.sleep(0.01)
        assert await voiding
    await fetch(house.pool, statements.DELETE_UNCLEAR_CREATE, {"id": early, **void})
    with pytest.raises(psycopg.errors.UniqueViolation):
        await fetch(house.pool, statements.INSERT, house.insert_values(early))
    for name in (late, early):
        assert await worker.ownership.take(name) is None
        assert (await house.response_row(name))["status"] == "cancelled"


async def test_a_response_that_killed_two_processes_runs_alone_and_is_given_up_after_the_third(
    house: SeededDatabase,
) -> None:
    name = await house.create_response()
    for _ in range(2):
        worker = await house.create_worker()
        assert await worker.ownership.take(name) is not None
        await house.declare_dead(worker)
    normal, alone = await house.create_worker(), await house.create_worker(quarantine=True)
    assert await normal.ownership.take(name) is None
    claim = await alone.ownership.take(name)
    assert claim is not None
    assert (claim.row["deaths"], claim.end_reason) == (2, None)
    await house.declare_dead(alone)
    last = await normal.ownership.take(name)
    assert last is not None
    assert last.end_reason is EndReason.TOO_MANY_CRASHES


async def test_a_quarantine_worker_leaves_healthy_responses_alone(house: SeededDatabase) -> None:
    alone = await house.create_worker(quarantine=True)
    name = await house.create_response()
    assert await alone.ownership.take(name) is None
    assert (await house.response_row(name))["attempt"] == 0


async def test_what_is_cancelled_late_or_left_by_its_web_process_is_taken_only_to_be_ended(
    house: SeededDatabase,
) -> None:
    taker = await house.create_worker()
    web = await house.create_worker(kind="web")
    cancelled, late, left = (
        await house.create_response(),
        await house.create_response(),
        await house.create_response(background=False, web=web.id),
    )
    released = await house.create_worker()
    claim = await released.ownership.take(cancelled)
    assert claim is not None
    await released.ownership.release(claim, Tail(2, 1, b""))
    await fetch(house.pool, statements.REQUEST_CANCEL, {"id": cancelled})
    await fetch(
        house.pool,
        "UPDATE responses SET deadline = created_at - interval '10 years' WHERE id = %(id)s",
        {"id": late},
    )
    await house.declare_dead(web)
    for name, verdict in ((cancelled, EndReason.CANCELLED), (late, EndReason.QUEUE_WAIT)):
        claim = await taker.ownership.take(name)
        assert claim is not None
        assert claim.end_reason is verdict
    claim = await taker.ownership.take(left)
    assert claim is not None
    assert claim.end_reason is EndReason.CANCELLED, "nobody waits for it any more: it never starts"
    mine = {
        row["id"]: row
        for row in await fetch(house.pool, statements.OWNED_RESPONSES, {"me": taker.id})
    }
    assert mine[left]["abandoned"] is True


async def test_a_sweep_leaves_a_fresh_response_until_its_web_process_has_beaten_since(
    house: SeededDatabase,
) -> None:
    """Before it beats it voids what it answered 503 (I9); dead, it can void nothing more, and what it accepted must run (I1)."""
    web, dead = await house.create_worker(kind="web"), await house.create_worker(kind="web")
    doubtful, left = (
        await house.create_response(web=web.id),
        await house.create_response(web=dead.id),
    )
    await house.declare_dead(dead)
    await fetch(
        house.pool, "UPDATE responses SET enqueued_at = clock_timestamp() - interval '1 minute'", {}
    )
    lease = timedelta(seconds=600)
    values = {
        "waiting": timedelta(0),
        "most": 100,
        "quarantine": False,
        "lease": lease,
        "interval": timedelta(0),
    }

    async def taken() -> set[object]:
        return {row["id"] for row in await fetch(house.pool, statements.ORPHANS, values)} & {
            doubtful,
            left,
        }

    await fetch(
        house.pool,
        "UPDATE workers SET expires_at = expires_at - interval '2 minutes' WHERE id = %(id)s",
        {"id": web.id},
    )
    assert await taken() == {left}
    rung = {row["id"] for row in await fetch(house.pool, statements.REENQUEUE, values)}
    assert left in rung
    assert doubtful not in rung
    await fetch(house.pool, statements.RENEW, {"me": web.id, "lease": lease})
    assert await taken() == {doubtful, left}


async def test_a_queued_response_is_cancelled_by_whoever_asks_unless_it_was_claimed_first(
    house: SeededDatabase,
) -> None:
    worker = await house.create_worker()
    for _ in range(20):
        name = await house.create_response()
        values = {
            "id": name,
            "completed_at": 1_800_000_000,
            "reason": "cancelled",
            "number": 2,
            "frames": frames(2, 2),
        }
        claim, ended = await asyncio.gather(
            worker.ownership.take(name), fetch(house.pool, statements.CANCEL_QUEUED, values)
        )
        assert (claim is None) is bool(ended)
        assert (await house.response_row(name))["status"] == (
            "cancelled" if ended else "in_progress"
        )
