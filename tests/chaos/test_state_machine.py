"""I3-I7 and I10 (docs/guarantees.md) hold after every step, for any order of steps and faults.

Hypothesis chooses the steps of workers, readers, clients and faults, on a real Postgres. Workers,
readers and the bus are in tests/support/chaos/step_worker.py: the product's code, one step at a
time. There is no time: a worker is declared dead whenever the machine chooses, whether its process
still runs or not, which is the harder case.

BACKBURNER_STATE_MACHINE=<examples> runs that many random examples; without it every run takes the
same ones.
"""

import asyncio
import itertools
import os
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar
from uuid import UUID

import orjson
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
from msgspec import structs

from models.db.database import Connection, Pool, connect, fetch, open_pool
from models.db.queries import claim as claim_queries
from models.db.queries import create as create_queries
from models.db.queries import end as end_queries
from models.db.queries import leases, retention
from models.db.queries import read as read_queries
from models.db.queries.read import ResponseRow
from models.errors import LeaseLost, NotFound
from models.ids import response_id
from models.lifecycle import CRASHES_ALONE, QUARANTINE_THRESHOLD, TERMINAL, Status
from models.ownership.lease import DatabaseClock
from models.redis.answer_cache import AnswerCache
from models.wire.events import Event, ResponseCreated, ResponseQueued, decode_frame, split_frames
from models.wire.events import frame as encode_frame
from models.wire.response import ResponseFacts, response_object
from models.wire.snapshot import fold
from tests.support.audit import AUDITED
from tests.support.chaos.step_worker import (
    FakeBus,
    SilentRedis,
    StepReader,
    StepRun,
    StepWorker,
    WorkerExited,
)
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.sql import Record, run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import SeededDatabase, insert_values, run_purge, settings_for
from web.hooks import Hooks
from web.responses.store import ResponseStore
from web.stream.reader import EventReader

T = TypeVar("T")
MAX_OPEN_RESPONSES, MAX_RESPONSES, MAX_WORKERS, MAX_READERS = 3, 6, 6, 4
TERMINAL_TYPES = {"response.completed", "response.incomplete", "response.failed"}
TEXTS = st.sampled_from(["a", "b ", "\n\n", "é" * 50])
ANY = st.integers(0, 11)
"""An index into the present objects of a kind, modulo their number."""
RARELY = st.sampled_from([False, False, False, True])
"""Whether a step happens that leaves little to do for the steps after it."""


@pytest.fixture(scope="module")
async def dsn(database_server: Databases) -> str:
    return await database_server.create_copy()


@dataclass
class World:
    """One database and one event loop for all examples."""

    loop: asyncio.AbstractEventLoop
    database: SeededDatabase
    journal_connection: Connection
    """The journal connection of all workers: opening one for each would cost more than the rest."""

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)


@contextmanager
def world_on(dsn: str) -> Iterator[World]:
    loop = asyncio.new_event_loop()
    pool = open_pool(settings_for(dsn), "state-machine", 4)
    database = SeededDatabase(pool, dsn)

    async def start() -> World:
        await pool.open(wait=True)
        await database.create_project()
        return World(loop, database, await connect(settings_for(dsn), "journal"))

    world = loop.run_until_complete(start())
    yield world
    loop.run_until_complete(world.journal_connection.close())
    loop.run_until_complete(pool.close())
    loop.close()


@dataclass(eq=False)
class TrackedResponse:
    """What the machine expects of one response."""

    id: UUID
    background: bool
    owner: StepWorker | None = None
    attempt: int = 0
    crashes: int = 0
    status: str = "queued"
    cancelled: bool = False
    delete_requested: bool = False
    is_deleted: bool = False
    log: bytes = b""
    """The frames in `event_log` at the last check."""
    published: dict[int, bytes] = field(default_factory=dict)
    """Sequence number -> frame, for all frames that a reader may have read by now."""
    stored_ids: list[str] = field(default_factory=list)
    """Ids of the output items at the last checkpoint."""
    checkpoint_number: int = -1
    """Number of the last event that the last checkpoint stored."""
    double_fault: bool = False
    """Postgres lost the journal, then the worker that still had its content crashed.

    Published events are lost then: a limit of I4 (docs/guarantees.md).
    """


