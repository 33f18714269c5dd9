"""The rows of responses that wait for their previous one: who claims them, what its end does."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from models.db.database import execute, fetch
from models.db.queries import chains, create, line, retention, sweep
from models.db.queries.chains import ReadySuccessor
from models.errors import Cancelled, InvalidRequest
from models.ids import response_id
from models.lifecycle import Status
from models.ownership.takeover import EndReason
from models.wire.request import CreateRequest
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import (
    SeededDatabase,
    ending,
    insert_values,
    line_values,
    open_seeded_database,
)
from web.responses.continuation import MAX_BESIDE, load_continuation

SWEEP = {"max_rows": 10, "waiting": timedelta(0), "quarantine": False, "in_line": True}
QUEUE_WAIT = timedelta(days=3650)
"""Of `insert_values`."""


@pytest.fixture(scope="module")
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 6) as database:
        yield database


@pytest.fixture
async def _emptied(database: SeededDatabase) -> None:
    await run_sql(database.pool, "TRUNCATE responses CASCADE")


pytestmark = pytest.mark.usefixtures("_emptied")


async def _wait_for(database: SeededDatabase, previous: UUID) -> UUID:
    """A response that waits for `previous`, as a web process stores it."""
    row = database.new_row(previous=previous)
    async with database.pool.connection() as connection, connection.transaction():
        scope = {"id": previous, "project": database.project}
        assert await fetch(connection, chains.AWAIT_PREVIOUS, scope) == [previous]
        await fetch(connection, create.INSERT, insert_values(row))
        await execute(connection, chains.WAIT, {"id": row.id})
    assert await fetch(database.pool, chains.CONFIRM_WAITING, {"id": row.id}) == [False]
    return row.id


async def test_it_is_claimed_only_after_the_end_and_its_time_in_line_begins_then(
    database: SeededDatabase,
) -> None:
    worker = await database.create_worker()
    first = await database.create_response()
    second = await _wait_for(database, first)
    claim = await worker.ownership.take(first)
    assert claim is not None
    assert await worker.ownership.take(second) is None
    assert await worker.ownership.take_orphans([second]) == []
    assert await fetch(database.pool, line.CLAIM_NEXT, line_values(worker)) == []
    for query in (sweep.ORPHANS, sweep.ORPHANS_TO_END):
        assert await fetch(database.pool, query, SWEEP) == []
    # A clock that is set back: what waits in line is moved to the present, and this one waits on.
    await run_sql(database.pool, "UPDATE responses SET enqueued_at = now() + interval '1 hour'")
    await fetch(database.pool, retention.REPAIR_RESPONSES, {"rows": 10})
    assert await worker.ownership.take(second) is None

    assert await worker.ownership.end(claim, ending(Status.INCOMPLETE, 2, 3))
    assert await worker.ownership.ready_successors(first) == [ReadySuccessor(second, False)]
    row = await database.response_row(second)
    assert (row["waits"], row["resume_at"], row["status"]) == (None, None, "queued")
    left = row["deadline"] - row["enqueued_at"]
    assert QUEUE_WAIT <= left <= QUEUE_WAIT + timedelta(hours=2)
    assert await worker.ownership.take(second) is not None


async def test_a_failure_ends_those_that_wait_one_after_the_other(
    database: SeededDatabase,
) -> None:
    worker = await database.create_worker()
    made = [await database.create_response()]
    for _ in range(3):
        made.append(await _wait_for(database, made[-1]))
    claim = await worker.ownership.take(made[0])
    assert claim is not None
    await worker.ownership.end(claim, ending(Status.FAILED, 2, 3))
    for waiting in made[1:]:
        assert await fetch(database.pool, sweep.ORPHANS_TO_END, SWEEP) == [waiting]
        [claim] = await worker.ownership.take_orphans([waiting])
        assert claim.end_reason is EndReason.PREVIOUS_FAILED
        is_awaited = await worker.ownership.end(claim, ending(Status.FAILED, 2, 3))
        assert is_awaited is (waiting != made[-1])


async def test_an_operator_ends_one_that_waits_and_its_cancel_goes_first(
    database: SeededDatabase,
) -> None:
    worker = await database.create_worker()
    first = await database.create_response()
    ended, cancelled = await _wait_for(database, first), await _wait_for(database, first)
    await run_sql(database.pool, "UPDATE responses SET fail_requested_at = now() WHERE waits")
    await run_sql(
        database.pool,
        "UPDATE responses SET cancel_requested_at = now() WHERE id = %(id)s",
        {"id": cancelled},
    )
    claims = {each.id: each for each in await worker.ownership.take_orphans([ended, cancelled])}
    assert claims[ended].end_reason is EndReason.FAILED_BY_OPERATOR
    assert claims[cancelled].end_reason is EndReason.CANCELLED
    with pytest.raises(Cancelled):
        await worker.ownership.end(claims[cancelled], ending(Status.FAILED, 2, 3))


async def test_the_end_of_the_previous_one_waits_for_a_create_and_finds_it(
    database: SeededDatabase,
) -> None:
    worker = await database.create_worker()
    first = await database.create_response()
    claim = await worker.ownership.take(first)
    assert claim is not None
    row = database.new_row(previous=first)
    async with await psycopg.AsyncConnection.connect(database.dsn) as creating:
        scope = {"id": first, "project": database.project}
        await creating.execute(chains.AWAIT_PREVIOUS.sql, scope)
        end = asyncio.ensure_future(worker.ownership.end(claim, ending(Status.COMPLETED, 2, 3)))
        await creating.execute(create.INSERT.sql, insert_values(row))
        await creating.execute(chains.WAIT.sql, {"id": row.id})
        assert not end.done()
        await creating.commit()
    assert await end
    assert (await database.response_row(row.id))["waits"] is None
    late = {"id": first, "project": database.project}
    assert await fetch(database.pool, chains.AWAIT_PREVIOUS, late) == [], "it has ended"


async def test_projects_that_only_wait_hide_no_other(database: SeededDatabase) -> None:
    worker = await database.create_worker()
    await run_sql(
        database.pool,
        "INSERT INTO projects (id, name) SELECT p, p::text"
        " FROM (SELECT gen_random_uuid() AS p FROM generate_series(1, 400)) t",
    )
    await run_sql(
        database.pool,
        "INSERT INTO responses (id, project_id, status, background, store, model, parameters,"
        " created_at, expires_at, enqueued_at, deadline, resume_at, waits)"
        " SELECT gen_random_uuid(), id, 'queued', true, true, 'm', '{}', now(), now(), now(),"
        " 'infinity', '9999-01-01', true FROM projects WHERE name <> 'house'",
    )
    ready = await database.create_response()
    last = {"id": UUID(int=2**128 - 2)}
    await run_sql(database.pool, "INSERT INTO projects (id, name) VALUES (%(id)s, 'last')", last)
    await run_sql(
        database.pool, "UPDATE responses SET project_id = %(id)s WHERE waits IS NULL", last
    )
    rows = await fetch(database.pool, line.CLAIM_NEXT, line_values(worker, max_rows=5))
    assert [row.id for row in rows] == [ready]


async def test_how_many_wait_is_limited(database: SeededDatabase) -> None:
    async def refusal(previous: UUID, max_waiting: int) -> str | None:
        request = CreateRequest(
            model="m",
            input=[],
            parameters={},
            background=True,
            previous_response_id=response_id(previous),
            waits=True,
        )
        try:
            continuation = await load_continuation(
                database.pool, database.project, request, max_waiting=max_waiting
            )
        except InvalidRequest as error:
            return f"{error.param} {error.code}: {error.message}"
        assert continuation.waits
        return None

    first = await database.create_response()
    second = await _wait_for(database, first)
    third = await _wait_for(database, second)
    assert await refusal(third, 3) is None
    code = "previous_response_id too_many_waiting_responses: At most"
    assert (await refusal(third, 2) or "").startswith(f"{code} 2 responses may wait in a row")
    for _ in range(MAX_BESIDE - 1):
        await _wait_for(database, first)
    message = await refusal(first, 3) or ""
    assert message.startswith(f"{code} {MAX_BESIDE} responses may wait for the same one")
    assert await refusal(second, 3) is None
