"""One claimed response, from its first event under this claim to its ending (design §4.4-§4.7).

A run is stopped from outside by `stop(why)`: that cancels the work and nothing else, and what follows is decided here, once.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import structlog

from models import statements
from models.bell import Bell
from models.channels import queue_for
from models.database import Pool, fetch_when_back
from models.errors import Cancelled, LeaseLost, LimitReached, RunError, UpstreamFailed
from models.ids import new_item_id, response_id
from models.lifecycle import Status
from models.ownership import Claim, Ending, Ownership, Parting, Verdict
from models.settings import Settings
from models.wire.events import TERMINAL, Event, Item, ResponseInProgress, decode_frame, split_frames
from models.wire.pairing import is_call
from models.wire.response import ResponseFacts, response_object
from models.wire.snapshot import closing_events, fold, open_items
from worker.attachments import with_files
from worker.event_log import EventLog
from worker.journal import Journal
from worker.publisher import Publisher
from worker.translation.offer import offer
from worker.translation.request import chat_request, wants_logprobs
from worker.translation.translator import Outcome, Translator
from worker.upstream.client import Upstream

logger = structlog.get_logger()

_LONG_HISTORY = 1000
"""Items from which a history's translation takes milliseconds."""


class Stop(StrEnum):
    """Why a run is stopped from outside."""

    CANCEL = "cancel"
    FAIL = "fail"
    HAND_OVER = "hand_over"
    REQUEUE = "requeue"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Tools:
    """What a run works with; one for the whole process."""

    settings: Settings
    ownership: Ownership
    journal: Journal
    publisher: Publisher
    pool: Pool
    upstream: Upstream
    bell: Bell
    new_id: Callable[[str], str] = new_item_id


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How a response ends: status, and what the row and the client are told."""

    status: Status
    error: dict[str, Any] | None = None
    reason: str | None = None
    failure: dict[str, Any] | None = None


class Run:
    """A response under one claim."""

    def __init__(self, claim: Claim, tools: Tools) -> None:
        self.claim = claim
        self.began = time.monotonic()
        self._tools = tools
        self._log = EventLog.of(claim)
        self._facts = _facts(claim)
        self._translator: Translator | None = None
        self._next_index = claim.row["next_output_index"]
        self._left: list[Item] = []
        """What the previous attempt had said: the output if this one ends before it says anything itself."""
        self._stopped: Stop | None = None
        self._work: asyncio.Task[None] | None = None

    def stop(self, why: Stop) -> None:
        """Stops the work; the first reason counts, except that a lost lease beats all."""
        if self._stopped is None or why is Stop.LOST:
            self._stopped = why
        if self._work is not None:
            self._work.cancel()

    async def run(self) -> None:
        """Runs to an ending, a release, or silence. Raises nothing but what is a bug."""
        self._tools.journal.open(self._log)
        try:
            conclusion = await self._worked()
            if conclusion is not None:
                await self._end(conclusion)
            elif self._stopped is not Stop.LOST:
                await self._release()
        except LeaseLost:
            logger.warning("run_lost", response=self._facts.id, attempt=self.claim.attempt)
        finally:
            self._tools.journal.close(self._log)

    async def _worked(self) -> Conclusion | None:
        """The work's outcome; None when there is nothing to end: handed over or lost."""
        try:
            self._resume()
        except Exception:
            logger.exception("resume_broke", response=self._facts.id)
            return _broken("The server could not take this response up again.")
        self._work = asyncio.create_task(self._turns())
        if self._stopped is not None:
            self._work.cancel()
        await asyncio.wait({self._work})
        if self._work.cancelled():
            return _OF_STOP.get(self._stopped) if self._stopped is not None else None
        error = self._work.exception()
        if self._stopped is Stop.LOST:
            return None
        if error is None:
            assert self._translator is not None
            assert self._translator.outcome is not None
            return _of_outcome(self._translator.outcome)
        if isinstance(error, RunError):
            return _of_error(error)
        logger.error("run_broke", response=self._facts.id, exc_info=error)
        return _broken("The server had an error while running this response.")

    # --- the work ---

    async def _turns(self) -> None:
        if self.claim.verdict is not None:
            raise _OF_VERDICT[self.claim.verdict]
        wall_clock = asyncio.timeout(max(0.0, self.claim.row["seconds_left"]))
        try:
            async with wall_clock:
                # Shielded: a cancelled query keeps psycopg busy for up to five seconds, and a cancel means now.
                history, own = await asyncio.shield(asyncio.ensure_future(self._history()))
                await self._turn(await with_files(history, own, self._tools.settings.egress))
        except TimeoutError as error:
            if not wall_clock.expired():
                raise
            raise _OF_VERDICT[Verdict.LATE] from error

    def _resume(self) -> None:
        """Opens this attempt's part of the stream: closes what an earlier one left open, or says that the response is in progress."""
        opening = 1 if self.claim.row["background"] else 0
        if self.claim.log_end > opening:
            told = [(attempt, decode_frame(frame)) for attempt, block in self.claim.frames for frame in split_frames(block)]
            left = open_items([event for _, event in told])
            self._next_index = max(self.claim.row["next_output_index"], left.highest_index + 1)
            self._left = [
                {**item, "status": "incomplete"} if item.get("status") == "in_progress" else item
                for item in fold(event for attempt, event in told if attempt == told[-1][0])
            ]
            self._write(closing_events(left))
        else:
            self._write([ResponseInProgress(response_object(self._facts, []))])

    async def _history(self) -> tuple[list[Item], int]:
        """All that was said so far, and how many items at its end are this response's own input."""
        rows = await fetch_when_back(self._tools.pool, statements.CHAIN, {"id": self.claim.id})
        if any(row["broken"] for row in rows):
            raise UpstreamFailed(
                "A response that this one continues has been deleted.", code="invalid_prompt", reason="history_deleted", status=400,
                param="previous_response_id", envelope_code="previous_response_not_found",
            )  # fmt: skip
        told = [row for row in rows if row["payload"] is not None]
        return [row["payload"] for row in told], sum(row["depth"] == 0 for row in told)

    async def _turn(self, history: list[Item]) -> None:
        """One upstream call, translated as it comes."""
        parameters = self._facts.parameters
        upstream = self._tools.upstream
        offered = offer(parameters, history)
        translate = partial(
            chat_request,
            model=self._facts.model,
            parameters=parameters,
            history=history,
            offer=offered,
            max_tokens_field=upstream.settings.max_tokens_field,
            developer_role=upstream.settings.developer_role,
            single_system_message=upstream.settings.single_system_message,
            passthrough=upstream.settings.passthrough,
        )
        # A long history is walked beside the event loop: a thousand other streams are waiting in it.
        body = translate() if len(history) < _LONG_HISTORY else await asyncio.to_thread(translate)
        self._translator = translator = Translator(
            self._tools.new_id,
            first_index=self._next_index,
            want_logprobs=wants_logprobs(parameters),
            offer=offered,
            output_limit=self._tools.settings.limits.output,
            think_tags=upstream.settings.think_tags,
        )
        turn = upstream.turn(body)
        async with aclosing(turn.chunks()) as reads:
            async for chunks in reads:
                for chunk in chunks:
                    self._write(translator.feed(chunk))
                await self._tools.journal.room(self._log)
        self._write(translator.finish(done_seen=turn.done_seen))

    def _write(self, events: list[Event]) -> None:
        written = self._log.write(events)
        if written:
            self._tools.journal.wake(self._log, written)

    # --- the ending ---

    async def _end(self, conclusion: Conclusion) -> None:
        if self._translator is not None:
            self._write(self._translator.cut())
        async with self._log.lock:
            try:
                await self._end_unless_cancelled(conclusion)
            except LeaseLost:
                raise
            except Exception:
                # Whatever it was: without an ending the response would be run again and again.
                logger.exception("ending_broke", response=self._facts.id)
                self._translator, self._left = None, []
                await self._end_unless_cancelled(_broken("The response could not be stored."))
        self._tools.publisher.publish(self._log.channel, b"")

    async def _end_unless_cancelled(self, conclusion: Conclusion) -> None:
        try:
            await self._end_as(conclusion)
        except Cancelled:
            await self._end_as(_CANCELLED)

    async def _end_as(self, conclusion: Conclusion) -> None:
        output = self._translator.output if self._translator is not None else self._left
        usage = self._translator.usage if self._translator is not None else None
        service_tier = self._translator.service_tier if self._translator is not None else None
        completed_at = int(time.time())
        facts = self._facts.evolve(
            status=conclusion.status.value,
            error=conclusion.error,
            incomplete_reason=conclusion.reason,
            usage=usage,
            completed_at=completed_at,
            service_tier=service_tier,
        )
        last = TERMINAL[conclusion.status](response_object(facts, output))
        ending = Ending(
            status=conclusion.status,
            tail=self._log.rest(last),
            items=output,
            position=0,
            usage=usage,
            completed_at=completed_at,
            turns=1 if self._translator is not None else 0,
            error=conclusion.error,
            reason=conclusion.reason,
            failure=conclusion.failure if not output else None,
            unanswered_calls=_unanswered(output),
            service_tier=service_tier,
        )
        await self._tools.ownership.end(self.claim, ending)

    async def _release(self) -> None:
        """Hands the response over: its log is stored first, then somebody else may claim it. The next attempt closes the open item."""
        await self._tools.journal.settled(self._log)
        async with self._log.lock:
            parting = Parting.REQUEUED if self._stopped is Stop.REQUEUE else Parting.HANDED_OVER
            await self._tools.ownership.release(self.claim, self._log.rest(), parting)
        self._tools.bell.ring(self.claim.id, queue_for(background=self._facts.background, deaths=0))


