"""The long cells of the fault matrix: the default leases, because their times are the promise."""

import asyncio
import itertools
import time

from tests.chaos.audit.auditor import audit
from tests.chaos.audit.record import ResponseTrace
from tests.chaos.matrix.checks import assert_create_refused, assert_no_process_died
from tests.chaos.matrix.worker import JOURNAL, WorkerLoad
from tests.support.api import until
from tests.support.chaos.lab import Lab, Victim
from tests.support.chaos.recording_client import RecordedClients
from tests.support.fake_upstream import reply

zombie = Victim("zombie", webs=1)
zombie_default_leases = Victim("zombie", webs=1, default_leases=True)
everything = Victim("everything", default_leases=True, quarantine=True)
away = Victim("postgres-away", own_postgres=True, webs=1, default_leases=True)

CHUNKS = [f"w{number} " for number in range(20)]
TABLE_DIGESTS = {
    "responses": "SELECT md5(string_agg(t::text, '|' ORDER BY id)) FROM responses t",
    "items": "SELECT md5(string_agg(t::text, '|' ORDER BY id)) FROM items t",
    "event_log": (
        "SELECT md5(string_agg(t::text, '|' ORDER BY response_id, first_number)) FROM event_log t"
    ),
    "journal": "SELECT md5(string_agg(t::text, '|' ORDER BY worker, batch)) FROM journal t",
    "workers": (
        "SELECT md5(string_agg((id, dead, ended, flushed_batch)::text, '|' ORDER BY id))"
        " FROM workers"
    ),
}
"""Digests of all rows in the tables that a worker writes to."""
COUNT_UNFLUSHED = (
    "SELECT count(*) FROM journal j JOIN workers w ON w.id = j.worker"
    " WHERE NOT w.dead AND j.batch > w.flushed_batch"
)


@zombie.cell("past-its-lease")
async def wakes_up_past_its_lease(lab: Lab) -> None:
    await _wakes_up(lab, 0)


@zombie_default_leases.cell("after-30-s")
async def wakes_up_after_half_a_minute(lab: Lab) -> None:
    await _wakes_up(lab, 30)


async def _wakes_up(lab: Lab, seconds: float) -> None:
    """A worker is frozen with a stored batch that it has not published, while its upstreams finish.

    Another worker finishes one load meanwhile and runs the other, whose readers stay connected.
    When the first worker wakes up, it must write nothing.
    """
    finished = await lab.start_load()
    worker_load = await WorkerLoad.of(lab)
    held = worker_load.victim.proxies.postgres.hold_answer(JOURNAL)
    worker_load.load.release_second_word()
    await held.answered.wait()
    owners = finished.owners()
    lab.freeze(worker_load.victim)
    frozen = time.monotonic()
    held.release()
    worker_load.load.finish_first_attempts()
    await finished.finish(60)
    await worker_load.load.wait_for_words(3, worker_load.runs_of(worker_load.victim))
    await until(lambda: time.monotonic() - frozen > seconds, 60)
    await until(lambda: _is_flushed(lab), 20)
    digests = await _table_digests(lab)
    lab.thaw(worker_load.victim)
    await lab.wait_until_exited(worker_load.victim)
    assert await _table_digests(lab) == digests, "one of its writes was accepted"
    await worker_load.assert_ends(worker_load.victim)
    assert all(member.connections == 1 for member in worker_load.load.members if member.frames), (
        "a reader had to connect again"
    )
    await finished.assert_outcomes(
        attempts={kind: 2 if owner is worker_load.victim else 1 for kind, owner in owners.items()}
    )


async def _is_flushed(lab: Lab) -> bool:
    """Returns whether live workers have flushed all their events."""
    return bool(await lab.stack.value(COUNT_UNFLUSHED) == 0)


async def _table_digests(lab: Lab) -> dict[str, str]:
    return {table: await lab.stack.value(query) for table, query in TABLE_DIGESTS.items()}


@everything.cell("rolling-restart")
async def every_process_is_replaced_under_load(lab: Lab) -> None:
    """Each process gets a successor and is then stopped: no response fails, and no process dies."""
    async with RecordedClients(lab.stack, seed=4) as clients:
        is_replaced = asyncio.Event()
        load = asyncio.create_task(_run_clients(clients, is_replaced))
        await until(lambda: len(clients.record.traces) > 8)
        for predecessor in [*lab.stack.workers, *lab.stack.webs]:
            if predecessor in lab.stack.webs:
                await lab.stack.start_web()
            else:
                await lab.stack.start_worker(quarantine=predecessor.name.startswith("quarantine"))
            fault = clients.record_fault("stopped", predecessor.name)
            await lab.stack.stop(predecessor)
            fault.end = time.monotonic()
        is_replaced.set()
        await load
        record = await clients.finish()
    report = audit(record)
    assert not report.violations, report
    refused = [
        (trace.marker, trace.background, trace.create)
        for trace in record.traces
        if trace.create.status != 200
    ]
    assert not refused, refused
    assert len(record.traces) > 20, len(record.traces)
    assert report.responses == len(record.traces), (report.responses, len(record.traces))
    assert {_status(trace) for trace in record.traces} == {"completed"}
    assert await lab.stack.value("SELECT sum(crashes) FROM responses") == 0
    assert (
        await lab.stack.value(
            "SELECT count(*) FROM workers WHERE ended IS NOT NULL AND ended <> 'stopped'"
        )
        == 0
    )
    assert (
        await lab.stack.value("SELECT count(*) FROM workers WHERE ended = 'stopped'")
        == lab.webs + lab.workers + 1
    )


def _status(trace: ResponseTrace) -> str:
    return str(trace.requests_of("get")[-1].body["status"])


async def _run_clients(clients: RecordedClients, over: asyncio.Event) -> None:
    """Starts clients of every kind, several a second, until `over`; waits for their answers."""
    running: set[asyncio.Task[ResponseTrace]] = set()
    for number in itertools.count():
        if over.is_set():
            break
        script = reply(*CHUNKS, gap=0.1)
        previous = next(
            (
                trace
                for trace in reversed(clients.record.traces)
                if trace.create.body.get("status") == "completed"
            ),
            None,
        )
        match number % 4:
            case 0:
                create = clients.create(script, stream=True, previous=previous)
            case 1:
                create = clients.create(script, background=False)
            case 2:
                create = clients.create(script, background=False, stream=True)
            case _:
                create = clients.create(script)
        running.add(asyncio.create_task(create))
        await asyncio.wait(running, timeout=0.3)
    for trace in await asyncio.gather(*running):
        if trace.background and not trace.readings:
            clients.start_poller(trace)


@away.cell("for-20-s")
async def postgres_is_down_for_twenty_seconds(lab: Lab) -> None:
    """Twice the lease: each response keeps its attempt, and refused creates never run (I9)."""
    load = await lab.start_load()
    fault = lab.fault("restarted", "postgres")
    await asyncio.to_thread(lab.postgres.stop)
    load.release_second_word()
    refusals = []
    for _ in range(10):  # one a second, so that some are sent while others wait
        refusals.append(asyncio.create_task(assert_create_refused(lab)))
        await asyncio.wait(refusals, timeout=1, return_when=asyncio.ALL_COMPLETED)
    refused = await asyncio.gather(*refusals)
    await until(lambda: time.monotonic() - fault.begin > 20, 20)
    await asyncio.to_thread(lab.postgres.start)
    fault.end = time.monotonic()
    await assert_no_process_died(lab, load)
    assert not any(map(lab.fake.requests_for, refused))
