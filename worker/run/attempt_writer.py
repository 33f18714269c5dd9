"""The writes of one attempt: events, checkpoints, tool calls, and the ending or the release.

Each write to Postgres is fenced: it raises LeaseLost if the response has another owner by now.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog

from models.db.queries.end import MAY_BE_FOLLOWED
from models.ended_line import EndedLine
from models.errors import Cancelled, FailedCall, LeaseLost, Steered
from models.ownership.claims import Ownership, ReleaseReason
from models.ownership.steps import EMPTY_TAIL, Ending, Steering, Tail
from models.ownership.timeline import attempts_on_timeline
from models.prices import PriceList, response_amounts
from models.secrets import Sealer
from models.uncancellable import run_uncancellable
from models.windows import WINDOW_OF_LANE
from models.wire.events import Event, Item
from models.wire.response import filter_events
from worker.log.event_log import Block, EventLog
from worker.log.journal import Journal
from worker.metrics import count_missed_window
from worker.run.attempt import Attempt
from worker.run.end_state import CANCELLED, EndState, internal_error
from worker.run.output import Entry
from worker.run.steering import steering_of
from worker.translation.items.open_item import OpenItem
from worker.translation.turn import Turn

logger = structlog.get_logger()


class AttemptWriter:
    """Writes what an attempt does. Open from `open` to `close`."""

    def __init__(
        self,
        attempt: Attempt,
        journal: Journal,
        ownership: Ownership,
        on_ended: Sequence[Callable[[EndedLine], None]] = (),
        sealer: Sealer | None = None,
        prices: PriceList | None = None,
    ) -> None:
        """`on_ended`: called with the log line of an ending once it is stored. `sealer`: of the
        client's credentials, for a successor. `prices` None: no cost is known."""
        self.log = EventLog.of(attempt.claim)
        self._attempt = attempt
        self._claim = attempt.claim
        self._include = attempt.include
        self._journal = journal
        self._ownership = ownership
        self._on_ended = on_ended
        self.is_awaited = False
        """Another response may have waited for the ending that is stored."""
        self._sealer = sealer or Sealer(())
        self._prices = prices
        self.cost: int | None = None
        """What the response cost, once its ending is stored (models/prices.py)."""
        self.successor: UUID | None = None
        """The response that was stored with the ending; a worker has to run it."""
        self._last_block: Block | None = None
        """The last frames of a stored ending."""
        self._is_retrying = attempt.claim.row.is_retrying

    def open(self) -> None:
        """The journal stores and publishes the log from now on."""
        self._journal.open(self.log)

    def close(self) -> None:
        """Nothing is written for this attempt any more."""
        self._journal.close(self.log)

    def write(self, events: list[Event], *, may_wait: bool = False) -> None:
        """Appends events to the log, without the fields that `include` does not ask for. They
        `may_wait` for others that come within milliseconds."""
        visible = filter_events(events, self._include)
        self._journal.write(self.log, visible, may_wait=may_wait)

    def large_output(self) -> AbstractAsyncContextManager[None]:
        """A turn to write the last events of the turn or of the response, if they are large. Other
        responses of the process go on between one and the next."""
        return self._journal.large_output(self.log, self._attempt.size)

    @property
    def has_to_wait(self) -> bool:
        """Whether `record_answer` or `wait_for_room` has something to wait for."""
        return self._is_retrying or not self._journal.has_room(self.log)

    async def wait_for_room(self) -> None:
        """Waits until the log has room for more bytes (I12)."""
        await self._journal.wait_for_room(self.log)

    async def record_answer(self) -> None:
        """Records that an upstream answers: the response is not `retrying` any more."""
        if self._is_retrying:
            self._is_retrying = False
            await self._ownership.record_answer(self._claim)

    async def checkpoint(
        self,
        items: Sequence[OpenItem],
        turn: Turn[Any] | None,
        last_events: Sequence[Event] = (),
    ) -> None:
        """Stores a finished step with the log up to it, then publishes `last_events`.

        `turn` is None for calls that belong to no turn. Raises Cancelled and LeaseLost.
        """
        await run_uncancellable(self._checkpoint(items, turn, last_events))

    async def _checkpoint(
        self, items: Sequence[OpenItem], turn: Turn[Any] | None, last_events: Iterable[Event]
    ) -> None:
        step = self._attempt.step(items, turn)

        async def store(tail: Tail) -> None:
            self._attempt.steers = await self._ownership.checkpoint(self._claim, tail, step)

        await self._journal.store_then_publish(self.log, last_events, store)
        self._attempt.apply_step(step, items)

    async def start_call(self, entry: Entry) -> None:
        """Stores that the call is about to run. Raises Cancelled: it must not run."""
        await run_uncancellable(self._ownership.start_call(self._claim, entry.position))

    async def show_call(self, item_id: str, event_of: Callable[[str, int], Event]) -> None:
        """Writes an event of an open call, unless an earlier call holds its item back. Waits until
        the log has room."""
        await self.wait_for_room()
        for entry in self._attempt.output.open_calls:
            if entry.is_sent and entry.call is not None and entry.call.id == item_id:
                self.write([event_of(item_id, entry.call.output_index)])

    async def finish_call(self, entry: Entry, events: Sequence[Event], tool_output: Any) -> None:
        """Stores a call's item and what the model gets for it, then publishes `events`, unless an
        earlier call holds them back."""
        await run_uncancellable(self._finish_call(entry, events, tool_output))

    async def _finish_call(self, entry: Entry, events: Sequence[Event], tool_output: Any) -> None:
        assert entry.call is not None
        item = entry.call.to_json()

        async def store(tail: Tail) -> None:
            self._attempt.steers = await self._ownership.finish_call(
                self._claim, tail, entry.position, item, tool_output
            )

        await self._journal.store_then_publish(
            self.log, self._finish_events(entry, events, item, tool_output), store
        )

    async def store_closed_call(self, entry: Entry) -> None:
        """Stores a call that an earlier attempt has closed in the log, when it was about to end the
        response. After the next checkpoint no attempt reads that part of the log: it would run the
        call again.

        The log is not stored with it: the other calls of the same part are not stored yet.
        """
        await run_uncancellable(
            self._ownership.finish_call(
                self._claim, EMPTY_TAIL, entry.position, entry.item, entry.tool_output
            )
        )
        entry.changed = False

    def _finish_events(
        self, entry: Entry, events: Sequence[Event], item: Item, tool_output: Any
    ) -> Iterator[Event]:
        """What may be sent once a call has its result. A generator: it runs under the log's lock,
        since calls that end at the same time send each other's held events."""
        sent = self._attempt.output.finish_call(entry, events, item, tool_output)
        yield from filter_events(sent, self._include)

    async def close_turn(self) -> None:
        """Closes what is open, as `incomplete`, before a release after which the turn is repeated.

        Else readers would see an open item until the upstream answers again.
        """
        async with self.large_output():
            self.write(self._attempt.close_open_items())

    async def end(self, end_state: EndState) -> EndState:
        """Closes what is open and stores the ending, as cancelled if a cancel was recorded first.
        What has arrived while the response ran is stored with it, as input of a successor.

        Returns the end state that is stored. If it cannot be stored, the response fails without
        its unstored items, and if that is not possible, without any items: without an ending it
        would run again and again.
        """
        async with self.large_output():
            return await self._end(end_state)

    async def _end(self, end_state: EndState) -> EndState:
        try:
            self.write(self._attempt.close_open_items())
            return await self._end_unless_cancelled(end_state, self._attempt.ending)
        except LeaseLost:
            raise
        except Exception:
            logger.exception("end_not_stored", response=self._attempt.facts.id)
        self._attempt.drop_unstored()
        failed = internal_error("The response could not be stored.")
        try:
            return await self._end_unless_cancelled(failed, self._attempt.ending)
        except LeaseLost:
            raise
        except Exception:
            logger.exception("failure_not_stored", response=self._attempt.facts.id)
        return await self._end_unless_cancelled(failed, self._attempt.ending_without_items)

    async def _end_unless_cancelled(
        self, end_state: EndState, ending_of: Callable[..., Ending]
    ) -> EndState:
        async def store() -> EndState:
            steering: Steering | None = None
            if self._attempt.steers and end_state.status in MAY_BE_FOLLOWED:
                steering = await self._steering()
            while True:
                try:
                    await self._store_end(end_state, ending_of, steering)
                except Cancelled:
                    await self._store_end(CANCELLED, ending_of)
                    return CANCELLED
                except Steered:
                    steering = await self._steering()
                else:
                    return end_state

        return await self._journal.store_last(self.log, store)

    async def _steering(self) -> Steering | None:
        queued = await self._ownership.queued_steers(self._claim)
        return steering_of(self._attempt, queued, self._sealer, self._ownership.now())

    async def _store_end(
        self,
        end_state: EndState,
        ending_of: Callable[..., Ending],
        steering: Steering | None = None,
    ) -> None:
        completed_at = self._ownership.now()
        ending: Ending = ending_of(
            end_state, completed_at=completed_at, tail_with=self.log.unflushed
        )
        ending = replace(ending, steering=steering, cost=self._cost_of(ending))
        last_block = self._journal.unpublished(self.log, ending.tail)
        self.is_awaited = await self._ownership.end(self._claim, ending)
        self._last_block = last_block
        self.cost = ending.cost
        count_missed_window(self._claim.row, completed_at)
        if steering is not None and steering.successor is not None:
            self.successor = steering.successor.id
        line = _ended_line(self._attempt, self.log, ending)
        line.write()
        for count_end in self._on_ended:
            count_end(line)

    def _cost_of(self, ending: Ending) -> int | None:
        """The cost of all turns, at the price of the upstream that answered the last one."""
        if self._prices is None:
            return None
        row = self._claim.row
        requested_tier = self._attempt.facts.parameters.get("service_tier")
        return self._prices.cost(
            row.model,
            ending.upstream,
            response_amounts(ending.usage, self._attempt.output.turns + ending.turns),
            tier=ending.service_tier or requested_tier,
            window=WINDOW_OF_LANE.get(row.lane),
        )

    def publish_end(self) -> None:
        """Makes readers see the ending, or look for it if it could not be stored."""
        self._journal.publish_end(self.log, self._last_block)

    async def release(
        self,
        reason: ReleaseReason,
        delay: timedelta | None = None,
        failures: Sequence[FailedCall] = (),
    ) -> None:
        """Stores the log and gives the response up; it can be claimed again after `delay`.
        `failures`: why it is deferred."""
        await self._journal.wait_until_journaled(self.log)
        async with self.log.lock:
            tail = self.log.unflushed()
            await self._ownership.release(self._claim, tail, reason, delay, failures)


def _ended_line(attempt: Attempt, log: EventLog, ending: Ending) -> EndedLine:
    """The log line of a response that this worker has ended.

    The times until the claim and until the first output are known of a first attempt only. The
    duration of a response with more attempts comes from times in whole seconds.
    """
    row = attempt.claim.row
    attempts = attempts_on_timeline(row.attempt)
    is_first = attempts == 1
    seconds: float = max(0, ending.completed_at - row.created_at)
    if is_first:
        seconds = row.seconds_queued + time.monotonic() - log.started_at
    return EndedLine(
        response=row.id,
        request=row.request_id,
        status=ending.status,
        reason=ending.reason,
        model=row.model,
        background=row.background,
        attempts=attempts,
        upstream=ending.failed_upstream or ending.upstream,
        project=row.project_id,
        cost=ending.cost,
        queued_seconds=row.seconds_queued if is_first else None,
        first_token_seconds=log.first_event_seconds,
        seconds=seconds,
        usage=ending.usage,
        output=attempt.final_output().items,
    )
