"""The witness and the auditor against the real thing: the story of a kill, told with nothing but their means."""

import asyncio

from tests.chaos.audit.auditor import audit
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.chaos.recording_client import RecordedClients
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import SHORT_LEASES

WORDS = [f"w{number} " for number in range(30)]


async def test_what_a_kill_leaves_behind_is_clean(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        private_stack(webs=2, workers=2, settings=SHORT_LEASES, signed=True) as one,
        RecordedClients(one, seed=1) as witness,
    ):
        for process in one.workers:
            witness.record_worker(process.name)
        stories = [
            await witness.create(reply(*WORDS, gap=0.05), stream=True, disconnect_after=(4, 5))
            for _ in range(4)
        ]
        for _ in range(3):
            stories.append(await witness.create(reply(*WORDS, gap=0.05)))
            witness.start_reader(stories[-1])
            witness.start_poller(stories[-1])
        foreground = asyncio.create_task(witness.create(reply(*WORDS, gap=0.02), background=False))
        cancelled = await witness.create(reply(*WORDS, gap=0.5))
        await until(lambda: fake.requests_for(cancelled.marker))
        assert (await witness.cancel(cancelled)).status == 200
        victim = next(
            process
            for process in one.workers
            if fake.requests_for(stories[0].marker)[0]
            .headers["authorization"]
            .endswith(process.name)
        )
        witness.record_fault("killed", victim.name)
        one.kill(victim)
        await foreground
        await witness.finish()
        child = await witness.create(reply("more"), previous=stories[0])
        assert child.create.status == 200
        record = await witness.finish()
    report = audit(record)
    assert not report.violations, report
    assert report.responses == len(record.traces)
    assert report.measures.recovery
    assert len(report.measures.cancel + report.measures.cancel_in_trouble) == 1
