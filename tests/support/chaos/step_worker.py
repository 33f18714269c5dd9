"""Workers, readers and a bus that the state machine runs step by step.

All of it is the product's code: Attempt, AttemptWriter, Ownership, Journal, EventLog,
ChatTranslator, EventReader, the statements. Left out are time, processes and the upstream.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NoReturn
from unittest.mock import patch
from uuid import UUID

from models.config.settings import Settings
from models.db.database import Pool
from models.db.queries.common import LogBlock
from models.errors import FailedCall
from models.lifecycle import Status
from models.ownership.claims import ReleaseReason
from models.ownership.takeover import Claim
from models.redis.channels import events as events_channel
from models.wire.events import DONE, Event, decode_frame, split_frames
from tests.support.worker_rows import DatabaseWorker
from web.stream.inboxes import Inbox, distribute
from web.stream.reader import EventReader
from worker.log.event_log import EventLog
from worker.log.journal import Journal
from worker.log.publisher import EventPublisher
from worker.run.attempt import Attempt
from worker.run.attempt_writer import AttemptWriter
from worker.run.end_state import (
    CANCELLED,
    EndState,
    end_state_of_error,
    end_state_of_outcome,
    error_of_end_reason,
    internal_error,
)
from worker.run.preparation import write_first_events
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.turn import Turn, TurnOutcome
from worker.translation.upstream_events import CallDelta, ChatChunk

NewId = Callable[[str], str]

_END_STATES = {
    Status.COMPLETED: end_state_of_outcome(TurnOutcome("completed")),
    Status.INCOMPLETE: end_state_of_outcome(TurnOutcome("incomplete", "max_output_tokens")),
    Status.FAILED: internal_error("The upstream failed."),
    Status.CANCELLED: CANCELLED,
}


class WorkerExited(Exception):
    """The process ended itself because the database has declared it dead."""


class LossyPublisher(EventPublisher):
    """Keeps what a worker publishes until the test delivers or drops each message."""

    def __init__(self) -> None:
        self.pending: deque[tuple[str, bytes]] = deque()

    def publish(self, channel: str, payload: bytes) -> None:
        self.pending.append((channel, payload))


@dataclass(frozen=True, slots=True, eq=False)
class StepRun:
    """One attempt whose steps the test decides."""

    attempt: Attempt
    writer: AttemptWriter

    @property
    def claim(self) -> Claim:
        return self.attempt.claim

    @property
    def log(self) -> EventLog:
        return self.writer.log


class StepWorker(DatabaseWorker):
    """A worker process whose steps the test decides."""

    def __init__(self, pool: Pool, settings: Settings, new_id: NewId) -> None:
        super().__init__(pool, settings, "quarantine" if settings.quarantine else "worker")
        self.quarantine = settings.quarantine
        self.is_declared_dead = False
        """The database has declared it dead."""
        self.has_exited = False
        """The process has noticed that and ended itself."""
        self.journal_lost = False
        """Postgres has emptied the journal since this worker wrote to it."""
        self.lease.exit_process = self._exit_process  # type: ignore[method-assign]
        self.bus = LossyPublisher()
        self.journal_writer = Journal(settings, self.lease, pool, self.bus)
        self.runs: dict[UUID, StepRun] = {}
        self._new_id = new_id

    def _exit_process(self) -> NoReturn:
        self.has_exited = True
        raise WorkerExited

    async def claim(self, response_id: UUID) -> StepRun | None:
        """Claims the response and writes the first events; None if it cannot be claimed."""
        claim = await self.ownership.take(response_id)
        return await self._start(claim) if claim is not None else None

    async def claim_orphans(self, ids: list[UUID]) -> list[StepRun]:
        """Claims these responses in one transaction; returns the runs of those it got."""
        claims = [
            await self.ownership.with_log(claim) for claim in await self.ownership.take_orphans(ids)
        ]
        return [await self._start(claim) for claim in claims if claim is not None]

    async def _start(self, claim: Claim) -> StepRun:
        attempt = Attempt(claim)
        writer = AttemptWriter(attempt, self.journal_writer, self.ownership)
        writer.open()
        await write_first_events(attempt, writer, self.pool)
        if claim.end_reason is None:
            self._begin_turn(attempt)
        run = self.runs[claim.id] = StepRun(attempt, writer)
        return run

    def append_delta(self, run: StepRun, text: str, *, call: int | None = None) -> None:
        """Feeds one chunk of the upstream: text, or a part of the arguments of a call."""
        if call is None:
            chunk = ChatChunk(content=text)
        else:
            delta = CallDelta(index=call, id=f"call_{call}", name="f", arguments=text)
            chunk = ChatChunk(calls=(delta,))
        run.writer.write(self._turn(run).feed(chunk))

    def _turn(self, run: StepRun) -> Turn[ChatChunk]:
        """The current turn; a new one between turns."""
        return run.attempt.current_turn or self._begin_turn(run.attempt)

    def _begin_turn(self, attempt: Attempt) -> Turn[ChatChunk]:
        options = ChatOptions(first_index=attempt.output.next_index)
        attempt.current_turn = turn = ChatTranslator(self._new_id, options)
        return turn

    async def write_journal(self) -> None:
        """Writes all new frames to the journal as one batch; the bus keeps what it publishes."""
        logs = [run.log for run in self.runs.values() if run.log.fresh]
        if logs:
            await self.journal_writer.batch_writer.write(logs)

    async def flush_all(self) -> None:
        """Moves all tails to the event log."""
        await self.journal_writer.flush_writer.flush([run.log for run in self.runs.values()])

    async def checkpoint(self, run: StepRun) -> None:
        """Ends the turn and stores it; another turn follows."""
        turn = self._turn(run)
        if not turn.output:
            self.append_delta(run, "Well, ")
        run.writer.write(_finish_events(turn))
        await run.writer.checkpoint(turn.items, turn)

    async def finish(self, run: StepRun, status: Status, *, send_twice: bool) -> Status:
        """Ends the response with this status, or as its claim or a cancel demands.

        `send_twice`: the answer to the statement is lost, so it is sent again.
        """
        end_state = _end_state(run.claim, status)
        turn = run.attempt.current_turn
        if turn is not None and end_state.status is Status.COMPLETED:
            if not turn.output:
                self.append_delta(run, "Well, ")
            run.writer.write(_finish_events(turn))
        # The product sends the same values again, with the time of the first.
        with patch.object(self.ownership, "now", return_value=self.ownership.now()):
            for _ in range(2 if send_twice else 1):
                end_state = await run.writer.end(end_state)
        self._forget(run)
        run.writer.publish_end()
        return end_state.status

    async def hand_over(self, run: StepRun, *, defers: bool = False) -> None:
        """Stores the log and releases the response. `defers`: because its upstream failed; it may
        be claimed at once all the same."""
        await self.write_journal()
        if defers:
            failures = [FailedCall("first", "upstream_503", "The upstream is busy.")]
            await run.writer.release(ReleaseReason.DEFERRED, timedelta(), failures)
        else:
            await run.writer.release(ReleaseReason.HANDED_OVER)
        self._forget(run)

    def _forget(self, run: StepRun) -> None:
        run.writer.close()
        del self.runs[run.claim.id]


def _finish_events(turn: Turn[ChatChunk]) -> list[Event]:
    return turn.feed(ChatChunk(finish_reason="stop")) + turn.finish(done_seen=True)


def _end_state(claim: Claim, status: Status) -> EndState:
    if claim.end_reason is not None:
        return end_state_of_error(error_of_end_reason(claim.end_reason))
    return _END_STATES[status]


class StepInbox(Inbox):
    """An inbox whose reader gets one block per step of the test."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.idle = asyncio.Event()
        self._go = asyncio.Event()

    async def step(self, reading: asyncio.Task[None]) -> None:
        """Gives the reader the next block, if there is one, and waits until it waits or ends."""
        if not reading.done() and (self.blocks or self.must_read_log):
            self.idle.clear()
            self._go.set()
            await self.settle(reading)

    async def settle(self, reading: asyncio.Task[None]) -> None:
        """Waits until the reader waits for a block or has ended."""
        waiting = asyncio.ensure_future(self.idle.wait())
        await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def next(self) -> LogBlock | None:
        self.idle.set()
        await self._go.wait()
        self._go.clear()
        return await super().next()


