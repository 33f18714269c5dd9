"""Batches of the journal, and the frames that are too large for them (worker/log/)."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from models.db.database import fetch
from models.db.queries import claim as claim_queries
from models.lifecycle import Status
from models.tasks import cancel_all
from models.wire.events import decode_frame, split_frames
from tests.support.api import until
from tests.support.chaos.step_worker import StepRun, StepWorker
from tests.support.memory_limit import MIB
from tests.support.stack import Databases
from tests.support.worker_rows import SeededDatabase, open_seeded_database, settings_for
from worker.log import event_log as open_logs
from worker.log.event_log import MAX_ROW_BYTES


class _Worker:
    """A worker without processes, and the database that it writes to."""

    def __init__(self, database: SeededDatabase) -> None:
        numbers = itertools.count(1)
        settings = settings_for(database.dsn)
        self.database = database
        self.step_worker = StepWorker(
            database.pool, settings, lambda kind: f"{kind}_{next(numbers)}"
        )
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Writes what was begun, as a worker process does."""
        journal = self.step_worker.journal_writer
        for writer in (journal.batch_writer, journal.large_frames, journal.flush_writer):
            self.tasks.append(asyncio.create_task(writer.run()))

    async def begin(self, count: int) -> list[StepRun]:
        """So many responses that run. Their first events are written."""
        runs = []
        for _ in range(count):
            run = await self.step_worker.claim(await self.database.create_response())
            assert run is not None
            runs.append(run)
        await self.step_worker.write_journal()
        self.step_worker.bus.pending.clear()
        return runs

    def append(self, run: StepRun, *texts: str) -> None:
        """A frame for each text, which no batch has taken."""
        for text in texts:
            self.step_worker.append_delta(run, text)

    async def write_all(self) -> None:
        """Writes all frames to the journal, in as many batches as that needs."""
        while any(run.log.fresh for run in self.step_worker.runs.values()):
            await self.step_worker.write_journal()

    async def stored(self, run: StepRun) -> list[bytes]:
        """The frames in its event log."""
        values = {"id": run.claim.id, "after": -1}
        rows = await fetch(self.database.pool, claim_queries.LOG_SINCE, values)
        return [frame for row in rows for frame in split_frames(row.frames)]


@pytest.fixture
async def worker(database_server: Databases) -> AsyncIterator[_Worker]:
    async with open_seeded_database(database_server, 4) as database:
        worker = _Worker(database)
        await database.register(worker.step_worker)
        yield worker
        await cancel_all(worker.tasks)
        connection = worker.step_worker.journal_writer.batch_writer.connection
        if connection is not None:
            await connection.close()


async def test_a_large_frame_is_stored_in_its_place_and_never_journaled(worker: _Worker) -> None:
    texts = ["a", "b" * 3 * MIB, "c", "d" * MIB, "e"]
    run, beside = await worker.begin(2)
    worker.append(run, *texts)
    worker.append(beside, "Hello.")
    published = worker.step_worker.bus.pending
    worker.start()
    await until(lambda: not run.log.fresh and not beside.log.fresh)
    assert 0 < max(len(payload) for _, payload in published) < MAX_ROW_BYTES
    assert any(not payload for _, payload in published), "readers are told"
    assert await worker.step_worker.finish(run, Status.COMPLETED, send_twice=False) == "completed"
    events = [decode_frame(frame) for frame in await worker.stored(run)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == texts


async def test_streams_that_fill_the_batches_take_turns_with_the_others(worker: _Worker) -> None:
    piece = "x" * 200 * 1024
    *many, small = await worker.begin(25)
    for run in many:
        worker.append(run, piece, piece, piece)
    worker.append(small, "Hello.")
    published = worker.step_worker.bus.pending
    worker.start()
    await until(lambda: not any(run.log.fresh for run in [*many, small]))
    channels = [channel for channel, _ in published]
    assert len(channels) >= 3 * len(many)
    assert channels.index(small.log.channel) <= len(many)


async def test_a_small_log_is_locked_only_for_its_own_flush(worker: _Worker) -> None:
    piece = "x" * 200 * 1024
    *many, small = await worker.begin(13)
    for run in many:
        worker.append(run, piece, piece)
    worker.append(small, "Hello.")
    await worker.write_all()
    logs = [run.log for run in [*many, small]]
    held, lock = many[0].log, many[0].log.lock
    await lock.acquire()
    flushing = asyncio.create_task(worker.step_worker.journal_writer.flush_writer.flush(logs))
    await until(lambda: not any(log.tail for log in logs if log is not held))
    assert not any(log.lock.locked() for log in logs if log is not held)
    assert not flushing.done(), "it waits for the log that another statement is writing"
    lock.release()
    await flushing
    assert not held.tail
    assert len(await worker.stored(many[0])) == held.next_number


async def test_an_ending_does_not_wait_for_the_flush_of_other_logs(worker: _Worker) -> None:
    small, *_, held = await worker.begin(9)
    for run in worker.step_worker.runs.values():
        worker.append(run, "Hello.")
    await worker.write_all()
    logs = [run.log for run in worker.step_worker.runs.values()]
    await held.log.lock.acquire()
    flushing = asyncio.create_task(worker.step_worker.journal_writer.flush_writer.flush(logs))
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await worker.step_worker.finish(small, Status.COMPLETED, send_twice=False)
    assert not flushing.done(), "it waits for the log that another statement is writing"
    held.log.lock.release()
    await flushing


async def test_a_small_log_has_room_whatever_others_hold(
    worker: _Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_logs, "_MAX_HELD_BYTES", 1024)
    large, small = await worker.begin(2)
    worker.append(large, "x" * 200 * 1024)
    worker.append(small, "Hello.")
    journal = worker.step_worker.journal_writer
    async with asyncio.timeout(5):
        await journal.wait_for_room(small.log)
    waiting = asyncio.create_task(journal.wait_for_room(large.log))
    await asyncio.sleep(0)
    assert not waiting.done()
    worker.start()
    await waiting
