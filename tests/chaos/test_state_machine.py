"""Any order of what workers, readers, clients and faults can do to responses, on a real Postgres: I3-I7 and I10 hold after every step.

Hypothesis chooses the steps. Workers, readers and the bus are tests/support/chaos/step_worker.py: the product's own parts, stepped by hand. What is
not here is time: a worker is declared dead because the machine says so, alive or not, which is the harder case.

BACKBURNER_STATE_MACHINE=<examples> runs that many, at random; without it CI runs the same ones every time.
"""

import asyncio
import itertools
import os
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from models.db.database import Pool, Row, connect, fetch, open_pool
from models.db.queries import statements
from models.errors import LeaseLost
from models.ids import new_uuid, response_id
from models.lifecycle import TERMINAL, Status
from models.ownership.claims import QUARANTINE_THRESHOLD
from models.redis.answer_cache import AnswerCache
from models.wire.events import ResponseCreated, ResponseQueued, decode_frame, frame, split_frames
from models.wire.response import ResponseFacts, response_object
from models.wire.snapshot import fold
from tests.support.chaos.step_worker import (
    FakeBus,
    SilentRedis,
    StepReader,
    StepRun,
    StepWorker,
    WorkerExited,
)
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.stack import Databases
from tests.support.worker_rows import SeededDatabase, settings_for
from web.responses.store import ResponseStore
from web.stream.reader import EventReader

T = TypeVar("T")
MOST_RESPONSES, MOST_WORKERS, MOST_WATCHERS = 3, 6, 4
ENDINGS = {"response.completed", "response.incomplete", "response.failed"}
WORDS = st.sampled_from(["a", "b ", "\n\n", "é" * 50])
ANY = st.integers(0, 11)
"""Which of those there are; taken modulo their number."""


@pytest.fixture(scope="module")
async def dsn(database_server: Databases) -> str:
    return await database_server.create_copy()


