"""Which of the waiting responses are claimed, and what the choice reads of a long line."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import orjson
import pytest

from models.db.arrays import Booleans, Ints, Uuids
from models.db.database import fetch
from models.db.queries import line
from models.ids import new_uuid
from models.lifecycle import Lane
from models.load.budget import SharedBudget
from models.ownership.line import ClaimRequest
from tests.support.sql import Record, rows_read, run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import (
    DatabaseWorker,
    SeededDatabase,
    line_values,
    open_seeded_database,
)
from web.responses.shown import ShownResponses
from worker.intake.line import ProjectShares

SHORT = 10_000
LONG = pytest.param(100_000, marks=pytest.mark.long)
PROJECTS = 1000


@pytest.fixture(scope="module")
async def seeded(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 6) as database:
        yield database


@pytest.fixture
async def database(seeded: SeededDatabase) -> SeededDatabase:
    """Without responses."""
    await run_sql(seeded.pool, "TRUNCATE responses CASCADE")
    return seeded


async def _create_projects(database: SeededDatabase, *weights: int) -> list[UUID]:
    ids = [new_uuid() for _ in weights]
    await run_sql(
        database.pool,
        "INSERT INTO projects (id, name, weight) SELECT id, id::text, weight"
        " FROM unnest(%(ids)s::uuid[], %(weights)s::int[]) AS t (id, weight)",
        {"ids": ids, "weights": list(weights)},
    )
    return ids


async def _insert(
    database: SeededDatabase, projects: list[UUID], number: int, **columns: Any
) -> None:
    """So many responses in line, spread over the projects. `columns`: others of the row."""
    values = {"background": True, "lane": 1, "deadline": "1 day"} | columns
    async with database.pool.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL synchronous_commit = off")
        await connection.execute("SET LOCAL session_replication_role = replica")
        await run_sql(
            connection,
            "INSERT INTO responses (id, project_id, status, background, store, model, parameters,"
            " created_at, expires_at, enqueued_at, deadline, lane) SELECT gen_random_uuid(),"
            " (%(projects)s::uuid[])[1 + n %% %(count)s], 'queued', %(background)s, true, 'm',"
            " '{}', now(), now() + interval '1 day', now() - interval '1 hour'"
            " + n * interval '1 ms', now() + %(deadline)s::interval, %(lane)s"
            " FROM generate_series(1, %(number)s) n",
            {"projects": projects, "count": len(projects), "number": number, **values},
        )


async def _explain(database: SeededDatabase, values: dict[str, object]) -> dict[str, Any]:
    """The analyzed plan of CLAIM_NEXT; what it changes is rolled back."""
    async with (
        database.pool.connection() as connection,
        connection.transaction(force_rollback=True),
    ):
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {line.CLAIM_NEXT.sql}"
        cursor = await connection.execute(explain.encode(), values)
        row = await cursor.fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


async def _served(
    database: SeededDatabase, worker: DatabaseWorker, slots: int, turns: int
) -> Counter[UUID]:
    """Fills the slots of a worker; then one response after the other ends, the oldest first.
    Returns how many responses of each project were claimed in the turns."""
    shares, running = ProjectShares(), list[UUID]()
    counts: Counter[UUID] = Counter()
    while len(running) < slots or counts.total() < turns:
        if len(running) == slots:
            shares.end(running.pop(0))
        chosen = await worker.ownership.take_next(ClaimRequest(1, [True], slots, shares.known()))
        [project] = [each.claim.row.project_id for each in chosen]
        if len(running) == slots - 1 and counts.total() + len(running) >= slots - 1:
            counts[project] += 1
        shares.serve(chosen)
        shares.begin(project)
        running.append(project)
    return counts


@pytest.mark.parametrize("slots", [1, 2, 4, 7])
async def test_projects_get_slots_by_their_weights(database: SeededDatabase, slots: int) -> None:
    three, one = await _create_projects(database, 3, 1)
    await _insert(database, [three, one], 120)
    worker = await database.create_worker()
    counts = await _served(database, worker, slots, turns=40)
    assert 28 <= counts[three] <= 32, counts
    assert 8 <= counts[one] <= 12, counts


async def test_several_free_slots_are_shared_too(database: SeededDatabase) -> None:
    many, few = await _create_projects(database, 1, 1)
    await _insert(database, [many], 100)
    await _insert(database, [few], 3)
    worker = await database.create_worker()
    rows = await fetch(database.pool, line.CLAIM_NEXT, line_values(worker, max_rows=10))
    assert Counter(row.project_id for row in rows) == {many: 7, few: 3}


async def test_workers_that_choose_at_once_claim_each_response_once(
    database: SeededDatabase,
) -> None:
    projects = await _create_projects(database, *[1] * 10)
    await _insert(database, projects, 120)
    workers = [await database.create_worker() for _ in range(6)]

    async def claim(worker: DatabaseWorker) -> list[UUID]:
        claimed = []
        while rows := await fetch(database.pool, line.CLAIM_NEXT, line_values(worker, max_rows=3)):
            claimed += [row.id for row in rows]
        return claimed

    claimed = [each for ids in await asyncio.gather(*map(claim, workers)) for each in ids]
    assert len(claimed) == len(set(claimed))
    # A worker that saw only rows which the others held has stopped before the end.
    claimed += await claim(workers[0])
    assert len(claimed) == 120


async def test_what_may_not_run_now_is_not_chosen(database: SeededDatabase) -> None:
    worker = await database.create_worker()
    await _insert(database, [database.project], 1, deadline="-1 second")
    await _insert(database, [database.project], 3)
    await run_sql(
        database.pool,
        "UPDATE responses r SET resume_at = now() + CASE nr WHEN 1 THEN interval '1 minute' END,"
        " cancel_requested_at = CASE nr WHEN 2 THEN now() END,"
        " crashes = CASE nr WHEN 3 THEN 2 ELSE 0 END FROM"
        " (SELECT id, row_number() OVER () AS nr FROM responses WHERE deadline > now()) n"
        " WHERE n.id = r.id",
    )
    values = line_values(worker, max_rows=10)
    assert await fetch(database.pool, line.CLAIM_NEXT, values) == []
    await run_sql(
        database.pool,
        "UPDATE responses SET resume_at = now() - interval '1 s' WHERE resume_at IS NOT NULL",
    )
    assert len(await fetch(database.pool, line.CLAIM_NEXT, values)) == 1


async def test_an_operator_sees_how_many_go_before_a_response(database: SeededDatabase) -> None:
    await _insert(database, [database.project], 13)
    await _insert(database, await _create_projects(database, 1), 20)
    await _insert(database, [database.project], 5, lane=Lane.PRIORITY.value)
    worker = await database.create_worker()
    [last] = await run_sql(
        database.pool,
        "SELECT id FROM responses WHERE project_id = %(project)s AND lane = 1"
        " ORDER BY enqueued_at DESC LIMIT 1",
        {"project": database.project},
    )
    places = await fetch(database.pool, line.PLACE_OF, last)
    assert places == [line.PlaceInLine(Lane.DEFAULT, before=12)]
    while len(await fetch(database.pool, line.CLAIM_NEXT, line_values(worker, max_rows=20))):
        pass
    assert await fetch(database.pool, line.PLACE_OF, last) == []


async def test_the_places_of_a_line_are_those_of_one_project_and_lane(
    database: SeededDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.responses.progress.MAX_COUNTED", 10)
    await _insert(database, [database.project], 13)
    await _insert(database, await _create_projects(database, 1), 20)
    await _insert(database, [database.project], 5, lane=Lane.PRIORITY.value)
    ids = await run_sql(
        database.pool,
        "SELECT id FROM responses WHERE project_id = %(project)s AND lane = 1 ORDER BY enqueued_at",
        {"project": database.project},
    )
    responses, memory = ShownResponses(database.pool), SharedBudget("outputs", 1_000_000, 0)

    async def wait(row: Record) -> object:
        shown = await responses.body(
            database.project, row["id"], hold=lambda: memory.reserve("project", 0)
        )
        assert shown is not None
        return orjson.loads(shown.body)["progress"]["waits_for"]

    unknown = {"type": "slot", "expected_start_at": None}
    assert await wait(ids[0]) == unknown | {"position": 1, "position_above": None}
    assert await wait(ids[9]) == unknown | {"position": 10, "position_above": None}
    assert await wait(ids[11]) == unknown | {"position": None, "position_above": 10}
    deferred = (
        "UPDATE responses SET resume_at = now() + interval '1 h' WHERE id = %(id)s RETURNING 1"
    )
    await run_sql(database.pool, deferred, {"id": ids[0]["id"]})
    found = await wait(ids[0])
    assert isinstance(found, dict)
    assert (found["type"], found["tries"]) == ("upstream", None)


@pytest.mark.parametrize("length", [SHORT, LONG])
async def test_a_choice_reads_no_line(database: SeededDatabase, length: int) -> None:
    """Neither the lines of one project, nor that of a thousand projects."""
    [alone] = await _create_projects(database, 1)
    projects = await _create_projects(database, *[1] * PROJECTS)
    await _insert(database, [alone], length // 2)
    await _insert(database, [alone], length // 2, lane=Lane.WINDOW_8H.value)
    await _insert(database, projects, length, background=False)
    await run_sql(database.pool, "ANALYZE responses")
    worker = await database.create_worker()
    known = {"projects": Uuids(projects[:20]), "running": Ints([1] * 20), "ahead": [0.5] * 20}
    for background, most in ((True, 60), (False, 2500)):
        values = line_values(worker, cursor=projects[500]) | known
        values["kinds"] = Booleans([background])
        plan = await _explain(database, values)
        assert sum(rows_read(plan)) < most
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 10 * most
        rows = await fetch(database.pool, line.CLAIM_NEXT, values)
        assert [row.background for row in rows] == [background]
