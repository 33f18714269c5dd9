"""The recording client and the auditor with a real deployment: a killed worker is no violation."""

import asyncio

import pytest

from tests.chaos.audit.auditor import audit
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.chaos.recording_client import RecordedClients
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import SHORT_LEASES

CHUNKS = [f"w{number} " for number in range(30)]


@pytest.mark.long
async def test_a_run_with_a_killed_worker_has_no_violation(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        private_stack(webs=2, workers=2, settings=SHORT_LEASES, signed=True) as running,
        RecordedClients(running, seed=1) as clients,
    ):
        for process in running.workers:
            clients.record_worker(process.name)
        traces = [
            await clients.create(reply(*CHUNKS, gap=0.05), stream=True, disconnect_after=(4, 5))
            for _ in range(4)
        ]
        for _ in range(3):
            traces.append(await clients.create(reply(*CHUNKS, gap=0.05)))
            clients.start_reader(traces[-1])
            clients.start_poller(traces[-1])
        foreground = asyncio.create_task(clients.create(reply(*CHUNKS, gap=0.02), background=False))
        cancelled = await clients.create(reply(*CHUNKS, gap=0.5))
        await until(lambda: fake.requests_for(cancelled.marker))
        assert (await clients.cancel(cancelled)).status == 200
        victim = next(
            process
            for process in running.workers
            if fake.requests_for(traces[0].marker)[0]
            .headers["authorization"]
            .endswith(process.name)
        )
        clients.record_fault("killed", victim.name)
        running.kill(victim)
        await foreground
        await clients.finish()
        child = await clients.create(reply("more"), previous=traces[0])
        assert child.create.status == 200
        record = await clients.finish()
    report = audit(record)
    assert not report.violations, report
    assert report.responses == len(record.traces)
    measures = report.measures
    # Which of them depends on how much CPU the machine had.
    assert measures.recovery or measures.recovery_by_lease or measures.recovery_in_trouble
    assert len(report.measures.cancel + report.measures.cancel_in_trouble) == 1
