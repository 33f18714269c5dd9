"""The witness and the auditor against the real thing: the story of a kill, told with nothing but their means."""

import asyncio

from tests.chaos.audit.auditor import audit
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.chaos.recording_client import Witness
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import IMPATIENT

WORDS = [f"w{number} " for number in range(30)]


async def test_what_a_kill_leaves_behind_is_clean(
    private: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        private(webs=2, workers=2, settings=IMPATIENT, signed=True) as one,
        Witness(one, seed=1) as witness,
    ):
        for process in one.workers:
            witness.worker(process.name)
        stories = [
            await witness.create(reply(*WORDS, gap=0.05), stream=True, leave=(4, 5))
            for _ in range(4)
        ]
        for _ in range(3):
            stories.append(await witness.create(reply(*WORDS, gap=0.05)))
            witness.read_on(stories[-1])
            witness.poll_on(stories[-1])
        foreground = asyncio.create_task(witness.create(reply(*WORDS, gap=0.02), background=False))
        cancelled = await witness.create(reply(*WORDS, gap=0.5))
        await until(lambda: fake.asked(cancelled.marker))
        assert (await witness.cancel(cancelled)).status == 200
        victim = next(
            process
            for process in one.workers
            if fake.asked(stories[0].marker)[0].headers["authorization"].endswith(process.name)
        )
        witness.fault("killed", victim.name)
        one.kill(victim)
        await foreground
        await witness.settle()
        child = await witness.create(reply("more"), previous=stories[0])
        assert child.create.status == 200
        record = await witness.settle()
    report = audit(record)
    assert not report.violations, report
    assert report.responses == len(record.stories)
    assert report.measures.recovery
    assert len(report.measures.cancel + report.measures.cancel_in_trouble) == 1
