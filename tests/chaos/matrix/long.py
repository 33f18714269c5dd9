"""The long cells of the fault matrix: with the default leases, because these times are themselves the promise."""

import asyncio
import itertools
import time

from tests.chaos.audit.auditor import audit
from tests.chaos.audit.record import ResponseTrace
from tests.chaos.matrix.servers import assert_nobody_died
from tests.chaos.matrix.web import assert_create_refused
from tests.chaos.matrix.worker import JOURNAL, WorkerLoad
from tests.support.api import until
from tests.support.chaos.lab import Lab, Victim
from tests.support.chaos.recording_client import RecordedClients
from tests.support.fake_upstream import reply

zombie = Victim("zombie", webs=1)
zombie_default_leases = Victim("zombie", webs=1, default_leases=True)
everything = Victim("everything", default_leases=True, quarantine=True)
away = Victim("postgres-away", own_postgres=True, webs=1, default_leases=True)

WORDS = [f"w{number} " for number in range(20)]
WORKER_TABLE_DIGESTS = {
    "responses": "SELECT md5(string_agg(t::text, '|' ORDER BY id)) FROM responses t",
    "items": "SELECT md5(string_agg(t::text, '|' ORDER BY id)) FROM items t",
    "event_log": "SELECT md5(string_agg(t::text, '|' ORDER BY response_id, first_number)) FROM event_log t",
    "journal": "SELECT md5(string_agg(t::text, '|' ORDER BY worker, batch)) FROM journal t",
    "workers": "SELECT md5(string_agg((id, dead, ended, flushed_batch)::text, '|' ORDER BY id)) FROM workers",
}
"""Everything there is in the tables that a worker writes to."""
UNFLUSHED = "SELECT count(*) FROM journal j JOIN workers w ON w.id = j.worker WHERE NOT w.dead AND j.batch > w.flushed_batch"


@zombie.cell("past-its-lease")
async def wakes_up_past_its_lease(lab: Lab) -> None:
    await _wakes_up(lab, 0)


@zombie_default_leases.cell("after-30-s")
async def wakes_up_after_half_a_minute(lab: Lab) -> None:
    await _wakes_up(lab, 30)


async def _wakes_up(lab: Lab, seconds: float) -> None:
    """A worker is stopped with a stored batch that it has not shown, its upstreams go on to their end, and when it wakes up, it has all
    that in its hands. Meanwhile another worker has finished one load and is in the middle of the other, whose readers never left."""
    finished = await lab.start_load()
    crew = await WorkerLoad.of(lab)
    snare = crew.victim.proxies.postgres.hold_answer(JOURNAL)
    crew.load.release_second_word()
    await snare.answered.wait()
    owners = finished.owners()
    lab.freeze(crew.victim)
    frozen = time.monotonic()
    snare.release()
    crew.load.finish_first_attempts()
    await finished.finish(60)
    await crew.load.wait_for_words(3, crew.runs_of(crew.victim))
    await until(lambda: time.monotonic() - frozen > seconds, 60)
    await until(lambda: _is_flushed(lab), 20)
    before = await _table_digests(lab)
    lab.thaw(crew.victim)
    await lab.wait_until_exited(crew.victim)
    assert await _table_digests(lab) == before, "not one write of it was accepted"
    await crew.assert_ends(crew.victim)
    assert all(member.connections == 1 for member in crew.load.members if member.frames), (
        "no reader had to come back"
    )
    await finished.assert_outcomes(
        attempts={kind: 2 if owner is crew.victim else 1 for kind, owner in owners.items()}
    )


async def _is_flushed(lab: Lab) -> bool:
    """Whether the living have flushed all they have said."""
    return bool(await lab.stack.value(UNFLUSHED) == 0)


async def _table_digests(lab: Lab) -> dict[str, str]:
    return {
        table: await lab.stack.value(question) for table, question in WORKER_TABLE_DIGESTS.items()
    }


@everything.cell("rolling-restart")
async def every_process_is_replaced_under_load(lab: Lab) -> None:
    """A successor is started, then the predecessor asked to stop: nothing fails, nothing dies, and nobody notices."""
    async with RecordedClients(lab.stack, seed=4) as witness:
        rolled = asyncio.Event()
        clients = asyncio.create_task(_run_clients(witness, rolled))
        await until(lambda: len(witness.record.traces) > 8)
        for predecessor in [*lab.stack.workers, *lab.stack.webs]:
            if predecessor in lab.stack.webs:
                await lab.stack.start_web()
            else:
                await lab.stack.start_worker(quarantine=predecessor.name.startswith("quarantine"))
            fault = witness.record_fault("stopped", predecessor.name)
            await lab.stack.stop(predecessor)
            fault.end = time.monotonic()
        rolled.set()
        await clients
        record = await witness.finish()
    report = audit(record)
    assert not report.violations, report
    refused = [
        (story.marker, story.background, story.create)
        for story in record.traces
        if story.create.status != 200
    ]
    assert not refused, refused
    assert len(record.traces) > 20, len(record.traces)
    assert report.responses == len(record.traces), (report.responses, len(record.traces))
    assert {_status(story) for story in record.traces} == {"completed"}
    assert await lab.stack.value("SELECT sum(deaths) FROM responses") == 0
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


def _status(story: ResponseTrace) -> str:
    return str(story.requests_of("get")[-1].body["status"])


async def _run_clients(clients: RecordedClients, over: asyncio.Event) -> None:
    """Clients of every kind, several a second, until it is over; then until each of them has its answer."""
    running: set[asyncio.Task[ResponseTrace]] = set()
    for number in itertools.count():
        if over.is_set():
            break
        script = reply(*WORDS, gap=0.1)
        previous = next(
            (
                story
                for story in reversed(clients.record.traces)
                if story.create.body.get("status") == "completed"
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
    for story in await asyncio.gather(*running):
        if story.background and not story.readings:
            clients.start_poller(story)


@away.cell("for-20-s")
async def postgres_is_away_for_twenty_seconds(lab: Lab) -> None:
    """Twice the lease: every response keeps its attempt and its upstream connection; what is refused meanwhile never runs (I9)."""
    load = await lab.start_load()
    server = lab.database_server.server
    assert server is not None
    fault = lab.fault("away", "postgres")
    await asyncio.to_thread(server.stop)
    load.release_second_word()
    unheard = []
    while time.monotonic() - fault.begin < 20:
        unheard.append(await assert_create_refused(lab))
    await asyncio.to_thread(server.start)
    fault.end = time.monotonic()
    await assert_nobody_died(lab, load)
    assert unheard
    assert not any(map(lab.fake.requests_for, unheard))
