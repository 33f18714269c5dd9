"""What workers write for the plots, and what the page shows of it."""

import asyncio
import html
import re
from collections.abc import AsyncIterator

import pytest

from features.console.worker import Activity, ActivityWriter
from models.db.database import Pool, fetch, open_pool
from models.db.queries.activity import DELETE_OLD_ACTIVITY, MAX_NAMES, OTHERS
from models.ended_line import EndedLine
from models.ids import new_uuid
from models.lifecycle import Status
from tests.support.console import OPERATOR_TOKEN, console_user
from tests.support.stack import Databases, Stack
from tests.support.worker_rows import settings_for


def _line(
    status: Status, seconds: float, first_token: float | None = 0.2, model: str = "m"
) -> EndedLine:
    return EndedLine(
        response=new_uuid(),
        request=None,
        status=status,
        model=model,
        cost=250,
        background=True,
        seconds=seconds,
        first_token_seconds=first_token,
        usage={"input_tokens": 10, "output_tokens": 5},
    )


@pytest.fixture
async def pool(database_server: Databases) -> AsyncIterator[Pool]:
    one = open_pool(settings_for(await database_server.create_copy()), "activity", 4)
    await one.open(wait=True)
    yield one
    await one.close()


async def _rows(pool: Pool) -> list[tuple[object, ...]]:
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT width, sampled, waiting, running, completed, failed, input_tokens,"
            " (SELECT sum(n) FROM unnest(first_token_counts) AS c (n)),"
            " (SELECT sum(n) FROM unnest(total_counts) AS c (n)) FROM activity ORDER BY width"
        )
        return await cursor.fetchall()


async def test_workers_add_up_what_they_have_ended_and_one_of_them_samples(pool: Pool) -> None:
    busy, failing, idle = Activity(), Activity(), Activity()
    for _ in range(3):
        busy.count_end(_line(Status.COMPLETED, 1.5))
    busy.count_end(_line(Status.CANCELLED, 9.0))
    failing.count_end(_line(Status.FAILED, 30.0, first_token=None))
    await asyncio.gather(*(ActivityWriter(pool, each).write() for each in (busy, failing, idle)))
    minute, ten_minutes = await _rows(pool)
    assert minute == (60, True, 0, 0, 3, 1, 50, 3, 4)
    assert ten_minutes == (600, False, 0, 0, 3, 1, 50, 3, 4)


async def test_names_are_counted_apart_up_to_a_number_of_each_minute(pool: Pool) -> None:
    """Also those that several workers add at once: clients choose the names of models."""
    workers = Activity(), Activity()
    for worker, activity in enumerate(workers):
        for name in range(2 * MAX_NAMES):
            activity.count_end(_line(Status.FAILED, 1.0, model=f"{worker}-{name}"))
        activity.count_end(_line(Status.COMPLETED, 1.0, model="both"))
        activity.count_end(_line(Status.COMPLETED, 1.0, model="both"))
    await ActivityWriter(pool, workers[0]).write()
    await ActivityWriter(pool, workers[1]).write()
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT width, kind, count(*) FILTER (WHERE name <> %s), sum(completed), sum(failed),"
            " sum(cost), sum(completed) FILTER (WHERE name = 'both') FROM activity_parts"
            " GROUP BY width, kind ORDER BY width, kind",
            [OTHERS],
        )
        rows = await cursor.fetchall()
    sums = (4, 4 * MAX_NAMES, 250 * (4 * MAX_NAMES + 4))
    expected = [("model", MAX_NAMES, *sums, 4), ("project", 0, *sums, None)]
    expected.append(("upstream", 1, *sums, None))
    assert rows == [(width, *each) for width in (60, 600) for each in expected]


async def test_what_could_not_be_written_is_written_the_next_time(
    pool: Pool, database_server: Databases
) -> None:
    activity = Activity()
    activity.count_end(_line(Status.COMPLETED, 1.5))
    closed = open_pool(settings_for(await database_server.create_copy()), "closed", 1)
    await closed.close()
    await ActivityWriter(closed, activity).write()
    activity.count_end(_line(Status.COMPLETED, 2.5))
    await ActivityWriter(pool, activity).write_last()
    assert [row[4:6] for row in await _rows(pool)] == [(2, 0), (2, 0)]


async def test_what_no_plot_shows_is_deleted(pool: Pool) -> None:
    async with pool.connection() as connection:
        for width, age in ((60, "2 hours"), (60, "4 hours"), (600, "7 days"), (600, "9 days")):
            await connection.execute(
                "INSERT INTO activity (width, begins_at) VALUES (%s, now() - %s::interval)",
                [width, age],
            )
    assert len(await fetch(pool, DELETE_OLD_ACTIVITY, {})) == 2
    assert [row[0] for row in await _rows(pool)] == [60, 600]


async def test_the_plots_say_in_words_and_in_a_table_what_they_show(shared_stack: Stack) -> None:
    at = "date_trunc('minute', now() - interval '5 minutes')"
    await shared_stack.value(
        "INSERT INTO activity (width, begins_at, waiting, oldest_seconds, completed, total_counts)"
        f" VALUES (60, {at}, 777, 42, 9, %s)"
        " ON CONFLICT (width, begins_at) DO UPDATE SET waiting = 777 RETURNING 1",
        [0, 0, 12],
    )
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await user.get("/console/activity")
        assert page.html.count('<svg viewBox="0 0 400 150" role="img" aria-label=') in (7, 8)
        assert "max 777" in page.text
        assert "style=" not in page.html
        assert "777" in (await user.get("/console/activity?table=1")).text
        for name in ("day", "week"):
            assert (await user.get(f"/console/activity?range={name}")).status == 200
        assert (await user.get("/console/activity?range=year")).status == 400


async def test_a_plot_by_model_leads_to_the_responses_of_that_time(shared_stack: Stack) -> None:
    name = f"plotted-{new_uuid()}"
    await shared_stack.value(
        "INSERT INTO activity_parts (width, kind, begins_at, name, completed, cost)"
        " VALUES (60, 'model', date_trunc('minute', now() - interval '5 minutes'), %s, 9000,"
        " 1000000000) RETURNING 1",
        name,
    )
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await user.get("/console/activity?by=model")
        assert "Cost (EUR), per hour, by model" in page.text
        links = re.findall(rf'href="(/console/responses\?model={name}[^"]+)"', page.html)
        # the name in each of the plots, and the points of two
        assert len(links) == 4 + 2
        for link in links:
            listed = await user.get(html.unescape(link))
            assert listed.status == 200, listed.text
            assert "mistake" not in listed.html
        for kind in ("project", "upstream"):
            assert (await user.get(f"/console/activity?by={kind}&range=week")).status == 200
        assert (await user.get("/console/activity?by=key")).status == 400