class Machine(RuleBasedStateMachine):
    """The rules. `world` is set before the first example."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.database = self.world.database
        self.pool: Pool = self.database.pool
        self.workers: list[StepWorker] = []
        self.responses: list[TrackedResponse] = []
        self.readers: list[StepReader] = []
        self.bus = FakeBus()
        self.event_reader = EventReader(self.pool, self.bus)  # type: ignore[arg-type]
        self.response_store = self._new_response_store()
        self.id_numbers = itertools.count(1)
        self.wait = self.world.wait

    def _new_response_store(self) -> ResponseStore:
        return ResponseStore(
            self.pool,
            SilentRedis(),  # type: ignore[arg-type]
            self.event_reader,
            AnswerCache(settings_for(self.database.dsn), "silent"),
            0,
            DatabaseClock(),
            Hooks(),
        )

    # --- workers and responses ---

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{next(self.id_numbers)}"

    @property
    def processes(self) -> list[StepWorker]:
        """The workers whose process runs, declared dead or not."""
        return [worker for worker in self.workers if not worker.has_exited]

    @property
    def open(self) -> list[TrackedResponse]:
        return [response for response in self.responses if not response.is_deleted]

    @property
    def unended(self) -> list[TrackedResponse]:
        return [response for response in self.open if response.status not in TERMINAL]

    @property
    def running(self) -> list[TrackedResponse]:
        return [response for response in self.open if response.status == Status.IN_PROGRESS]

    @property
    def runs(self) -> list[tuple[StepWorker, StepRun]]:
        return [(worker, run) for worker in self.processes for run in worker.runs.values()]

    def response(self, response_id: UUID) -> TrackedResponse:
        return next(response for response in self.responses if response.id == response_id)

    @initialize()
    def two_workers_and_a_response(self) -> None:
        self.start_worker(quarantine=False)
        self.start_worker(quarantine=False)
        self.create(background=True)
        self.connect(index=0, after=-1)

    # --- clients ---

    @precondition(
        lambda self: len(self.responses) < MAX_RESPONSES and len(self.unended) < MAX_OPEN_RESPONSES
    )
    @rule(background=st.booleans())
    def create(self, background: bool) -> None:
        row = self.database.new_row(background=background)
        response = TrackedResponse(row.id, background)
        facts = ResponseFacts(
            response_id(response.id),
            1_800_000_000,
            "queued" if background else "in_progress",
            "m",
            {},
            background,
        )
        body = response_object(facts, [])
        events: list[Event] = [ResponseCreated(body)]
        if background:
            events.append(ResponseQueued(body))
        frames = b"".join(encode_frame(event, number) for number, event in enumerate(events))
        response.published.update(_numbered(frames))
        values = insert_values(structs.replace(row, frames=frames))
        self.wait(fetch(self.pool, create_queries.INSERT, values))
        self.responses.append(response)

    @precondition(lambda self: self.open)
    @rule(index=ANY, happens=RARELY)
    def cancel(self, index: int, happens: bool) -> None:
        if not happens:
            return
        response = pick(self.open, index)
        request = self.response_store.request_cancel(self.row(response), "cancelled")
        self._cancel(response, self.wait(request))

    @precondition(lambda self: self.open)
    @rule(index=ANY, happens=RARELY)
    def delete(self, index: int, happens: bool) -> None:
        if not happens:
            return
        response = pick(self.open, index)
        row = self.row(response)
        values = {"id": response.id, "project": self.database.project}
        self.wait(fetch(self.pool, end_queries.REQUEST_DELETE, values | AUDITED))
        response.delete_requested = True
        if row.status not in TERMINAL:
            self._cancel(response, self.wait(self.response_store.request_cancel(row, "deleted")))
        if self.wait(fetch(self.pool, retention.DELETE_ENDED, values)):
            assert response.status in TERMINAL
            response.is_deleted = True

    def _cancel(self, response: TrackedResponse, recorded: bool) -> None:
        assert recorded is (response.status not in TERMINAL)
        if recorded:
            response.cancelled = True
            if response.attempt == 0:
                response.status = "cancelled"

    # --- workers ---

    @precondition(
        lambda self: len(self.processes) < MAX_WORKERS and len(self.workers) < 2 * MAX_WORKERS
    )
    @rule(quarantine=st.booleans())
    def start_worker(self, quarantine: bool) -> None:
        self.workers.append(self._add_worker(quarantine=quarantine))

    def _add_worker(self, *, quarantine: bool) -> StepWorker:
        worker = StepWorker(
            self.pool, settings_for(self.database.dsn, quarantine=quarantine), self.new_id
        )
        worker.journal_writer.batch_writer.connection = self.world.journal_connection
        self.wait(self.database.register(worker))
        return worker

    @precondition(lambda self: self.processes and self.open)
    @rule(worker_index=ANY, index=ANY)
    def claim(self, worker_index: int, index: int) -> None:
        worker, response = pick(self.processes, worker_index), pick(self.open, index)
        if worker.is_declared_dead:
            self.assert_rejected(worker.claim(response.id))
            return
        self._check_claim(response, worker, self.wait(worker.claim(response.id)))

    @precondition(lambda self: self.processes and self.open)
    @rule(worker_index=ANY)
    def claim_orphans(self, worker_index: int) -> None:
        """One transaction claims all responses that the worker may run."""
        worker = pick(self.processes, worker_index)
        if worker.quarantine:
            return
        open_responses = self.open
        claims = worker.claim_orphans([response.id for response in open_responses])
        if worker.is_declared_dead:
            self.assert_rejected(claims)
            return
        runs = {run.claim.id: run for run in self.wait(claims)}
        for response in open_responses:
            self._check_claim(response, worker, runs.get(response.id))

    def _check_claim(
        self, response: TrackedResponse, worker: StepWorker, run: StepRun | None
    ) -> None:
        is_orphan = response.owner is None or response.owner.is_declared_dead
        crashes = response.crashes + (response.owner is not None)
        is_to_end = response.cancelled or crashes > CRASHES_ALONE
        is_accepted = is_to_end or worker.quarantine is (crashes >= QUARANTINE_THRESHOLD)
        is_open = response.status not in TERMINAL
        assert (run is not None) is (is_open and is_orphan and is_accepted)
        if run is not None:
            assert (run.claim.end_reason is not None) is is_to_end
            self._claimed(response, worker, run)

    def _claimed(self, response: TrackedResponse, worker: StepWorker, run: StepRun) -> None:
        assert run.claim.attempt == response.attempt + 1
        highest = max(response.published, default=run.claim.log_end)
        if run.claim.log_end < highest:
            assert response.owner is not None
            assert response.owner.journal_lost, (
                "published events are lost although the journal is not"
            )
            response.double_fault = True
            response.published = {
                number: frame
                for number, frame in response.published.items()
                if number <= run.claim.log_end
            }
        response.crashes += response.owner is not None
        response.owner, response.status = worker, "in_progress"
        response.attempt += 1

    def _turn_run(self, index: int) -> tuple[StepWorker, StepRun] | None:
        """A run that can produce output; if there is none, a worker claims a response first.

        Hypothesis leaves out some rules in each example. Without this, few examples would have both
        a claim and something to do after it.
        """
        if not self._turn_runs():
            self._claim_any()
        runs = self._turn_runs()
        return pick(runs, index) if runs else None

    def _turn_runs(self) -> list[tuple[StepWorker, StepRun]]:
        return [(worker, run) for worker, run in self.runs if run.claim.end_reason is None]

    def _claim_any(self) -> None:
        if not self.unended and len(self.responses) < MAX_RESPONSES:
            self.create(background=True)
        if all(worker.is_declared_dead or worker.quarantine for worker in self.processes):
            self.start_worker(quarantine=False)
        for worker_index, worker in enumerate(self.processes):
            for response in [] if worker.is_declared_dead else self.unended:
                self.claim(worker_index=worker_index, index=self.open.index(response))

    @rule(index=ANY, text=TEXTS, call=st.sampled_from([None, None, 0, 1]))
    def append(self, index: int, text: str, call: int | None) -> None:
        if target := self._turn_run(index):
            worker, run = target
            worker.append_delta(run, text, call=call)

    @rule(index=ANY, text=TEXTS, lost=st.booleans())
    def append_and_publish(self, index: int, text: str, lost: bool) -> None:
        """The usual case: a chunk is journaled at once, then delivered, or `lost` by Redis."""
        if target := self._turn_run(index):
            worker, run = target
            worker.append_delta(run, text)
            self._publish_all(worker, lost=lost)

    def _publish_all(self, worker: StepWorker, *, lost: bool) -> None:
        self.journal(worker_index=self.processes.index(worker))
        while worker.bus.pending:
            publishing = [worker for worker in self.workers if worker.bus.pending]
            self.publish(worker_index=publishing.index(worker), drops=lost)

    @rule(index=ANY, text=TEXTS)
    def survive_a_postgres_crash(self, index: int, text: str) -> None:
        """Postgres loses the journal between two chunks; the worker stores its content again."""
        self.append_and_publish(index=index, text=text, lost=False)
        self.postgres_crashes()
        self.append_and_publish(index=index, text=text, lost=False)

    @rule(index=ANY, worker_index=ANY, text=TEXTS, call=st.sampled_from([None, 0]))
    def continue_after_a_crash(
        self, index: int, worker_index: int, text: str, call: int | None
    ) -> None:
        """The owner is declared dead in the middle of an item; the next attempt begins another."""
        target = self._turn_run(index)
        if target is None:
            return
        worker, run = target
        worker.append_delta(run, text)
        self._publish_all(worker, lost=False)
        response = self.response(run.claim.id)
        if worker is response.owner:
            position = self.open.index(response)
            self.lose_the_owner(index=position, worker_index=worker_index, crash=False)
        owner = response.owner
        if owner is not None and response.id in owner.runs and not owner.is_declared_dead:
            owner.append_delta(owner.runs[response.id], text, call=call)
            self._publish_all(owner, lost=False)

    @precondition(lambda self: self.open)
    @rule(index=ANY, worker_index=ANY, crash=st.booleans())
    def lose_the_owner(self, index: int, worker_index: int, crash: bool) -> None:
        """The owner is declared dead and another worker claims the response.

        With a `crash` of Postgres just before, this is the double fault.
        """
        response = pick(self.open, index)
        if response.owner is None or response.owner.is_declared_dead:
            return
        if crash:
            self.postgres_crashes()
        live = [worker for worker in self.workers if not worker.is_declared_dead]
        self.reap(worker_index=live.index(response.owner), stops=False)
        self.claim(worker_index=worker_index, index=index)

    @precondition(lambda self: self.processes)
    @rule(worker_index=ANY)
    def journal(self, worker_index: int) -> None:
        """Writes a batch; the delivery of what it publishes is another step."""
        worker = pick(self.processes, worker_index)
        if not any(run.log.fresh for run in worker.runs.values()):
            return
        if worker.is_declared_dead:
            self.assert_rejected(worker.write_journal())
            return
        self.wait(worker.write_journal())
        worker.journal_lost = False
        self._record_published(worker)

    @precondition(lambda self: any(worker.bus.pending for worker in self.workers))
    @rule(worker_index=ANY, drops=st.booleans())
    def publish(self, worker_index: int, drops: bool) -> None:
        """Delivers or drops one message, which a dead worker may have sent."""
        publishing = [worker for worker in self.workers if worker.bus.pending]
        channel, payload = pick(publishing, worker_index).bus.pending.popleft()
        if not drops:
            self.bus.deliver(channel, payload)

    @precondition(lambda self: self.processes)
    @rule(worker_index=ANY)
    def flush(self, worker_index: int) -> None:
        worker = pick(self.processes, worker_index)
        if worker.is_declared_dead:
            if any(run.log.tail for run in worker.runs.values()):
                self.assert_rejected(worker.flush_all())
            return
        self.wait(worker.flush_all())

    @precondition(lambda self: self.processes)
    @rule(worker_index=ANY)
    def beat(self, worker_index: int) -> None:
        worker = pick(self.processes, worker_index)
        lease = settings_for(self.database.dsn).lease.duration
        renewal = {"me": worker.id, "lease": lease} | leases.NO_LOOK
        renewed = self.wait(fetch(self.pool, leases.RENEW, renewal))
        assert bool(renewed) is not worker.is_declared_dead
        attempts = {
            row.id: row.attempt
            for row in self.wait(fetch(self.pool, leases.OWNED_RESPONSES, {"me": worker.id}))
        }
        if not worker.is_declared_dead:
            assert attempts == {id_: run.claim.attempt for id_, run in worker.runs.items()}

    @precondition(lambda self: any(not worker.is_declared_dead for worker in self.workers))
    @rule(worker_index=ANY, stops=st.booleans())
    def reap(self, worker_index: int, stops: bool) -> None:
        """Declares a worker dead; unless it `stops`, its process still runs."""
        live = [worker for worker in self.workers if not worker.is_declared_dead]
        worker = pick(live, worker_index)
        self.wait(self.database.declare_dead(worker))
        worker.is_declared_dead, worker.has_exited = True, stops

    # --- turns and endings ---

    @rule(index=ANY)
    def checkpoint(self, index: int) -> None:
        target = self._turn_run(index)
        if target is None:
            return
        worker, run = target
        if worker.is_declared_dead:
            self.assert_rejected(worker.checkpoint(run))
            worker.has_exited = True
            return
        self.wait(worker.checkpoint(run))
        self._record_published(worker)
        response = self.response(run.claim.id)
        response.crashes = 0
        response.stored_ids = [item["id"] for item in run.attempt.output.items]
        response.checkpoint_number = run.log.next_number - 1

    @rule(
        index=ANY,
        status=st.sampled_from([Status.COMPLETED, Status.INCOMPLETE, Status.FAILED]),
        twice=st.booleans(),
        appends=st.booleans(),
        cancels=RARELY,
    )
    def finish(self, index: int, status: Status, twice: bool, appends: bool, cancels: bool) -> None:
        """Ends a response; with `cancels`, a client has cancelled it just before."""
        if appends:
            self.append(index=index, text="a", call=None)
        if not self.runs:
            return
        worker, run = pick(self.runs, index)
        response = self.response(run.claim.id)
        if cancels and not response.is_deleted:
            self.cancel(index=self.open.index(response), happens=True)
        if worker.is_declared_dead:
            self.assert_rejected(worker.finish(run, status, send_twice=twice))
            worker.has_exited = True
            return
        wanted = Status.FAILED if run.claim.end_reason is not None else status
        ended = self.wait(worker.finish(run, wanted, send_twice=twice))
        assert ended is (Status.CANCELLED if response.cancelled else wanted)
        response.status, response.owner = ended.value, None

    @precondition(lambda self: self.runs)
    @rule(index=ANY, status=st.sampled_from([Status.COMPLETED, Status.INCOMPLETE, Status.FAILED]))
    def finish_together(self, index: int, status: Status) -> None:
        """One statement ends all responses that a worker runs; each has its own outcome."""
        worker, _ = pick(self.runs, index)
        wanted = {
            run: Status.FAILED if run.claim.end_reason is not None else status
            for run in worker.runs.values()
        }

        async def finish_all() -> list[Status]:
            finishing = (worker.finish(run, wanted[run], send_twice=False) for run in wanted)
            results = await asyncio.gather(*finishing, return_exceptions=True)
            errors = [result for result in results if isinstance(result, BaseException)]
            if worker.is_declared_dead:
                assert len(errors) == len(results)
            if errors:
                raise errors[0]
            return [result for result in results if isinstance(result, Status)]

        if worker.is_declared_dead:
            self.assert_rejected(finish_all())
            worker.has_exited = True
            return
        for run, ended in zip(wanted, self.wait(finish_all()), strict=True):
            response = self.response(run.claim.id)
            assert ended is (Status.CANCELLED if response.cancelled else wanted[run])
            response.status, response.owner = ended.value, None

    @rule(index=ANY, appends=st.booleans(), defers=st.booleans())
    def hand_over(self, index: int, appends: bool, defers: bool) -> None:
        if appends:
            self.append(index=index, text="a", call=None)
        if not self.runs:
            return
        worker, run = pick(self.runs, index)
        if worker.is_declared_dead:
            self.assert_rejected(worker.hand_over(run))
            worker.has_exited = True
            return
        self.wait(worker.hand_over(run, defers=defers))
        self._record_published(worker)
        self.response(run.claim.id).owner = None

    @rule()
    def postgres_crashes(self) -> None:
        """Empties the unlogged table; all other tables keep their rows."""
        self.wait(run_sql(self.pool, "DELETE FROM journal", {}))
        for worker in self.workers:
            worker.journal_lost = True

    @rule()
    def purge(self) -> None:
        self.wait(run_purge(settings_for(self.database.dsn)))
        kept = {row["id"] for row in self.wait(run_sql(self.pool, "SELECT id FROM responses"))}
        for response in self.responses:
            if response.id in kept or response.is_deleted:
                continue
            assert response.delete_requested
            assert response.status in TERMINAL
            response.is_deleted = True

    # --- readers ---

    @precondition(lambda self: self.running)
    @rule(index=ANY)
    def get(self, index: int) -> None:
        """I7: a GET shows all that is stored, whatever earlier GETs of this process have read."""
        response = pick(self.running, index)
        if not response.background or response.delete_requested:
            return
        shown = self._shown(self.response_store, response)
        if response.owner is None or not response.owner.journal_lost:
            assert shown == self._shown(self._new_response_store(), response)

    def _shown(self, store: ResponseStore, response: TrackedResponse) -> Any:
        public_id = response_id(response.id)
        shown = self.wait(store.show(self.database.project, public_id, hold=_small_output))
        return orjson.loads(shown.body)

    @precondition(lambda self: self.open and len(self.readers) < MAX_READERS)
    @rule(index=ANY, after=st.integers(-1, 3))
    def connect(self, index: int, after: int) -> None:
        reader = StepReader(pick(self.open, index).id, self.bus, self.event_reader, after)
        self.wait(reader.connect())
        self.readers.append(reader)

    @precondition(lambda self: self.readers)
    @rule(index=ANY)
    def read(self, index: int) -> None:
        self.wait(pick(self.readers, index).step())

    @precondition(lambda self: self.readers)
    @rule(index=ANY)
    def poll_log(self, index: int) -> None:
        """An idle reader reads the log without a message."""
        reader = pick(self.readers, index)
        if reader.inbox is not None:
            reader.inbox.wake()
        self.wait(reader.step())

    # --- invariants ---

    def assert_rejected(self, work: Coroutine[Any, Any, object]) -> None:
        """A dead worker's write raises, and changes no row."""
        before = self.all_rows()
        with pytest.raises((WorkerExited, LeaseLost)):
            self.wait(work)
        assert self.all_rows() == before

    def all_rows(self) -> list[Record]:
        ids = [response.id for response in self.responses]
        values = {"ids": ids, "workers": [worker.id for worker in self.workers]}
        return self.wait(run_sql(self.pool, _ALL_ROWS, values))

    def row(self, response: TrackedResponse) -> ResponseRow:
        return self.wait(fetch(self.pool, read_queries.RESPONSE, {"id": response.id}))[0]

    def _record_published(self, worker: StepWorker) -> None:
        """Notes what the worker published: readers may read it from now on."""
        for channel, payload in worker.bus.pending:
            if not payload:
                continue
            response = self.response(UUID(channel.removeprefix("events:")))
            is_released = worker is response.owner and response.id not in worker.runs
            if is_released and response.double_fault:
                continue
            for number, frame in _numbered(payload.partition(b"\n")[2]):
                assert response.published.setdefault(number, frame) == frame, (
                    f"two events have number {number}"
                )

    @invariant()
    def rows_are_as_expected(self) -> None:
        """I3, I5, I10: one owner, rising attempts, one ending, and a cancel beats an ending."""
        ids = [response.id for response in self.responses]
        rows = {row["id"]: row for row in self.wait(run_sql(self.pool, _ROWS, {"ids": ids}))}
        assert set(rows) == {response.id for response in self.open}
        for response in self.open:
            row = rows[response.id]
            owner = response.owner.id if response.owner is not None else None
            assert (row["status"], row["worker"], row["attempt"]) == (
                response.status,
                owner,
                response.attempt,
            )
            assert row["crashes"] == response.crashes
            assert row["cancelled"] is response.cancelled
            assert not response.cancelled or response.status in ("in_progress", "cancelled")
            self._assert_log_only_grew(response, row)

    def _assert_log_only_grew(self, response: TrackedResponse, row: Record) -> None:
        """I4: numbers without a gap from 0, no event changes, a terminal event ends the log.

        The terminal event is there if and only if the row has a terminal status.
        """
        log = bytes(row["log"])
        assert log.startswith(response.log)
        response.log = log
        frames = dict(_numbered(log))
        assert list(frames) == list(range(len(frames)))
        terminal = [number for number, frame in frames.items() if _type(frame) in TERMINAL_TYPES]
        assert terminal == ([len(frames) - 1] if response.status in TERMINAL else [])
        for number, frame in frames.items():
            assert response.published.setdefault(number, frame) == frame, (
                f"event {number} was published with other bytes"
            )

    @invariant()
    def readers_read_what_is_stored(self) -> None:
        """I4: every reader has the same bytes, without a gap or a repeat."""
        for reader in self.readers:
            response = self.response(reader.response_id)
            assert reader.numbers == list(
                range(reader.after + 1, reader.after + 1 + len(reader.frames))
            )
            if not response.double_fault:
                for number, frame in zip(reader.numbers, reader.frames, strict=True):
                    assert response.published[number] == frame

    def teardown(self) -> None:
        """Ends every response and lets every reader read to the end, then checks the whole logs."""
        try:
            self._finish_everything()
            for response in self.open:
                self._assert_consistent(response)
            for reader in self.readers:
                self._assert_read_to_end(reader)
        finally:
            for reader in self.readers:
                self.wait(reader.disconnect())
            for table in ("responses", "journal", "workers"):
                self.wait(run_sql(self.pool, f"DELETE FROM {table}", {}))

    def _finish_everything(self) -> None:
        for worker in self.workers:
            if not worker.is_declared_dead:
                self.wait(self.database.declare_dead(worker))
                worker.is_declared_dead = worker.has_exited = True
        for quarantine in (False, True):
            last = self._add_worker(quarantine=quarantine)
            for response in self.open:
                if response.status in TERMINAL:
                    continue
                run = self.wait(last.claim(response.id))
                if run is not None:
                    self._claimed(response, last, run)
                    ended = self.wait(last.finish(run, Status.FAILED, send_twice=False))
                    response.status, response.owner = ended.value, None
        assert all(response.status in TERMINAL for response in self.open)
        self.rows_are_as_expected()

    def _show_ended(self, response: TrackedResponse) -> Coroutine[Any, Any, dict[str, Any]]:
        row = self.row(response)
        return self.response_store.show_ended(self.database.project, row, hold=_small_output)

    def _assert_consistent(self, response: TrackedResponse) -> None:
        """I6, I7: GET returns the items of the terminal event, which are the fold of the log."""
        events = [decode_frame(frame) for frame in split_frames(response.log)]
        assert_stream_obeys_contract(events)
        final = events[-1]["response"]
        if response.delete_requested:
            with pytest.raises(NotFound):
                self.wait(self._show_ended(response))
            return
        body = self.wait(self._show_ended(response))
        assert body["output"] == final["output"]
        assert body["status"] == final["status"] == response.status
        done = {
            event["item"]["id"]: event["item"]
            for event in events
            if event["type"] == "response.output_item.done"
        }
        assert all(done[item["id"]] == item for item in final["output"])
        ids = [item["id"] for item in final["output"]]
        assert ids == self._expected_ids(response)
        assert [item["id"] for item in fold(events) if item["id"] in ids] == ids

    def _expected_ids(self, response: TrackedResponse) -> list[str]:
        """The items of the last checkpoint, and of the last attempt that began one after it."""
        values = {"id": response.id, "after": response.checkpoint_number}
        ids: dict[int, list[str]] = {}
        for block in self.wait(fetch(self.pool, claim_queries.LOG_SINCE, values)):
            for number, frame in _numbered(block.frames):
                event = decode_frame(frame)
                is_new = event["type"] == "response.output_item.added"
                if is_new and number > response.checkpoint_number:
                    ids.setdefault(block.attempt, []).append(event["item"]["id"])
        return response.stored_ids + (ids[max(ids)] if ids else [])

    def _assert_read_to_end(self, reader: StepReader) -> None:
        self.wait(reader.to_end())
        response = self.response(reader.response_id)
        if response.is_deleted:
            return
        frames = split_frames(response.log)[reader.after + 1 :]
        if reader.is_done:
            assert reader.frames == frames
        else:
            assert response.double_fault, "a stream ended without [DONE] and without a double fault"


