"""Those who act in the state machine: workers told what to do step by step, a bus that drops, readers that look when they are told to.

Everything they are made of is the product's own (Ownership, Journal, EventLog, Translator, Relay, Archive, the statements); what is
left out is time, processes and the upstream.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NoReturn
from uuid import UUID

from models.config.settings import Settings
from models.db.database import Pool, fetch
from models.db.queries import statements
from models.errors import Cancelled
from models.ids import response_id
from models.lifecycle import Status
from models.ownership.claims import Claim, Ending, Step
from models.redis.channels import events as events_channel
from models.wire.events import (
    TERMINAL_EVENTS,
    Event,
    Item,
    ResponseInProgress,
    decode_frame,
    split_frames,
)
from models.wire.response import ResponseFacts, response_object
from models.wire.snapshot import closing_events, find_unfinished, fold_latest_attempt
from tests.support.worker_rows import DatabaseWorker
from web.stream.bus import Block, Inbox, _distribute
from web.stream.reader import DONE, EventReader
from worker.log.event_log import EventLog
from worker.log.journal import Journal
from worker.log.publisher import Publisher
from worker.translation.chat.chunk import CallDelta, Chunk
from worker.translation.chat.translator import ChatTranslator

NewId = Callable[[str], str]


class WorkerExited(Exception):
    """The process ended itself: the database says it is dead."""


class LossyPublisher(Publisher):
    """What a worker has shown and nobody has heard yet: each message is handed to the readers, or lost, when the test says so."""

    def __init__(self) -> None:
        self.pending: deque[tuple[str, bytes]] = deque()

    def publish(self, channel: str, payload: bytes) -> None:
        self.pending.append((channel, payload))


@dataclass(slots=True, eq=False)
class StepRun:
    """One claimed response under one claim, as far as a run has come."""

    claim: Claim
    log: EventLog
    translator: ChatTranslator
    stored_items: list[Item]
    """what earlier turns have stored"""
    previous_items: list[Item]
    """what the previous attempt had said; the output if this one ends before it says anything"""
    has_output: bool = False

    @property
    def output(self) -> list[Item]:
        """All items, as an ending now would have them."""
        return self.stored_items + self.last_items

    @property
    def last_items(self) -> list[Item]:
        return self.translator.output if self.has_output else self.previous_items


class StepWorker(DatabaseWorker):
    """A worker process whose every step the test decides."""

    def __init__(self, pool: Pool, settings: Settings, new_id: NewId) -> None:
        super().__init__(pool, settings, "quarantine" if settings.quarantine else "worker")
        self.quarantine = settings.quarantine
        self.is_declared_dead = False
        """The database has declared it dead."""
        self.has_exited = False
        """The process has noticed, and ended itself."""
        self.journal_lost = False
        """Postgres has emptied the journal since this worker stored anything there."""
        self.lease.exit_process = self._exit_process  # type: ignore[method-assign]
        self.bus = LossyPublisher()
        self.log_writer = Journal(settings, self.lease, pool, self.bus)
        self.runs: dict[UUID, StepRun] = {}
        self._new_id = new_id

    def _exit_process(self) -> NoReturn:
        self.has_exited = True
        raise WorkerExited

    async def claim(self, name: UUID) -> StepRun | None:
        """Claims, and opens this attempt's part of the stream as a run does."""
        claim = await self.ownership.take(name)
        if claim is None:
            return None
        log = EventLog.of(claim)
        self.log_writer.open(log)
        kept = [
            row["payload"] for row in await fetch(self.pool, statements.OUTPUT_ITEMS, {"id": name})
        ]
        told = [
            (attempt, decode_frame(one))
            for attempt, block in claim.frames
            for one in split_frames(block)
        ]
        open_then = find_unfinished([event for _, event in told])
        left = [
            {**item, "status": "incomplete"} if item["status"] == "in_progress" else item
            for item in fold_latest_attempt(told)
        ]
        first_index = max(claim.row["next_output_index"], open_then.highest_index + 1)
        telling = self.runs[name] = StepRun(
            claim, log, ChatTranslator(self._new_id, first_index=first_index), kept, left
        )
        fresh = claim.log_end == (1 if claim.row["background"] else 0)
        self._write(
            telling,
            [ResponseInProgress(response_object(facts_of(claim), []))]
            if fresh
            else closing_events(open_then),
        )
        return telling

    def append_delta(self, run: StepRun, text: str, *, call: int | None = None) -> None:
        """One chunk of the upstream: text, or a piece of a call's arguments."""
        run.has_output = True
        chunk = (
            Chunk(content=text)
            if call is None
            else Chunk(calls=(CallDelta(index=call, id=f"call_{call}", name="f", arguments=text),))
        )
        self._write(run, run.translator.feed(chunk))

    def _write(self, run: StepRun, events: list[Event]) -> None:
        if written := run.log.write(events):
            self.log_writer.mark_dirty(run.log, written)

    async def write_journal(self) -> None:
        """Journals everything fresh as one batch; what it shows waits in the bus."""
        logs = [telling.log for telling in self.runs.values() if telling.log.fresh]
        if logs:
            await self.log_writer._write_batch(logs)

    async def flush_all(self) -> None:
        """Moves all tails on into the event log."""
        await self.log_writer._flush([telling.log for telling in self.runs.values()], wait=True)

    async def checkpoint(self, run: StepRun) -> None:
        """The end of a turn that another follows."""
        if not run.has_output:
            self.append_delta(run, "Well, ")
        self._write(run, _finish_events(run.translator))
        await self.write_journal()
        items, tail = run.translator.output, run.log.unflushed()
        first_index = run.translator._next_index()
        step = Step(
            items=items,
            position=len(run.stored_items),
            calls=[],
            turns=1,
            usage=None,
            next_output_index=first_index,
        )
        await self.ownership.checkpoint(run.claim, tail, step)
        run.log.drop_flushed(tail.last)
        run.stored_items += items
        run.previous_items = []
        run.translator, run.has_output = (
            ChatTranslator(self._new_id, first_index=first_index),
            False,
        )

    async def finish(self, run: StepRun, status: Status, *, send_twice: bool) -> Status:
        """Ends the response, as cancelled if a cancel came first; `twice`: the answer is lost, and the statement sent again."""
        if run.has_output:
            self._write(
                run,
                _finish_events(run.translator)
                if status is Status.COMPLETED
                else run.translator.close_incomplete(),
            )
        for _ in range(2 if send_twice else 1):
            try:
                await self.ownership.end(run.claim, self._ending(run, status))
            except Cancelled:
                status = Status.CANCELLED
                await self.ownership.end(run.claim, self._ending(run, status))
        self._forget(run)
        self.bus.publish(run.log.channel, b"")
        return status

    def _ending(self, run: StepRun, status: Status) -> Ending:
        facts = facts_of(run.claim).evolve(status=status.value, error=_ERRORS.get(status))
        last = TERMINAL_EVENTS[status](response_object(facts, run.output))
        return Ending(
            status=status, tail=run.log.unflushed(last), items=run.last_items, position=len(run.stored_items), usage=None,
            completed_at=facts.created_at, error=_ERRORS.get(status),
        )  # fmt: skip

    async def hand_over(self, run: StepRun) -> None:
        """Stores what was said and gives the response back."""
        await self.write_journal()
        await self.ownership.release(run.claim, run.log.unflushed())
        self._forget(run)

    def _forget(self, run: StepRun) -> None:
        self.log_writer.close(run.log)
        del self.runs[run.claim.id]


