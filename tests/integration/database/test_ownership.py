"""Claims, fences, endings and cancels, raced against each other on a real PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from models.db.database import execute, fetch
from models.db.queries import claim as claim_queries
from models.db.queries import create as create_queries
from models.db.queries import end as end_queries
from models.db.queries import leases, line
from models.db.queries import read as read_queries
from models.db.queries.audit import Actor, ActorKind
from models.db.queries.claim import ResponseBlock
from models.db.queries.common import LogBlock
from models.db.queries.run import JournalOutcome
from models.db.statement import Query
from models.errors import Cancelled, LeaseLost, NotFound
from models.ids import new_uuid
from models.ids import response_id as public_response_id
from models.lifecycle import CRASHES_ALONE, CRASHES_FINAL, QUARANTINE_THRESHOLD, Status
from models.ownership.claims import ReleaseReason
from models.ownership.creates import UnclearCreate, void_values
from models.ownership.lease import DatabaseClock
from models.ownership.steps import Tail
from models.ownership.takeover import Claim, EndReason, take_over
from models.redis.answer_cache import AnswerCache
from tests.support.api import until
from tests.support.chaos.step_worker import FakeBus, SilentRedis
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import (
    SeededDatabase,
    ending,
    frames,
    insert_values,
    line_values,
    open_seeded_database,
    settings_for,
    turn,
)
from web.hooks import Hooks
from web.idempotency.keys import IdempotencyKey, JoinResponse
from web.responses.store import ResponseStore
from web.stream.reader import EventReader


@pytest.fixture(scope="module")
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 16) as database:
        yield database


async def test_of_many_claims_of_one_new_response_exactly_one_wins(
    database: SeededDatabase,
) -> None:
    workers = [await database.create_worker() for _ in range(4)]
    for _ in range(25):
        response_id = await database.create_response()
        claims = await asyncio.gather(
            *(worker.ownership.take(response_id) for worker in workers for _ in range(2))
        )
        won = [claim for claim in claims if claim is not None]
        assert len(won) == 1
        row = await database.response_row(response_id)
        assert (row["attempt"], row["crashes"], row["status"]) == (
            1,
            0,
            "in_progress",
        )


async def test_a_live_owner_keeps_its_response(database: SeededDatabase) -> None:
    owner, other = await database.create_worker(), await database.create_worker()
    response_id = await database.create_response()
    assert await owner.ownership.take(response_id) is not None
    assert await other.ownership.take(response_id) is None
    assert await owner.ownership.take(response_id) is None
    assert (await database.response_row(response_id))["worker"] == owner.id


async def test_an_expired_lease_alone_does_not_free_its_responses(database: SeededDatabase) -> None:
    owner, other = await database.create_worker(lease=-60), await database.create_worker()
    response_id = await database.create_response()
    assert await owner.ownership.take(response_id) is not None
    assert await other.ownership.take(response_id) is None


async def test_of_many_claims_of_an_orphan_exactly_one_wins_and_adopts_its_journal(
    database: SeededDatabase,
) -> None:
    takers = [await database.create_worker() for _ in range(4)]
    for _ in range(15):
        owner = await database.create_worker()
        response_id = await database.create_response()
        claim = await owner.ownership.take(response_id)
        assert claim is not None
        await owner.flush(response_id, 1, 2, 4)
        await owner.journal(1, response_id, 1, 3, 6)
        await owner.journal(2, response_id, 1, 7, 9)
        await database.declare_dead(owner)
        won = [
            claim
            for claim in await asyncio.gather(
                *(taker.ownership.take(response_id) for taker in takers)
            )
            if claim is not None
        ]
        assert len(won) == 1
        assert (won[0].attempt, won[0].log_end, won[0].row.crashes) == (2, 9, 1)
        assert b"".join(block.frames for block in won[0].blocks) == frames(2, 9)
        assert await database.log_ranges(response_id) == [
            (0, 1, 0),
            (2, 4, 1),
            (5, 6, 1),
            (7, 9, 1),
        ]


async def test_of_many_claims_of_many_orphans_exactly_one_wins_each_with_its_own_journal(
    database: SeededDatabase,
) -> None:
    owners = [await database.create_worker() for _ in range(3)]
    log_ends: dict[UUID, int] = {}
    for owner in owners:
        for batch in range(1, 21):
            response_id = await database.create_response()
            await owner.ownership.take(response_id)
            await owner.flush(response_id, 1, 2, 4)
            await owner.journal(2 * batch, response_id, 1, 3, 5 + batch)
            await owner.journal(2 * batch + 1, response_id, 1, 7 + batch, 9 + batch)
            log_ends[response_id] = 5 + batch
        await database.declare_dead(owner)
    takers = [await database.create_worker() for _ in range(4)]
    won: list[Claim] = []
    while len(won) < len(log_ends):
        taken = await asyncio.gather(
            *(taker.ownership.take_orphans(list(log_ends)) for taker in takers)
        )
        assert any(taken)
        won += [claim for claims in taken for claim in claims]
    assert {claim.id: claim.log_end for claim in won} == log_ends
    for claim in won:
        end = log_ends[claim.id]
        assert (claim.attempt, claim.row.crashes, claim.seconds_lost is None) == (2, 1, False)
        assert b"".join(block.frames for block in claim.blocks) == frames(2, end)
        assert await database.log_ranges(claim.id) == [(0, 1, 0), (2, 4, 1), (5, end, 1)]


async def test_orphans_are_claimed_together_by_the_rules_of_a_single_claim(
    database: SeededDatabase,
) -> None:
    dead, live, taker = [await database.create_worker() for _ in range(3)]
    crashed, suspect, cancelled, deferred, released, running, queued, ended = ids = [
        await database.create_response() for _ in range(8)
    ]
    claims = {each: await dead.ownership.take(each) for each in ids[:5]}
    set_columns = "UPDATE responses SET {} WHERE id = %(id)s"
    await run_sql(database.pool, set_columns.format("crashes = 1"), {"id": suspect})
    await fetch(database.pool, end_queries.REQUEST_CANCEL, {"id": cancelled})
    for response_id, pause in ((deferred, timedelta(hours=1)), (released, None)):
        claim = claims[response_id]
        assert claim is not None
        tail = Tail(2, 3, frames(2, 3))
        await dead.ownership.release(claim, tail, ReleaseReason.DEFERRED, pause)
    await database.declare_dead(dead)
    assert await live.ownership.take(running) is not None
    to_end = await live.ownership.take(ended)
    assert to_end is not None
    await live.ownership.end(to_end, ending(Status.COMPLETED, 2, 3))
    taken = {claim.id: claim for claim in await taker.ownership.take_orphans(ids)}
    assert taken.keys() == {crashed, cancelled, released, queued}
    assert {claim.end_reason for claim in taken.values()} == {None, EndReason.CANCELLED}
    assert taken[cancelled].end_reason is EndReason.CANCELLED
    assert [taken[each].row.crashes for each in (crashed, cancelled, released, queued)] == [
        1,
        1,
        0,
        0,
    ]
    assert (taken[released].log_end, len(taken[released].blocks)) == (3, 1)
    assert (taken[queued].attempt, taken[queued].is_first, taken[queued].log_end) == (1, True, 1)
    assert await taker.ownership.take_orphans(ids) == []
    await database.declare_dead(taker)
    with pytest.raises(LeaseLost):
        await taker.ownership.take_orphans(ids)


async def test_logs_that_postgres_refuses_to_read_together_are_read_one_by_one(
    database: SeededDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, taker = await database.create_worker(), await database.create_worker()
    ids = [await database.create_response() for _ in range(2)]
    for response_id in ids:
        await owner.ownership.take(response_id)
        await owner.flush(response_id, 1, 2, 4)
    await database.declare_dead(owner)
    await run_sql(
        database.pool,
        "CREATE OR REPLACE FUNCTION refuse() RETURNS int LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'too large' USING ERRCODE = '54000'; END $$",
        {},
    )
    refused = (
        "SELECT NULL::uuid, 0, 0, refuse(), ''::bytea"
        " WHERE CAST(:ids AS uuid[]) IS NOT NULL AND CAST(:afters AS int[]) IS NOT NULL"
    )
    monkeypatch.setattr(claim_queries, "LOGS_SINCE", Query(refused, ResponseBlock))
    claims = await taker.ownership.take_orphans(ids)
    assert [claim.has_unread_log for claim in claims] == [True, True]
    for unread in claims:
        claim = await taker.ownership.with_log(unread)
        assert claim is not None
        assert (claim.log_end, len(claim.blocks), claim.has_unread_log) == (4, 1, False)


async def test_a_claim_that_rolls_back_leaves_the_previous_owner_on_record(
    database: SeededDatabase,
) -> None:
    owner, taker = await database.create_worker(), await database.create_worker()
    response_id = await database.create_response()
    await owner.ownership.take(response_id)
    await owner.journal(1, response_id, 1, 2, 5)
    await database.declare_dead(owner)
    async with (
        database.pool.connection() as connection,
        connection.transaction(force_rollback=True),
    ):
        values = {"me": taker.id, "wall_clock": timedelta(hours=1), "first_attempt": 1}
        assert await take_over(connection, values, [response_id], lambda _: True)
    row = await database.response_row(response_id)
    assert (row["worker"], row["attempt"]) == (owner.id, 1)
    assert await database.log_ranges(response_id) == [(0, 1, 0)]
    taken_again = await taker.ownership.take(response_id)
    assert taken_again is not None
    assert taken_again.log_end == 5


async def test_nothing_is_adopted_after_a_hole_in_the_journal(database: SeededDatabase) -> None:
    owner, taker = await database.create_worker(), await database.create_worker()
    response_id = await database.create_response()
    await owner.ownership.take(response_id)
    await owner.journal(1, response_id, 1, 2, 3)
    await owner.journal(2, response_id, 1, 6, 8)
    await database.declare_dead(owner)
    claim = await taker.ownership.take(response_id)
    assert claim is not None
    assert claim.log_end == 3


async def test_a_worker_declared_dead_can_write_nothing(database: SeededDatabase) -> None:
    owner = await database.create_worker()
    response_id, queued = await database.create_response(), await database.create_response()
    claim = await owner.ownership.take(response_id)
    assert claim is not None
    await database.declare_dead(owner)
    before = await database.response_row(response_id)
    assert not (await owner.journal(1, response_id, 1, 2, 3)).live
    assert await owner.flush(response_id, 1, 2, 3) == []
    for write in (
        owner.ownership.end(claim, ending(Status.COMPLETED, 2, 3)),
        owner.ownership.end(claim, ending(Status.CANCELLED, 2, 3)),
        owner.ownership.checkpoint(claim, Tail(2, 3, frames(2, 3)), turn([], None)),
        owner.ownership.release(claim, Tail(2, 3, frames(2, 3))),
        owner.ownership.take(queued),
    ):
        with pytest.raises(LeaseLost):
            await write
    assert await database.response_row(response_id) == before
    assert await database.log_ranges(response_id) == [(0, 1, 0)]
    assert (await database.response_row(queued))["attempt"] == 0


async def test_a_dead_workers_write_raises_lease_lost_although_a_cancel_is_recorded(
    database: SeededDatabase,
) -> None:
    owner = await database.create_worker()
    response_id = await database.create_response()
    claim = await owner.ownership.take(response_id)
    assert claim is not None
    await fetch(database.pool, end_queries.REQUEST_CANCEL, {"id": response_id})
    await database.declare_dead(owner)
    with pytest.raises(LeaseLost):
        await owner.ownership.release(claim, Tail(2, 3, frames(2, 3)))
    with pytest.raises(LeaseLost):
        await owner.ownership.checkpoint(claim, Tail(2, 3, frames(2, 3)), turn([], None))


async def test_an_open_fenced_transaction_blocks_the_reaper_but_not_the_heartbeat(
    database: SeededDatabase,
) -> None:
    owner = await database.create_worker(lease=-60)
    seen = (
        await run_sql(
            database.pool, "SELECT expires_at FROM workers WHERE id = %(id)s", {"id": owner.id}
        )
    )[0]["expires_at"]
    reap = {"id": owner.id, "seen": seen, "lease": timedelta(seconds=10)}
    async with database.pool.connection() as fenced, database.pool.connection() as reaper:
        async with fenced.transaction():
            assert await fetch(fenced, claim_queries.FENCE_ALONE, {"me": owner.id})
            await reaper.execute("SET lock_timeout = '300ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                await fetch(reaper, leases.REAP_LOCK_FENCE, {"id": owner.id})
            # A release of before locks only the row.
            assert await fetch(reaper, leases.REAP_LOCK_EXPIRED, reap)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                await execute(reaper, leases.REAP, {"id": owner.id, "ended": "test"})
        async with fenced.transaction():
            assert await fetch(fenced, claim_queries.FENCE_ALONE, {"me": owner.id})
            renewal = {"me": owner.id, "lease": timedelta(seconds=60)} | leases.NO_LOOK
            assert await fetch(reaper, leases.RENEW, renewal)
        await reaper.execute("RESET lock_timeout")


async def test_a_fenced_statement_that_waits_for_a_reap_sees_it(database: SeededDatabase) -> None:
    owner = await database.create_worker()
    waits = "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

    async def is_waiting() -> bool:
        return bool((await run_sql(database.pool, waits))[0]["n"])

    async with database.pool.connection() as reaper:
        async with reaper.transaction():
            await fetch(reaper, leases.REAP_LOCK_FENCE, {"id": owner.id})
            fenced = asyncio.create_task(
                fetch(database.pool, claim_queries.FENCE_ALONE, {"me": owner.id})
            )
            await until(is_waiting)
            await execute(reaper, leases.REAP, {"id": owner.id, "ended": "test"})
        # Its snapshot is older than the reap.
        assert await fenced == []


async def test_a_lease_renewed_since_it_was_seen_is_not_reaped(database: SeededDatabase) -> None:
    owner = await database.create_worker(lease=-60)
    expired = {row.id: row.expires_at for row in await database.watched() if row.expired}
    renewal = {"me": owner.id, "lease": timedelta(seconds=-30)} | leases.NO_LOOK
    await fetch(database.pool, leases.RENEW, renewal)
    assert (
        await fetch(
            database.pool,
            leases.REAP_LOCK_EXPIRED,
            {"id": owner.id, "seen": expired[owner.id], "lease": timedelta(seconds=10)},
        )
        == []
    )


async def test_a_cancel_and_an_ending_race_and_exactly_one_wins(database: SeededDatabase) -> None:
    owner = await database.create_worker()
    for _ in range(25):
        response_id = await database.create_response()
        claim = await owner.ownership.take(response_id)
        assert claim is not None
        ended, recorded = await asyncio.gather(
            owner.ownership.end(claim, ending(Status.COMPLETED, 2, 3)),
            fetch(database.pool, end_queries.REQUEST_CANCEL, {"id": response_id}),
            return_exceptions=True,
        )
        row = await database.response_row(response_id)
        if recorded:
            assert isinstance(ended, Cancelled)
            assert (row["status"], await database.log_ranges(response_id)) == (
                "in_progress",
                [(0, 1, 0)],
            )
            await owner.ownership.end(claim, ending(Status.CANCELLED, 2, 3))
            assert (await database.response_row(response_id))["status"] == "cancelled"
        else:
            assert ended is False, "no other one waits for it"
            assert (row["status"], row["cancel_requested_at"]) == ("completed", None)
        assert await database.log_ranges(response_id) == [(0, 1, 0), (2, 3, 1)]


async def test_an_ending_whose_reply_was_lost_is_repeated_without_effect(
    database: SeededDatabase,
) -> None:
    owner = await database.create_worker()
    response_id = await database.create_response()
    claim = await owner.ownership.take(response_id)
    assert claim is not None
    await owner.ownership.end(claim, ending(Status.COMPLETED, 2, 3))
    before = await database.response_row(response_id)
    await owner.ownership.end(claim, ending(Status.COMPLETED, 2, 3))
    assert await database.response_row(response_id) == before
    assert before["worker"] is None


async def test_a_released_response_is_claimed_without_a_death_and_its_old_claim_is_invalid(
    database: SeededDatabase,
) -> None:
    owner, other = await database.create_worker(), await database.create_worker()
    response_id = await database.create_response()
    old = await owner.ownership.take(response_id)
    assert old is not None
    await owner.ownership.release(old, Tail(2, 5, frames(2, 5)))
    await owner.ownership.release(old, Tail(2, 5, frames(2, 5)))
    claim = await other.ownership.take(response_id)
    assert claim is not None
    assert (claim.attempt, claim.row.crashes, claim.log_end) == (2, 0, 5)
    for write in (
        owner.ownership.end(old, ending(Status.COMPLETED, 6, 6)),
        owner.ownership.release(old, Tail(6, 6, frames(6, 6))),
    ):
        with pytest.raises(LeaseLost):
            await write
    assert await owner.flush(response_id, 1, 6, 7) != []
    assert await database.log_ranges(response_id) == [(0, 1, 0), (2, 5, 1)]


async def test_responses_released_together_are_each_released_or_reported_as_lost(
    database: SeededDatabase,
) -> None:
    owner, other = await database.create_worker(), await database.create_worker()
    ids = [await database.create_response() for _ in range(20)]
    claims = [await owner.ownership.take(response_id) for response_id in ids]
    lost = claims[3]
    assert lost is not None
    await owner.ownership.release(lost, Tail(2, 1, b""))
    assert await other.ownership.take(lost.id) is not None
    releases = (
        owner.ownership.release(claim, Tail(2, 4, frames(2, 4))) for claim in claims if claim
    )
    async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as watching:
        await watching.execute(leases.LISTEN_FOR_ORPHANS.sql)
        results = await asyncio.gather(*releases, return_exceptions=True)
        async with asyncio.timeout(10):
            await anext(watching.notifies())
    assert [type(result) for result in results if result is not None] == [LeaseLost]
    assert isinstance(results[3], LeaseLost)
    for response_id in ids:
        row = await database.response_row(response_id)
        is_lost = response_id == lost.id
        assert row["worker"] == (other.id if is_lost else None)
        assert await database.log_ranges(response_id) == [(0, 1, 0), *[(2, 4, 1)] * (not is_lost)]


async def test_a_checkpoint_resets_the_deaths_and_is_repeated_without_effect(
    database: SeededDatabase,
) -> None:
    first, second = await database.create_worker(), await database.create_worker()
    response_id = await database.create_response()
    await first.ownership.take(response_id)
    await database.declare_dead(first)
    claim = await second.ownership.take(response_id)
    assert claim is not None
    assert claim.row.crashes == 1
    item = {"id": "msg_9", "type": "message"}
    for _ in range(2):
        await second.ownership.checkpoint(
            claim, Tail(2, 4, frames(2, 4)), turn([item], {"total_tokens": 3})
        )
    row = await database.response_row(response_id)
    assert (
        row["crashes"],
        row["turns"],
        row["checkpoint_number"],
        row["next_output_index"],
    ) == (0, 1, 4, 1)
    values = {"id": response_id, "max_size": read_queries.ANY_SIZE}
    [stored] = await fetch(database.pool, read_queries.OUTPUT_ITEMS, values)
    assert stored.item == item
    values["max_size"] = stored.total - 1
    assert await fetch(database.pool, read_queries.OUTPUT_ITEMS, values) == [
        read_queries.OutputItem(None, stored.total)
    ]


async def test_the_journal_reports_a_new_row_a_repeated_row_and_a_lost_marker(
    database: SeededDatabase,
) -> None:
    owner = await database.create_worker()
    response_id = await database.create_response()
    await owner.ownership.take(response_id)
    assert await owner.journal(1, response_id, 1, 2, 3) == JournalOutcome(
        live=True, marked=True, stored=True
    )
    assert await owner.journal(1, response_id, 1, 2, 3) == JournalOutcome(
        live=True, marked=True, stored=False
    )
    await run_sql(database.pool, "DELETE FROM journal WHERE worker = %(id)s", {"id": owner.id})
    assert await owner.journal(2, response_id, 1, 4, 5) == JournalOutcome(
        live=True, marked=False, stored=False
    )
    await execute(database.pool, leases.MARK_JOURNAL, {"me": owner.id})
    assert await owner.journal(2, response_id, 1, 4, 5) == JournalOutcome(
        live=True, marked=True, stored=True
    )


async def test_a_flush_removes_the_batches_of_confirmed_flushes_and_keeps_the_marker(
    database: SeededDatabase,
) -> None:
    owner = await database.create_worker()
    response_id = await database.create_response()
    await owner.ownership.take(response_id)
    for batch in (1, 2, 3):
        await owner.journal(batch, response_id, 1, 2 * batch, 2 * batch + 1)
    await owner.flush(response_id, 1, 2, 5, answered=2)
    rows_left = await run_sql(
        database.pool,
        "SELECT batch FROM journal WHERE worker = %(id)s ORDER BY batch",
        {"id": owner.id},
    )
    assert [row["batch"] for row in rows_left] == [0, 3]
    page = await fetch(
        database.pool,
        read_queries.LOG_PAGE,
        {"id": response_id, "after": 1, "attempt": 0, "page": 10, "bytes": 10_000},
    )
    blocks = [(row.is_journalled, row.block.first, row.block.last) for row in page if row.block]
    assert blocks == [(False, 2, 5), (True, 6, 7)]


async def test_a_page_of_the_log_stops_after_the_row_that_fills_it(
    database: SeededDatabase,
) -> None:
    owner = await database.create_worker()
    response_id = await database.create_response()
    await owner.ownership.take(response_id)
    for number in range(2, 8):
        await owner.flush(response_id, 1, number, number)
    size = len(frames(2, 2))
    page = await fetch(
        database.pool,
        read_queries.LOG_PAGE,
        {"id": response_id, "after": 1, "attempt": 0, "page": 10, "bytes": 2 * size + 1},
    )
    assert [row.block.first for row in page if row.block] == [2, 3, 4]


@pytest.mark.parametrize("stored", ["flushed", "journalled"])
async def test_a_page_reports_that_a_later_attempt_replaced_events_a_reader_has(
    database: SeededDatabase, stored: str
) -> None:
    """The double fault: Postgres lost the journal, so attempt 1's events after number 5."""
    first, second = await database.create_worker(), await database.create_worker()
    response_id = await database.create_response()
    await first.ownership.take(response_id)
    await first.flush(response_id, 1, 2, 5)
    await database.declare_dead(first)
    claim = await second.ownership.take(response_id)
    assert claim is not None
    assert claim.log_end == 5
    for low, high in ((6, 8), (9, 10), (11, 12)):
        if stored == "flushed":
            await second.flush(response_id, 2, low, high)
        else:
            await second.journal(low, response_id, 2, low, high)
    for shown, attempt, torn in ((5, 1, 0), (6, 1, 1), (10, 1, 1), (10, 2, 0), (10, 0, 0)):
        values = {
            "id": response_id,
            "after": shown,
            "attempt": attempt,
            "page": 10,
            "bytes": 10_000,
        }
        page = await fetch(database.pool, read_queries.LOG_PAGE, values)
        assert page[0].is_rewritten == torn, (shown, attempt)