_CANCELLED = Conclusion(Status.CANCELLED, reason="cancelled")

_OF_VERDICT: dict[Verdict, RunError] = {
    Verdict.CANCELLED: Cancelled(),
    Verdict.GIVEN_UP: LimitReached("The response was ended by the server's operator.", reason="failed_by_operator", status=502),
    Verdict.UNSTARTED: LimitReached("The response waited in the queue for longer than it may.", reason="queue_wait"),
    Verdict.LATE: LimitReached("The response did not finish within the time it is given.", reason="deadline"),
    Verdict.POISON: LimitReached(
        "The response was given up: the processes that ran it died three times.", reason="too_many_deaths", status=502
    ),
}


def _facts(claim: Claim) -> ResponseFacts:
    row = claim.row
    previous = row["previous_response_id"]
    return ResponseFacts(
        id=response_id(row["id"]),
        created_at=row["created_at"],
        status=Status.IN_PROGRESS.value,
        model=row["model"],
        parameters=row["parameters"],
        background=row["background"],
        store=row["store"],
        previous_response_id=response_id(previous) if previous is not None else None,
    )


def _of_outcome(outcome: Outcome) -> Conclusion:
    if outcome.failure is not None:
        return _of_error(outcome.failure)
    return Conclusion(Status(outcome.status), reason=outcome.incomplete_reason)