def _finish_events(translator: ChatTranslator) -> list[Event]:
    return translator.feed(Chunk(finish_reason="stop")) + translator.finish(done_seen=True)


_ERRORS = {Status.FAILED: {"code": "server_error", "message": "It failed."}}


def facts_of(claim: Claim) -> ResponseFacts:
    """What the events of this claim say about the response."""
    row = claim.row
    return ResponseFacts(
        id=response_id(row["id"]), created_at=row["created_at"], status="in_progress", model=row["model"], parameters=row["parameters"],
        background=row["background"], store=row["store"],
    )  # fmt: skip


class StepInbox(Inbox):
    """An inbox whose reader goes on only when the test lets it, one block at a time: what happens between two steps is the test's choice."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.idle = asyncio.Event()
        self._go = asyncio.Event()

    async def step(self, reading: asyncio.Task[None]) -> None:
        """Lets the reader take what is next, if there is anything, and waits until it would wait again or has ended."""
        if not reading.done() and (self.blocks or self.must_read_log):
            self.idle.clear()
            self._go.set()
            await self.settle(reading)

    async def settle(self, reading: asyncio.Task[None]) -> None:
        """Returns when the reader would wait, or has ended."""
        waiting = asyncio.ensure_future(self.idle.wait())
        await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def next(self) -> Block | None:
        self.idle.set()
        await self._go.wait()
        self._go.clear()
        return await super().next()


class FakeBus:
    """The bus as the readers of one web process hear it: what arrives is decided message by message."""

    def __init__(self) -> None:
        self.inboxes: dict[str, set[Inbox]] = {}
        self.subscribed: asyncio.Queue[StepInbox] = asyncio.Queue()

    @asynccontextmanager
    async def subscribe(self, name: UUID) -> AsyncIterator[Inbox]:
        readers = self.inboxes.setdefault(events_channel(name), set())
        inbox = StepInbox(4000)
        readers.add(inbox)
        self.subscribed.put_nowait(inbox)
        try:
            yield inbox
        finally:
            readers.discard(inbox)

    def deliver(self, channel: str, payload: bytes) -> None:
        if readers := self.inboxes.get(channel):
            _distribute(readers, payload)


@dataclass(slots=True, eq=False)
class StepReader:
    """A connected reader: the real relay, stepped."""

    name: UUID
    bus: FakeBus
    relay: EventReader
    after: int = -1
    frames: list[bytes] = field(default_factory=list)
    is_done: bool = False
    """`[DONE]` came."""
    inbox: StepInbox | None = None
    reading: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Subscribes and takes the first look."""
        self.reading = asyncio.ensure_future(self._read())
        self.inbox = await self.bus.subscribed.get()
        await self.inbox.settle(self.reading)

    async def _read(self) -> None:
        async for said in self.relay.follow(self.name, self.after, background=True):
            if said == DONE:
                self.is_done = True
            else:
                self.frames += split_frames(said)

    async def step(self) -> None:
        assert self.inbox is not None
        assert self.reading is not None
        await self.inbox.step(self.reading)

    async def to_end(self) -> None:
        """Reads on to the end, nudged as the slow look of a waiting reader is."""
        assert self.inbox is not None
        assert self.reading is not None
        while not self.reading.done():
            self.inbox.wake()
            await self.step()
        await self.reading

    async def disconnect(self) -> None:
        """Closes the connection."""
        assert self.reading is not None
        self.reading.cancel()
        await asyncio.wait({self.reading})

    @property
    def ended(self) -> bool:
        return self.reading is not None and self.reading.done()

    @property
    def numbers(self) -> list[int]:
        return [decode_frame(one)["sequence_number"] for one in self.frames]


class SilentRedis:
    """The control channel and the nudges: all of it may be lost."""

    async def publish(self, channel: str, payload: bytes) -> None:
        return None