async def test_creates_answered_503_never_run_in_either_order_of_insert_and_voiding(
    database: SeededDatabase,
) -> None:
    worker = await database.create_worker()
    web = await database.create_worker(kind="web")
    inserted_row, voided_row = database.new_row(), database.new_row()
    inserted_first, voided_first = inserted_row.id, voided_row.id
    voiding_values = void_values(
        [UnclearCreate(name, database.project, 0) for name in (voided_first, inserted_first)],
        web.id,
    )
    values = insert_values(inserted_row, web=web.id)
    async with database.pool.connection() as creating:
        async with creating.transaction():
            await fetch(creating, create_queries.INSERT, values)
            voiding = asyncio.create_task(
                fetch(database.pool, create_queries.VOID_UNCLEAR_CREATES, voiding_values)
            )
            waiting = (
                "SELECT count(*) AS n FROM pg_stat_activity"
                " WHERE wait_event_type = 'Lock' AND query LIKE '%%create_refused%%'"
            )
            while (await run_sql(database.pool, waiting, {}))[0]["n"] == 0:  # noqa: ASYNC110  (a lock elsewhere)
                await asyncio.sleep(0.01)
        assert set(await voiding) == {inserted_first, voided_first}
    with pytest.raises(psycopg.errors.UniqueViolation):
        await fetch(database.pool, create_queries.INSERT, insert_values(voided_row))
    for response_id in (inserted_first, voided_first):
        assert await worker.ownership.take(response_id) is None
        assert (await database.response_row(response_id))["status"] == "cancelled"


