"""The long cells of the fault matrix: with the default leases, because these times are themselves the promise."""

import asyncio
import itertools
import time

from tests.chaos.audit.auditor import audit
from tests.chaos.audit.record import Story
from tests.chaos.matrix.servers import nobody_died
from tests.chaos.matrix.web import refused
from tests.chaos.matrix.worker import JOURNAL, Crew
from tests.support.api import until
from tests.support.chaos.lab import Lab, Victim
from tests.support.chaos.recording_client import Witness
from tests.support.fake_upstream import reply

zombie = Victim("zombie", webs=1)
patient_zombie = Victim("zombie", webs=1, default_leases=True)
everything = Victim("everything", default_leases=True, quarantine=True)
away = Victim("postgres-away", own_postgres=True, webs=1, default_leases=True)

WORDS = [f"w{number} " for number in range(20)]
WRITTEN = {
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


@patient_zombie.cell("after-30-s")
async def wakes_up_after_half_a_minute(lab: Lab) -> None:
    await _wakes_up(lab, 30)


async def _wakes_up(lab: Lab, seconds: float) -> None:
    """A worker is stopped with a stored batch that it has not shown, its upstreams go on to their end, and when it wakes up, it has all
    that in its hands. Meanwhile another worker has finished one load and is in the middle of the other, whose readers never left."""
    finished = await lab.load()
    crew = await Crew.of(lab)
    snare = crew.victim.wires.postgres.hold(JOURNAL)
    crew.load.go_on()
    await snare.caught.wait()
    owners = finished.owners()
    lab.freeze(crew.victim)
    frozen = time.monotonic()
    snare.release()
    crew.load.tell_the_first()
    await finished.finish(60)
    await crew.load.heard(3, crew.runs_of(crew.victim))
    await until(lambda: time.monotonic() - frozen > seconds, 60)
    await until(lambda: _is_zero(lab), 20)
    before = await _written(lab)
    lab.thaw(crew.victim)
    await lab.gone(crew.victim)
    assert await _written(lab) == before, "not one write of it was accepted"
    await crew.ends(crew.victim)
    assert all(member.connections == 1 for member in crew.load.members if member.frames), (
        "no reader had to come back"
    )
    await finished.judge(
        attempts={kind: 2 if owner is crew.victim else 1 for kind, owner in owners.items()}
    )


async def _is_zero(lab: Lab) -> bool:
    """Whether the living have flushed all they have said."""
    return bool(await lab.stack.value(UNFLUSHED) == 0)


async def _written(lab: Lab) -> dict[str, str]:
    return {table: await lab.stack.value(question) for table, question in WRITTEN.items()}


@everything.cell("rolling-restart")
async def every_process_is_replaced_under_load(lab: Lab) -> None:
    """A successor is started, then the predecessor asked to stop: nothing fails, nothing dies, and nobody notices."""
    async with Witness(lab.stack, seed=4) as witness:
        rolled = asyncio.Event()
        clients = asyncio.create_task(_come_and_go(witness, rolled))
        await until(lambda: len(witness.record.stories) > 8)
        for predecessor in [*lab.stack.workers, *lab.stack.webs]:
            if predecessor in lab.stack.webs:
                await lab.stack.start_web()
            else:
                await lab.stack.start_worker(quarantine=predecessor.name.startswith("quarantine"))
            fault = witness.fault("stopped", predecessor.name)
            await lab.stack.stop(predecessor)
            fault.end = time.monotonic()
        rolled.set()
        await clients
        record = await witness.settle()
    report = audit(record)
    assert not report.violations, report
    refused = [
        (story.marker, story.background, story.create)
        for story in record.stories
        if story.create.status != 200
    ]
    assert not refused, refused
    assert len(record.stories) > 20, len(record.stories)
    assert report.responses == len(record.stories), (report.responses, len(record.stories))
    assert {_status(story) for story in record.stories} == {"completed"}
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


def _status(story: Story) -> str:
    return str(story.of("get")[-1].body["status"])


async def _come_and_go(witness: Witness, over: asyncio.Event) -> None:
    """Clients of every kind, several a second, until it is over; then until each of them has its answer."""
    running: set[asyncio.Task[Story]] = set()
    for number in itertools.count():
        if over.is_set():
            break
        script = reply(*WORDS, gap=0.1)
        previous = next(
            (
                story
                for story in reversed(witness.record.stories)
                if story.create.body.get("status") == "completed"
            ),
            None,
        )
        match number % 4:
            case 0:
                create = witness.create(script, stream=True, previous=previous)
            case 1:
                create = witness.create(script, background=False)
            case 2:
                create = witness.create(script, background=False, stream=True)
            case _:
                create = witness.create(script)
        running.add(asyncio.create_task(create))
        await asyncio.wait(running, timeout=0.3)
    for story in await asyncio.gather(*running):
        if story.background and not story.readings:
            witness.poll_on(story)


@away.cell("for-20-s")
async def postgres_is_away_for_twenty_seconds(lab: Lab) -> None:
    """Twice the lease: every response keeps its attempt and its upstream connection; what is refused meanwhile never runs (I9)."""
    load = await lab.load()
    server = lab.servers.server
    assert server is not None
    fault = lab.fault("away", "postgres")
    await asyncio.to_thread(server.stop)
    load.go_on()
    unheard = []
    while time.monotonic() - fault.begin < 20:
        unheard.append(await refused(lab))
    await asyncio.to_thread(server.start)
    fault.end = time.monotonic()
    await nobody_died(lab, load)
    assert len(unheard) > 2
    assert not any(map(lab.fake.asked, unheard))