@dataclass
class World:
    """One database and the loop everything of all examples runs in."""

    loop: asyncio.AbstractEventLoop
    house: SeededDatabase
    journalling: AsyncConnection[DictRow]
    """All workers' connection for their journals; a new one for each would cost more than everything else."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)


@contextmanager
def world_on(dsn: str) -> Iterator[World]:
    loop = asyncio.new_event_loop()
    pool = open_pool(settings_for(dsn), "state-machine", 4)
    house = SeededDatabase(pool, dsn)

    async def begin() -> World:
        await pool.open(wait=True)
        await house.create_project()
        return World(loop, house, await connect(settings_for(dsn), "journalling"))

    world = loop.run_until_complete(begin())
    yield world
    loop.run_until_complete(world.journalling.close())
    loop.run_until_complete(pool.close())
    loop.close()


@dataclass(eq=False)
class Story:
    """What the machine knows of one response."""

    name: UUID
    background: bool
    owner: StepWorker | None = None
    attempt: int = 0
    deaths: int = 0
    status: str = "queued"
    cancelled: bool = False
    deleted: bool = False
    gone: bool = False
    log: bytes = b""
    """event_log, as it was last seen"""
    shown: dict[int, bytes] = field(default_factory=dict)
    """what any reader may have been shown by now"""
    double_fault: bool = False
    """Postgres lost the journal, and then the worker died that still knew what had been in it (design §1, stated limits)."""


class Machine(RuleBasedStateMachine):
    """The rules. `world` is set before the first example."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.house = self.world.house
        self.pool: Pool = self.house.pool
        self.workers: list[StepWorker] = []
        self.stories: list[Story] = []
        self.watchers: list[StepReader] = []
        self.ears = FakeBus()
        self.relay = EventReader(self.pool, self.ears)  # type: ignore[arg-type]
        self.archive = ResponseStore(
            self.pool,
            SilentRedis(),  # type: ignore[arg-type]
            self.relay,
            AnswerCache(settings_for(self.house.dsn), "silent"),
            0,
        )
        self.numbers = itertools.count(1)
        self.run = self.world.run

    # --- who there is ---

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{next(self.numbers)}"

    @property
    def processes(self) -> list[StepWorker]:
        """Those that still run, declared dead or not."""
        return [worker for worker in self.workers if not worker.has_exited]

    @property
    def open(self) -> list[Story]:
        return [story for story in self.stories if not story.gone]

    @property
    def tellings(self) -> list[tuple[StepWorker, StepRun]]:
        return [(worker, telling) for worker in self.processes for telling in worker.runs.values()]

    def story(self, name: UUID) -> Story:
        return next(story for story in self.stories if story.name == name)

    @initialize()
    def two_workers_and_a_response(self) -> None:
        self.start_worker(quarantine=False)
        self.start_worker(quarantine=False)
        self.create(background=True)
        self.connect(which=0, after=-1)

    # --- clients ---

    @precondition(lambda self: len(self.stories) < MOST_RESPONSES)
    @rule(background=st.booleans())
    def create(self, background: bool) -> None:
        story = Story(new_uuid(), background)
        values = self.house.insert_values(story.name, background=background)
        facts = ResponseFacts(
            response_id(story.name),
            1_800_000_000,
            "queued" if background else "in_progress",
            "m",
            {},
            background,
        )
        shown = response_object(facts, [])
        opening = (
            [ResponseCreated(shown), ResponseQueued(shown)]
            if background
            else [ResponseCreated(shown)]
        )
        values["frames"] = told = b"".join(
            frame(event, number) for number, event in enumerate(opening)
        )
        story.shown.update(_numbered(told))
        self.run(fetch(self.pool, statements.INSERT, values))
        self.stories.append(story)

    @precondition(lambda self: self.open)
    @rule(which=ANY)
    def cancel(self, which: int) -> None:
        story = pick(self.open, which)
        self._cancel(story, self.run(self.archive.request_cancel(self.row(story), "cancelled")))

    @precondition(lambda self: self.open)
    @rule(which=ANY)
    def delete(self, which: int) -> None:
        story = pick(self.open, which)
        row = self.row(story)
        self.run(
            fetch(
                self.pool,
                statements.REQUEST_DELETE,
                {"id": story.name, "project": self.house.project},
            )
        )
        story.deleted = True
        if row["status"] not in TERMINAL:
            self._cancel(story, self.run(self.archive.request_cancel(row, "deleted")))
        if self.run(
            fetch(
                self.pool,
                statements.DELETE_ENDED,
                {"id": story.name, "project": self.house.project},
            )
        ):
            assert story.status in TERMINAL
            story.gone = True

    def _cancel(self, story: Story, recorded: bool) -> None:
        assert recorded is (story.status not in TERMINAL)
        if recorded:
            story.cancelled = True
            if story.attempt == 0:
                story.status = "cancelled"

    # --- workers ---

    @precondition(
        lambda self: len(self.processes) < MOST_WORKERS and len(self.workers) < 2 * MOST_WORKERS
    )
    @rule(quarantine=st.booleans())
    def start_worker(self, quarantine: bool) -> None:
        self.workers.append(self._hire(quarantine=quarantine))

    def _hire(self, *, quarantine: bool) -> StepWorker:
        worker = StepWorker(
            self.pool, settings_for(self.house.dsn, quarantine=quarantine), self.new_id
        )
        worker.log_writer._connection = self.world.journalling
        self.run(self.house.register(worker))
        return worker

    @precondition(lambda self: self.processes and self.open)
    @rule(who=ANY, which=ANY)
    def claim(self, who: int, which: int) -> None:
        worker, story = pick(self.processes, who), pick(self.open, which)
        if worker.is_declared_dead:
            self.refused(worker.claim(story.name))
            return
        telling = self.run(worker.claim(story.name))
        orphan = story.owner is None or story.owner.is_declared_dead
        deaths = story.deaths + (story.owner is not None)
        to_end = story.cancelled or deaths > QUARANTINE_THRESHOLD
        welcome = to_end or worker.quarantine is (deaths >= QUARANTINE_THRESHOLD)
        assert (telling is not None) is (story.status not in TERMINAL and orphan and welcome)
        if telling is not None:
            assert (telling.claim.end_reason is not None) is to_end
            self._claimed(story, worker, telling)

    def _claimed(self, story: Story, worker: StepWorker, telling: StepRun) -> None:
        assert telling.claim.attempt == story.attempt + 1
        highest = max(story.shown, default=telling.claim.log_end)
        if telling.claim.log_end < highest:
            assert story.owner is not None
            assert story.owner.journal_lost, (
                "only a journal that Postgres lost may hold what nobody can adopt"
            )
            story.double_fault = True
            story.shown = {
                number: one
                for number, one in story.shown.items()
                if number <= telling.claim.log_end
            }
        story.deaths += story.owner is not None
        story.owner, story.attempt, story.status = worker, story.attempt + 1, "in_progress"

    @precondition(lambda self: self.tellings)
    @rule(which=ANY, words=WORDS, call=st.sampled_from([None, None, 0, 1]))
    def append(self, which: int, words: str, call: int | None) -> None:
        worker, telling = pick(self.tellings, which)
        if telling.claim.end_reason is None:
            worker.append_delta(telling, words, call=call)

    @precondition(lambda self: self.tellings)
    @rule(which=ANY, words=WORDS, lost=st.booleans())
    def tell(self, which: int, words: str, lost: bool) -> None:
        """What mostly happens: a chunk is stored at once, and then shown, or `lost` on its way."""
        worker, _ = pick(self.tellings, which)
        self.append(which=which, words=words, call=None)
        self.journal(who=self.processes.index(worker))
        while worker.bus.pending:
            self.publish(
                who=[one for one in self.workers if one.bus.pending].index(worker), drops=lost
            )

    @precondition(lambda self: self.tellings)
    @rule(which=ANY, words=WORDS)
    def outlive_a_crash(self, which: int, words: str) -> None:
        """Between two chunks Postgres loses the journal; the worker, which lives, stores anew what was in it."""
        self.tell(which=which, words=words, lost=False)
        self.postgres_crashes()
        if self.tellings:
            self.tell(which=which, words=words, lost=False)

    @precondition(lambda self: self.open)
    @rule(which=ANY, who=ANY, crash=st.booleans())
    def lose_the_owner(self, which: int, who: int, crash: bool) -> None:
        """The owner dies and another takes over, as so often here; with a `crash` of Postgres just before, the double fault."""
        story = pick(self.open, which)
        if story.owner is None or story.owner.is_declared_dead:
            return
        if crash:
            self.postgres_crashes()
        self.reap(
            who=[worker for worker in self.workers if not worker.is_declared_dead].index(
                story.owner
            ),
            stops=False,
        )
        self.claim(who=who, which=which)

    @precondition(lambda self: self.processes)
    @rule(who=ANY)
    def journal(self, who: int) -> None:
        """The batch is stored; whether and when anybody hears of it is another step."""
        worker = pick(self.processes, who)
        if not any(telling.log.fresh for telling in worker.runs.values()):
            return
        if worker.is_declared_dead:
            self.refused(worker.write_journal())
            return
        self.run(worker.write_journal())
        worker.journal_lost = False
        self._note(worker)

    @precondition(lambda self: any(worker.bus.pending for worker in self.workers))
    @rule(who=ANY, drops=st.booleans())
    def publish(self, who: int, drops: bool) -> None:
        """One message reaches the readers, or is lost; a dead worker may still have some under way."""
        channel, payload = pick(
            [worker for worker in self.workers if worker.bus.pending], who
        ).bus.pending.popleft()
        if not drops:
            self.ears.deliver(channel, payload)

    @precondition(lambda self: self.processes)
    @rule(who=ANY)
    def flush(self, who: int) -> None:
        worker = pick(self.processes, who)
        if worker.is_declared_dead:
            if any(telling.log.tail for telling in worker.runs.values()):
                self.refused(worker.flush_all())
            return
        self.run(worker.flush_all())

    @precondition(lambda self: self.processes)
    @rule(who=ANY)
    def beat(self, who: int) -> None:
        worker = pick(self.processes, who)
        renewed = self.run(
            fetch(
                self.pool,
                statements.RENEW,
                {"me": worker.id, "lease": settings_for(self.house.dsn).lease.duration},
            )
        )
        assert bool(renewed) is not worker.is_declared_dead
        mine = {
            row["id"]: row["attempt"]
            for row in self.run(fetch(self.pool, statements.OWNED_RESPONSES, {"me": worker.id}))
        }
        if not worker.is_declared_dead:
            assert mine == {name: telling.claim.attempt for name, telling in worker.runs.items()}

    @precondition(lambda self: any(not worker.buried for worker in self.workers))
    @rule(who=ANY, stops=st.booleans())
    def reap(self, who: int, stops: bool) -> None:
        """Declared dead; if it `stops`, the process really is, else it lives on as a zombie."""
        worker = pick([worker for worker in self.workers if not worker.is_declared_dead], who)
        self.run(self.house.declare_dead(worker))
        worker.is_declared_dead, worker.has_exited = True, stops

    # --- turns and endings ---

    @precondition(lambda self: self.tellings)
    @rule(which=ANY)
    def checkpoint(self, which: int) -> None:
        worker, telling = pick(self.tellings, which)
        if telling.claim.end_reason is not None:
            return
        if worker.is_declared_dead:
            self.refused(worker.checkpoint(telling))
            worker.has_exited = True
            return
        self.run(worker.checkpoint(telling))
        self._note(worker)
        self.story(telling.claim.id).deaths = 0

    @precondition(lambda self: self.tellings)
    @rule(
        which=ANY,
        status=st.sampled_from([Status.COMPLETED, Status.INCOMPLETE, Status.FAILED]),
        twice=st.booleans(),
    )
    def finish(self, which: int, status: Status, twice: bool) -> None:
        worker, telling = pick(self.tellings, which)
        story = self.story(telling.claim.id)
        if worker.is_declared_dead:
            self.refused(worker.finish(telling, status, send_twice=twice))
            worker.has_exited = True
            return
        wanted = Status.FAILED if telling.claim.end_reason is not None else status
        ended = self.run(worker.finish(telling, wanted, send_twice=twice))
        assert ended is (Status.CANCELLED if story.cancelled else wanted)
        story.status, story.owner = ended.value, None

    @precondition(lambda self: self.tellings)
    @rule(which=ANY)
    def hand_over(self, which: int) -> None:
        worker, telling = pick(self.tellings, which)
        if worker.is_declared_dead:
            self.refused(worker.hand_over(telling))
            worker.has_exited = True
            return
        self.run(worker.hand_over(telling))
        self._note(worker)
        self.story(telling.claim.id).owner = None

    @rule()
    def postgres_crashes(self) -> None:
        """The unlogged table is empty; everything else is as it was."""
        self.run(fetch(self.pool, "DELETE FROM journal", {}))
        for worker in self.workers:
            worker.journal_lost = True

    @rule()
    def purge(self) -> None:
        for row in self.run(fetch(self.pool, statements.PURGE, {})):
            story = self.story(row["id"])
            assert story.deleted
            assert story.status in TERMINAL
            story.gone = True

    # --- readers ---

    @precondition(lambda self: self.open and len(self.watchers) < MOST_WATCHERS)
    @rule(which=ANY, after=st.integers(-1, 3))
    def connect(self, which: int, after: int) -> None:
        watcher = StepReader(pick(self.open, which).name, self.ears, self.relay, after)
        self.run(watcher.connect())
        self.watchers.append(watcher)

    @precondition(lambda self: self.watchers)
    @rule(which=ANY)
    def read(self, which: int) -> None:
        self.run(pick(self.watchers, which).step())

    @precondition(lambda self: self.watchers)
    @rule(which=ANY)
    def look(self, which: int) -> None:
        """A long silence sends the reader to the logs."""
        watcher = pick(self.watchers, which)
        if watcher.inbox is not None:
            watcher.inbox.wake()
        self.run(watcher.step())

    # --- what must hold ---

    def refused(self, work: Coroutine[Any, Any, object]) -> None:
        """A dead worker's write: it is told so, and nothing has changed."""
        before = self.everything()
        with pytest.raises((WorkerExited, LeaseLost)):
            self.run(work)
        assert self.everything() == before

    def everything(self) -> list[Row]:
        names = [story.name for story in self.stories]
        return self.run(
            fetch(
                self.pool,
                _EVERYTHING,
                {"ids": names, "workers": [worker.id for worker in self.workers]},
            )
        )

    def row(self, story: Story) -> Row:
        return self.run(fetch(self.pool, statements.RESPONSE, {"id": story.name}))[0]

    def _note(self, worker: StepWorker) -> None:
        """What the worker has stored, readers may have been shown."""
        for channel, payload in worker.bus.pending:
            if payload:
                story = self.story(UUID(channel.removeprefix("events:")))
                for number, one in _numbered(payload.partition(b"\n")[2]):
                    if (worker, worker.runs.get(story.name)) != (
                        story.owner,
                        None,
                    ) or not story.double_fault:
                        assert story.shown.setdefault(number, one) == one, (
                            f"two events have number {number}"
                        )

    @invariant()
    def the_rows_are_as_the_machine_says(self) -> None:
        """I3, I5, I10: one owner, attempts that rise, one ending, no ending against a cancel."""
        found = {
            row["id"]: row
            for row in self.run(
                fetch(self.pool, _ROWS, {"ids": [story.name for story in self.stories]})
            )
        }
        assert set(found) == {story.name for story in self.open}
        for story in self.open:
            row = found[story.name]
            owner = story.owner.id if story.owner is not None else None
            assert (row["status"], row["worker"], row["attempt"]) == (
                story.status,
                owner,
                story.attempt,
            )
            assert row["deaths"] == story.deaths
            assert row["cancelled"] is story.cancelled
            assert not story.cancelled or story.status in ("in_progress", "cancelled")
            self._log_only_grows(story, row)

    def _log_only_grows(self, story: Story, row: Row) -> None:
        """I4: contiguous from 0, nothing in it ever changes, and the terminal event is the last exactly when the row has ended."""
        log = bytes(row["log"])
        assert log.startswith(story.log)
        story.log = log
        told = dict(_numbered(log))
        assert list(told) == list(range(len(told)))
        endings = [number for number, one in told.items() if decode_frame(one)["type"] in ENDINGS]
        assert endings == ([len(told) - 1] if story.status in TERMINAL else [])
        for number, one in told.items():
            assert story.shown.setdefault(number, one) == one, (
                f"number {number} was shown with other bytes"
            )

    @invariant()
    def readers_were_shown_what_is_stored(self) -> None:
        """I4: every reader has the same bytes, without hole or repeat."""
        for watcher in self.watchers:
            story = self.story(watcher.name)
            assert watcher.numbers == list(
                range(watcher.after + 1, watcher.after + 1 + len(watcher.frames))
            )
            if not story.double_fault:
                for number, one in zip(watcher.numbers, watcher.frames, strict=True):
                    assert story.shown[number] == one

    def teardown(self) -> None:
        """Everything is taken up and ended, every reader reads on: the stories must be whole."""
        try:
            self._finish_everything()
            for story in self.open:
                self._assert_whole(story)
            for watcher in self.watchers:
                self._assert_heard_out(watcher)
        finally:
            for watcher in self.watchers:
                self.run(watcher.disconnect())
            for table in ("responses", "journal", "workers"):
                self.run(fetch(self.pool, f"DELETE FROM {table}", {}))

    def _finish_everything(self) -> None:
        for worker in self.workers:
            if not worker.is_declared_dead:
                self.run(self.house.declare_dead(worker))
                worker.is_declared_dead = worker.has_exited = True
        for quarantine in (False, True):
            last = self._hire(quarantine=quarantine)
            for story in self.open:
                if (
                    story.status not in TERMINAL
                    and (telling := self.run(last.claim(story.name))) is not None
                ):
                    self._claimed(story, last, telling)
                    story.status = self.run(
                        last.finish(telling, Status.FAILED, send_twice=False)
                    ).value
                    story.owner = None
        assert all(story.status in TERMINAL for story in self.open)
        self.the_rows_are_as_the_machine_says()

    def _assert_whole(self, story: Story) -> None:
        """I6, I7: the items are the fold of the log, and GET says what the terminal event said."""
        told = [decode_frame(one) for one in split_frames(story.log)]
        assert_stream_obeys_contract(told)
        final = told[-1]["response"]
        shown = self.run(self.archive.show(self.row(story)))
        assert shown["output"] == final["output"]
        assert shown["status"] == final["status"] == story.status
        done = {
            event["item"]["id"]: event["item"]
            for event in told
            if event["type"] == "response.output_item.done"
        }
        assert all(done[item["id"]] == item for item in final["output"])
        assert [
            item["id"]
            for item in fold(told)
            if item["id"] in {one["id"] for one in final["output"]}
        ] == [one["id"] for one in final["output"]]

    def _assert_heard_out(self, watcher: StepReader) -> None:
        self.run(watcher.to_end())
        story = self.story(watcher.name)
        if story.gone:
            return
        whole = split_frames(story.log)[watcher.after + 1 :]
        if watcher.is_done:
            assert watcher.frames == whole
        else:
            assert story.double_fault, "only the double fault may leave a stream without an ending"