async def _crash(database: SeededDatabase, response_id: UUID, *, quarantine: bool) -> Claim:
    """A worker claims the response and crashes; returns its claim."""
    worker = await database.create_worker(quarantine=quarantine)
    claim = await worker.ownership.take(response_id)
    assert claim is not None
    await database.declare_dead(worker)
    return claim


async def test_the_group_of_a_suspect_is_halved_at_each_crash_and_its_own_crash_fails_it(
    database: SeededDatabase,
) -> None:
    response_id = await database.create_response()
    for _ in range(QUARANTINE_THRESHOLD):
        claim = await _crash(database, response_id, quarantine=False)
    normal = await database.create_worker()
    assert await normal.ownership.take(response_id) is None
    for group_size in (16, 8, 4, 2, 1):
        claim = await _crash(database, response_id, quarantine=True)
        assert (claim.crashes.group_size, claim.end_reason) == (group_size, None)
    last = await normal.ownership.take(response_id)
    assert last is not None
    assert last.end_reason is EndReason.TOO_MANY_CRASHES


async def test_a_suspect_that_kills_its_worker_late_is_forgiven_once_and_fails_all_the_same(
    database: SeededDatabase,
) -> None:
    response_id = await database.create_response()
    for is_quarantined in (False, False, True, True, True, True):
        await _crash(database, response_id, quarantine=is_quarantined)
    worker = await database.create_worker(quarantine=True)
    alone = await worker.ownership.take(response_id)
    assert alone is not None
    assert (alone.crashes.group_size, alone.crashes.is_final) == (1, False)
    await worker.ownership.forget_crashes(alone)
    await database.declare_dead(worker)
    for group_size, is_final in ((8, False), (1, True)):
        claim = await _crash(database, response_id, quarantine=True)
        assert claim.end_reason is None
        assert (claim.crashes.group_size, claim.crashes.is_final) == (group_size, is_final)
    claim = await _crash(database, response_id, quarantine=True)
    assert claim.end_reason is EndReason.TOO_MANY_CRASHES
    assert claim.crashes.in_turn == CRASHES_FINAL + 1


