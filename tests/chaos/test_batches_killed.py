"""A batch whose processes are killed in every phase: each request has one result all the same."""

import pytest

from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.batches import line, results, start
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

REQUESTS = 3_000


async def test_each_request_has_one_result_although_all_processes_are_killed(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """The worker and the web process die while lines are checked, while they become responses, and
    while results are written."""
    model = fake.script(reply("yes"))
    names = [f"request-{number}" for number in range(REQUESTS)]
    settings = {"BACKBURNER_BATCHES__OPEN": "300"}
    async with private_stack(settings=settings) as own:
        client = own.openai()
        batch = await start(client, [line(name, model) for name in names])
        for condition in (
            "validated_lines > 0",
            "expanded > 0",
            f"completed > {REQUESTS // 4}",
            f"completed > {REQUESTS // 2}",
        ):
            await _until(own, condition)
            web, worker = own.webs[0], own.workers[0]
            own.kill(worker)
            own.kill(web)
            await own.start_web(web.port)
            await own.start_worker()
        await _until(own, "status = 'completed'")

        final = await client.batches.retrieve(batch.id)
        output = await results(client, final.output_file_id)
        assert sorted(output) == sorted(names)
        assert final.error_file_id is None
        counts = final.request_counts
        assert counts is not None
        assert (counts.total, counts.completed, counts.failed) == (REQUESTS, REQUESTS, 0)
        assert await own.value("SELECT count(*) FROM responses") == REQUESTS


async def _until(own: Stack, condition: str) -> None:
    async def holds() -> bool:
        return bool(await own.value(f"SELECT {condition} FROM batches"))

    await until(holds, within=400, every=0.05)