def pick(objects: Sequence[T], index: int) -> T:
    return objects[index % len(objects)]


def _numbered(block: bytes) -> list[tuple[int, bytes]]:
    return [(decode_frame(frame)["sequence_number"], frame) for frame in split_frames(block)]


def _small_output() -> NoReturn:
    raise AssertionError("an output of a few bytes needs no share of the memory")


def _type(frame: bytes) -> str:
    event_type: str = decode_frame(frame)["type"]
    return event_type


_ROWS = """
    SELECT r.id, r.status, r.worker, r.attempt, r.crashes,
           r.cancel_requested_at IS NOT NULL AS cancelled,
           (SELECT coalesce(string_agg(e.frames, ''::bytea ORDER BY e.first_number), ''::bytea)
            FROM event_log e WHERE e.response_id = r.id) AS log
    FROM responses r WHERE r.id = ANY(%(ids)s)
"""
_ALL_ROWS = """
    SELECT r::text AS row,
           (SELECT array_agg(e::text ORDER BY e.first_number)
            FROM event_log e WHERE e.response_id = r.id) AS log,
           (SELECT array_agg(i::text ORDER BY i.id)
            FROM items i WHERE i.response_id = r.id) AS items,
           (SELECT array_agg(j::text ORDER BY j.worker, j.batch)
            FROM journal j WHERE j.worker = ANY(%(workers)s)) AS journal
    FROM responses r WHERE r.id = ANY(%(ids)s) ORDER BY r.id
"""


# An option of this test, not of the product.
RANDOM_EXAMPLES = int(os.environ.get("BACKBURNER_STATE_MACHINE", "0"))  # noqa: TID251


def profile() -> settings:
    """The same 16 examples in every run, or as many random ones as the environment asks for."""
    return settings(
        max_examples=RANDOM_EXAMPLES or 16,
        stateful_step_count=60 if RANDOM_EXAMPLES else 40,
        derandomize=not RANDOM_EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
        report_multiple_bugs=False,
    )


# A failing example is shortened before it is reported.
@pytest.mark.timeout(900 + 5 * RANDOM_EXAMPLES)
def test_no_order_of_steps_and_faults_breaks_an_invariant(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(read_queries.PAGE_LIMITS, "page", 2)  # so that logs have several pages
    with world_on(dsn) as world:
        Machine.world = world
        run_state_machine_as_test(Machine, settings=profile())