async def test_an_ending_that_crashed_its_worker_is_repeated_without_what_it_had_read(
    database: SeededDatabase,
) -> None:
    response_id = await database.create_response()
    first = await database.create_worker()
    assert await first.ownership.take(response_id) is not None
    await first.flush(response_id, 1, 2, 4)
    await run_sql(
        database.pool,
        "UPDATE responses SET crashes = %(crashes)s WHERE id = %(id)s",
        {"id": response_id, "crashes": CRASHES_ALONE},
    )
    await database.declare_dead(first)
    ending_claim = await _crash(database, response_id, quarantine=False)
    assert ending_claim.end_reason is EndReason.TOO_MANY_CRASHES
    assert ending_claim.blocks
    ending_claim = await _crash(database, response_id, quarantine=False)
    assert ending_claim.end_reason is EndReason.TOO_MANY_CRASHES
    assert not ending_claim.blocks


async def test_a_log_that_postgres_refuses_to_read_fails_its_response_after_bounded_attempts(
    database: SeededDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    response_id = await database.create_response()
    await _crash(database, response_id, quarantine=False)
    await run_sql(
        database.pool,
        "CREATE OR REPLACE FUNCTION refuse() RETURNS int LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'too large' USING ERRCODE = '54000'; END $$",
        {},
    )
    refused = "SELECT 0, 0, refuse(), ''::bytea WHERE CAST(:id AS uuid) IS NOT NULL AND :after > -9"
    monkeypatch.setattr(claim_queries, "LOG_SINCE", Query(refused, LogBlock))
    together = "SELECT id, 0, 0, refuse(), ''::bytea FROM unnest(CAST(:ids AS uuid[])) AS id"
    monkeypatch.setattr(claim_queries, "LOGS_SINCE", Query(together, ResponseBlock))
    workers = [await database.create_worker(), await database.create_worker(quarantine=True)]
    claims = []
    for _ in range(CRASHES_ALONE + 2):
        claims += [await worker.ownership.take(response_id) for worker in workers]
        await run_sql(
            database.pool,
            "UPDATE responses SET resume_at = NULL WHERE id = %(id)s",
            {"id": response_id},
        )
    [claim] = [claim for claim in claims if claim is not None]
    assert claim.end_reason is EndReason.TOO_MANY_CRASHES
    outcomes = await run_sql(
        database.pool,
        "SELECT outcome FROM attempts WHERE response_id = %(id)s ORDER BY attempt",
        {"id": response_id},
    )
    assert {row["outcome"] for row in outcomes} == {"died", "error", None}


async def test_a_quarantine_worker_leaves_healthy_responses_alone(database: SeededDatabase) -> None:
    alone = await database.create_worker(quarantine=True)
    response_id = await database.create_response()
    assert await alone.ownership.take(response_id) is None
    assert (await database.response_row(response_id))["attempt"] == 0


async def test_a_cancelled_an_overdue_and_an_abandoned_response_are_claimed_only_to_be_ended(
    database: SeededDatabase,
) -> None:
    taker = await database.create_worker()
    web = await database.create_worker(kind="web")
    cancelled, late, left = (
        await database.create_response(),
        await database.create_response(),
        await database.create_response(background=False, web=web.id),
    )
    released = await database.create_worker()
    claim = await released.ownership.take(cancelled)
    assert claim is not None
    await released.ownership.release(claim, Tail(2, 1, b""))
    await fetch(database.pool, end_queries.REQUEST_CANCEL, {"id": cancelled})
    await run_sql(
        database.pool,
        "UPDATE responses SET deadline = created_at - interval '10 years' WHERE id = %(id)s",
        {"id": late},
    )
    await database.declare_dead(web)
    for response_id, reason in ((cancelled, EndReason.CANCELLED), (late, EndReason.QUEUE_WAIT)):
        claim = await taker.ownership.take(response_id)
        assert claim is not None
        assert claim.end_reason is reason
    claim = await taker.ownership.take(left)
    assert claim is not None
    assert claim.end_reason is EndReason.CANCELLED, "its client has left: it never starts"
    owned = {
        row.id: row for row in await fetch(database.pool, leases.OWNED_RESPONSES, {"me": taker.id})
    }
    assert owned[left].abandoned is True


async def test_a_join_and_a_voiding_exclude_each_other(database: SeededDatabase) -> None:
    """A client got 503 for an unclear create and sends it again to another web process.

    Either it gets that response, which then runs, or the response is voided and the retry makes a
    new one.
    """
    web, other_web = [await database.create_worker(kind="web") for _ in range(2)]
    join = JoinResponse(database.pool, other_web.lease)
    outcomes = set()
    for number in range(25):
        row = database.new_row(key=f"key:{number}")
        name = row.id
        key = IdempotencyKey(row.key, b"body", timedelta(hours=1), may_repeat=True)
        values = insert_values(row, web=web.id)
        await fetch(database.pool, create_queries.INSERT_WITH_KEY, values)
        voiding_values = void_values([UnclearCreate(name, database.project, 0)], web.id)
        joining = join.join(database.project, key, new_uuid())
        voiding = fetch(database.pool, create_queries.VOID_UNCLEAR_CREATES, voiding_values)
        if number == 0:
            joined, voided = await joining, await voiding
        elif number == 1:
            voided, joined = await voiding, await joining
        else:
            joined, voided = await asyncio.gather(joining, voiding)
        status = (await database.response_row(name))["status"]
        assert (joined, voided, status) in (
            (name, [], "queued"),
            (None, [name], "cancelled"),
        )
        outcomes.add(status)
    assert outcomes == {"queued", "cancelled"}


async def _may_claim(database: SeededDatabase, *names: UUID) -> set[UUID]:
    """Those of the responses that a worker may claim in their turn without their wake-ups."""
    worker = await database.create_worker()
    async with (
        database.pool.connection() as connection,
        connection.transaction(force_rollback=True),
    ):
        rows = await fetch(connection, line.CLAIM_NEXT, line_values(worker, max_rows=200))
    return {row.id for row in rows} & set(names)


async def test_a_response_without_its_wake_up_waits_until_the_outcome_of_its_create_is_known(
    database: SeededDatabase,
) -> None:
    """Its web process may still void a create that it answered with 503 (I9).

    A dead web process can void nothing more, and what it accepted must run (I1).
    """
    web, dead = await database.create_worker(kind="web"), await database.create_worker(kind="web")
    unconfirmed, left = (
        await database.create_response(web=web.id),
        await database.create_response(web=dead.id),
    )
    await database.declare_dead(dead)
    assert await _may_claim(database, unconfirmed, left) == {left}
    settled = {
        "me": web.id,
        "lease": timedelta(seconds=600),
        "settled_at": datetime.now(UTC) + timedelta(minutes=3),
        **leases.NO_LOOK,
    }
    await fetch(database.pool, leases.RENEW_WEB, settled)
    await fetch(database.pool, leases.RENEW_WEB, settled | {"settled_at": None})
    assert await _may_claim(database, unconfirmed, left) == {unconfirmed, left}


async def test_no_renewal_settles_a_create_that_began_before_it_and_is_committed_after_it(
    database: SeededDatabase,
) -> None:
    web = await database.create_worker(kind="web")
    creates = web.lease.creates
    unclear_row, stored_row = database.new_row(), database.new_row()
    unclear, stored = unclear_row.id, stored_row.id

    async def renew() -> None:
        values = {"me": web.id, "lease": timedelta(seconds=600), "settled_at": creates.settled_at()}
        [renewed] = await fetch(database.pool, leases.RENEW_WEB, values | leases.NO_LOOK)
        creates.renewed(renewed.now)

    async def is_settled() -> bool:
        await renew()
        return bool(await _may_claim(database, stored))

    await renew()
    unclear_number, unclear_values = creates.begin(), insert_values(unclear_row, web=web.id)
    async with database.pool.connection() as creating:
        async with creating.transaction():
            await fetch(creating, create_queries.INSERT, unclear_values)
            for _ in range(3):
                await renew()
        # The reply to the commit is lost: the client gets a 503.
        unclear_create = UnclearCreate(unclear, database.project, unclear_number)
        creates.add_unclear(unclear_create)
        creates.end(unclear_number)
    stored_number = creates.begin()
    await fetch(database.pool, create_queries.INSERT, insert_values(stored_row, web=web.id))
    creates.end(stored_number)
    await run_sql(
        database.pool,
        "UPDATE responses SET enqueued_at = enqueued_at - interval '1 second'"
        " WHERE id = ANY(%(ids)s)",
        {"ids": [unclear, stored]},
    )
    for _ in range(3):
        await renew()
    assert await _may_claim(database, unclear, stored) == set()

    await fetch(
        database.pool, create_queries.VOID_UNCLEAR_CREATES, void_values([unclear_create], web.id)
    )
    creates.remove_unclear([unclear])
    await until(is_settled)
    assert await _may_claim(database, unclear, stored) == {stored}
    assert (await database.response_row(unclear))["status"] == "cancelled"


async def test_a_queued_response_is_cancelled_at_once_unless_it_was_claimed_first(
    database: SeededDatabase,
) -> None:
    worker = await database.create_worker()
    for _ in range(20):
        response_id = await database.create_response()
        values = {
            "id": response_id,
            "completed_at": 1_800_000_000,
            "reason": "cancelled",
            "number": 2,
            "frames": frames(2, 2),
        }
        claim, ended = await asyncio.gather(
            worker.ownership.take(response_id),
            fetch(database.pool, end_queries.CANCEL_QUEUED, values),
        )
        assert (claim is None) is bool(ended)
        assert (await database.response_row(response_id))["status"] == (
            "cancelled" if ended else "in_progress"
        )


@pytest.mark.timeout(20)
async def test_a_cancel_of_a_response_that_is_deleted_meanwhile_is_a_404_and_not_an_endless_loop(
    database: SeededDatabase,
) -> None:
    store = ResponseStore(
        database.pool,
        SilentRedis(),  # type: ignore[arg-type]
        EventReader(database.pool, FakeBus()),  # type: ignore[arg-type]
        AnswerCache(settings_for(database.dsn), "silent"),
        0,
        DatabaseClock(),
        Hooks(),
    )
    name = await database.create_response()
    row = await store.find_row(database.project, public_response_id(name))
    await run_sql(database.pool, "DELETE FROM responses WHERE id = %(id)s", {"id": name})
    with pytest.raises(NotFound):
        await store.cancel(row, Actor(ActorKind.SERVER))