def pick(those: Sequence[T], which: int) -> T:
    return those[which % len(those)]


def _numbered(block: bytes) -> list[tuple[int, bytes]]:
    return [(decode_frame(one)["sequence_number"], one) for one in split_frames(block)]


_ROWS = """
    SELECT r.id, r.status, r.worker, r.attempt, r.deaths, r.cancel_requested_at IS NOT NULL AS cancelled,
           (SELECT coalesce(string_agg(e.frames, ''::bytea ORDER BY e.first_number), ''::bytea) FROM event_log e WHERE e.response_id = r.id) AS log
    FROM responses r WHERE r.id = ANY(%(ids)s)
"""
_EVERYTHING = """
    SELECT r::text AS row, (SELECT array_agg(e::text ORDER BY e.first_number) FROM event_log e WHERE e.response_id = r.id) AS log,
           (SELECT array_agg(i::text ORDER BY i.id) FROM items i WHERE i.response_id = r.id) AS items,
           (SELECT array_agg(j::text ORDER BY j.worker, j.batch) FROM journal j WHERE j.worker = ANY(%(workers)s)) AS journal
    FROM responses r WHERE r.id = ANY(%(ids)s) ORDER BY r.id
"""


def profile() -> settings:
    """The same examples everywhere; or as many as one asks for, others each time."""
    deep = os.environ.get("BACKBURNER_STATE_MACHINE")  # noqa: TID251  # an option of this test, not of the product
    return settings(
        max_examples=int(deep or 80), stateful_step_count=60 if deep else 40, derandomize=deep is None, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink], print_blob=False,
        report_multiple_bugs=False,
    )  # fmt: skip


@pytest.mark.timeout(900)  # a failure is made as short as it can be before it is shown
def test_no_order_of_steps_and_faults_breaks_an_invariant(dsn: str) -> None:
    with world_on(dsn) as world:
        Machine.world = world
        run_state_machine_as_test(Machine, settings=profile())
