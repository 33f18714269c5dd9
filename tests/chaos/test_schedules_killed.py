"""A web process is killed while it stores the slots of schedules: each runs once all the same."""

import time

import psycopg

from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack

SCHEDULES = 12
_DUE = """
    UPDATE schedules
    SET run_at = clock_timestamp(), decided_until = clock_timestamp() - interval '1 s',
        upcoming = ARRAY[clock_timestamp()], due_at = clock_timestamp()
    WHERE cron IS NULL RETURNING 1"""
_STORING = """
    SELECT count(DISTINCT application_name) FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND query LIKE '%%INSERT INTO schedule_runs%%'"""
_LEASES_END = """
    UPDATE schedules SET due_at = clock_timestamp()
    WHERE due_at > clock_timestamp() AND cron IS NULL RETURNING 1"""


async def test_each_slot_runs_once_although_a_web_process_is_killed(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """It dies between the statements of its transactions, while another one stores others."""
    model = fake.script(reply("yes"))
    async with private_stack(webs=2) as own:
        made = [await _create(own, model, run_at=int(time.time()) + 3600) for _ in range(SCHEDULES)]
        other = await _create(own, model, cron="0 0 29 2 *")
        async with await psycopg.AsyncConnection.connect(own.dsn) as connection:
            await connection.execute(
                "LOCK TABLE backburner.schedule_runs IN SHARE ROW EXCLUSIVE MODE"
            )
            await own.value(_DUE)
            for web in range(2):  # wakes both, which have no reason to look before
                await own.api(web).call("POST", f"/schedules/{other}", {})

            async def both_store() -> bool:
                return bool(await own.value(_STORING) == 2)

            await until(both_store, 30)
            own.kill(own.webs[0])
        api = own.api()

        async def all_completed() -> bool:
            await own.value(_LEASES_END)
            await api.call("POST", f"/schedules/{other}", {})
            open_ones = "SELECT count(*) FROM schedules WHERE completed_at IS NULL AND cron IS NULL"
            return bool(await own.value(open_ones) == 0)

        await until(all_completed, 40)
        for schedule in made:
            [run] = (await api.call("GET", f"/schedules/{schedule}/runs")).body["data"]
            assert run["status"] == "created"
            assert (await api.wait_for_end(run["response_id"]))["output_text"] == "yes"
        assert await own.value("SELECT count(*) FROM responses") == SCHEDULES


async def _create(own: Stack, model: str, **when: object) -> str:
    body = {"template": {"model": model, "input": "Hello."}, "missed": "run_all", **when}
    made: str = (await own.api().call("POST", "/schedules", body)).body["id"]
    return made