class FakeBus:
    """The bus of one web process; the test decides which messages arrive."""

    def __init__(self) -> None:
        self.inboxes: dict[str, set[Inbox]] = {}
        self.subscribed: asyncio.Queue[StepInbox] = asyncio.Queue()

    @asynccontextmanager
    async def subscribe(
        self,
        response_id: UUID,
        *,
        only_end: bool = False,
    ) -> AsyncIterator[Inbox]:
        readers = self.inboxes.setdefault(events_channel(response_id), set())
        inbox = StepInbox(4000)
        readers.add(inbox)
        self.subscribed.put_nowait(inbox)
        try:
            yield inbox
        finally:
            readers.discard(inbox)

    def deliver(self, channel: str, payload: bytes) -> None:
        if readers := self.inboxes.get(channel):
            distribute(readers, payload)


@dataclass(slots=True, eq=False)
class StepReader:
    """A connected reader: the product's EventReader, one step at a time."""

    response_id: UUID
    bus: FakeBus
    reader: EventReader
    after: int = -1
    frames: list[bytes] = field(default_factory=list)
    is_done: bool = False
    """Whether `[DONE]` was read."""
    inbox: StepInbox | None = None
    reading: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Subscribes and reads what the log holds already."""
        self.reading = asyncio.ensure_future(self._read())
        self.inbox = await self.bus.subscribed.get()
        await self.inbox.settle(self.reading)

    async def _read(self) -> None:
        async for block in self.reader.follow(self.response_id, self.after, background=True):
            frames = split_frames(block)
            self.is_done = frames[-1] == DONE
            self.frames += frames[:-1] if self.is_done else frames

    async def step(self) -> None:
        assert self.inbox is not None
        assert self.reading is not None
        await self.inbox.step(self.reading)

    async def to_end(self) -> None:
        """Reads to the end, woken as often as the slow poll of an idle reader would."""
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
        return [decode_frame(frame)["sequence_number"] for frame in self.frames]


class SilentRedis:
    """Loses every message: cancels and notifications must work without Redis."""

    async def publish(self, channel: str, payload: bytes) -> None:
        return None