def _of_error(error: RunError) -> Conclusion:
    """The one place where what ended a run becomes an ending."""
    match error:
        case Cancelled():
            return _CANCELLED
        case LimitReached():
            return _failed(error.message, reason=error.reason, failure={"status": error.status})
        case UpstreamFailed():
            failure = {"status": error.status, "code": error.envelope_code, "param": error.param, "retry_after": error.retry_after}
            return _failed(error.message, code=error.code, reason=error.reason, failure=failure)
        case _:
            raise error


def _broken(message: str) -> Conclusion:
    """A bug of ours ended it."""
    return _failed(message, reason="internal_error", failure={"status": 500})


def _failed(message: str, *, code: str = "server_error", reason: str, failure: dict[str, Any] | None = None) -> Conclusion:
    return Conclusion(Status.FAILED, error={"code": code, "message": message}, reason=reason, failure=failure)


_OF_STOP = {Stop.CANCEL: _CANCELLED, Stop.FAIL: _of_error(_OF_VERDICT[Verdict.GIVEN_UP])}
"""How a run ends that was stopped; one that is not named here is given back, or is not ours to end."""


def _unanswered(output: list[Item]) -> list[str]:
    """The calls that a continuation must answer: those of the final output that are only the client's to run."""
    return [item["call_id"] for item in output if is_call(item) and item["status"] == "completed"]
