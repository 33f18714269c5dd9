"""One claimed response, from its first event under this claim to its ending (design §4.4-§4.7).

A run is stopped from outside by `stop(why)`: that cancels the work and nothing else, and what follows is decided here, once.
"""

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

import structlog

from models.db.database import fetch_when_back
from models.db.queries import statements
from models.errors import (
    Cancelled,
    LeaseLost,
    LimitReached,
    PutOff,
    RunError,
    ToolFailed,
    UpstreamFailed,
)
from models.ids import conversation_id, response_id
from models.lifecycle import Status
from models.ownership.claims import Claim, Ending, Parting, Verdict
from models.redis.answer_cache import Answer
from models.redis.channels import queue_for
from models.secrets import Sealed, Unreadable
from models.wire.counting import COUNTED
from models.wire.events import TERMINAL, Event, Item, ResponseInProgress, decode_frame, split_frames
from models.wire.includes import included, shown_events
from models.wire.pairing import unanswered
from models.wire.response import ResponseFacts, response_object
from models.wire.snapshot import closing_events, open_items, standing
from models.wire.tools import with_added_search
from worker.log.event_log import EventLog
from worker.run.attachments import with_files
from worker.run.compaction import Compactions, is_forced, opened_input
from worker.run.output import Output, as_told
from worker.run.resources import Resources
from worker.run.tool_loop import Turns
from worker.tools.provider import Means
from worker.tools.toolbox import Toolbox
from worker.translation.turn import Outcome, SpokenTurn
from worker.translation.usage import add_usage

logger = structlog.get_logger()

_LONGEST_PAUSE = 30.0
"""Seconds: how long a response that is put off again and again waits for its next try, unless a circuit is open for longer."""


class Stop(StrEnum):
    """Why a run is stopped from outside."""

    CANCEL = "cancel"
    FAIL = "fail"
    HAND_OVER = "hand_over"
    REQUEUE = "requeue"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How a response ends: status, and what the row and the client are told."""

    status: Status
    error: dict[str, Any] | None = None
    reason: str | None = None
    failure: dict[str, Any] | None = None


class Run:
    """A response under one claim."""

    def __init__(self, claim: Claim, resources: Resources) -> None:
        self.claim = claim
        self.began = time.monotonic()
        self.conclusion: Conclusion | None = None
        """Set once the ending is stored."""
        self._parting: Parting | None = None
        self._pause: timedelta | None = None
        """It is put off for this long."""
        self._resources = resources
        self._log = EventLog.of(claim)
        self._facts = _facts(claim)
        self._output = Output(claim, [])
        self._turns: Turns | None = None
        self._toolbox: Toolbox | None = None
        self._answer: Answer | None = None
        """What was said in the end, once that is stored."""
        self._is_retiring = False
        self._stopped: Stop | None = None
        self._work: asyncio.Task[Outcome | None] | None = None

    @property
    def _speaking(self) -> SpokenTurn[Any] | None:
        """The turn that is not stored yet."""
        return self._turns.speaking if self._turns is not None else None

    def retire(self) -> None:
        """The process is to stop: the run is handed over before its next step, and meanwhile what is under way may end."""
        self._is_retiring = True

    @property
    def outcome(self) -> str:
        """What became of this attempt: `ended`, a word of `Parting`, or `lost`."""
        if self.conclusion is not None:
            return "ended"
        return self._parting.value if self._parting is not None else "lost"

    def stop(self, why: Stop) -> None:
        """Stops the work; the first reason counts, except that a lost lease beats all."""
        if self._stopped is None or why is Stop.LOST:
            self._stopped = why
        if self._work is not None:
            self._work.cancel()

    async def run(self) -> None:
        """Runs to an ending, a release, or silence. Raises nothing but what is a bug."""
        self._resources.journal.open(self._log)
        try:
            conclusion = await self._worked()
            if conclusion is not None:
                await self._end(conclusion)
            elif self._stopped is not Stop.LOST:
                await self._release()
        except LeaseLost:
            logger.warning("run_lost", response=self._facts.id, attempt=self.claim.attempt)
        finally:
            self._resources.journal.close(self._log)
            if self._toolbox is not None:
                await self._toolbox.close()

    async def _worked(self) -> Conclusion | None:
        """The work's outcome; None when there is nothing to end: handed over or lost."""
        try:
            await self._resume()
        except Exception:
            logger.exception("resume_broke", response=self._facts.id)
            return _broken("The server could not take this response up again.")
        self._work = asyncio.create_task(self._in_time())
        if self._stopped is not None:
            self._work.cancel()
        await asyncio.wait({self._work})
        if self._work.cancelled():
            return _OF_STOP.get(self._stopped) if self._stopped is not None else None
        error = self._work.exception()
        if self._stopped is Stop.LOST:
            return None
        if error is None:
            outcome = self._work.result()
            return _of_outcome(outcome) if outcome is not None else None
        if isinstance(error, PutOff):
            self._pause = self._spread(error.seconds)
            return None
        if isinstance(error, RunError):
            return _of_error(error)
        logger.error("run_broke", response=self._facts.id, exc_info=error)
        return _broken("The server had an error while running this response.")

    # --- the work ---

    async def _in_time(self) -> Outcome | None:
        """All turns, within the response's wall clock. None: to be handed over."""
        if self.claim.verdict is not None:
            raise _OF_VERDICT[self.claim.verdict]
        wall_clock = asyncio.timeout(max(0.0, self.claim.row["seconds_left"]))
        try:
            async with wall_clock:
                # Shielded: a cancelled query keeps psycopg busy for up to five seconds, and a cancel means now.
                said, own = await asyncio.shield(asyncio.ensure_future(self._history()))
                compactions = self._compactions(said)
                history, own, skipped = opened_input(said, own, compactions)
                if not compactions.is_all and COUNTED not in self._facts.parameters:
                    history = await with_files(
                        history,
                        own,
                        self._resources.settings.egress,
                        before=self._before,
                        skipped=skipped,
                    )
                self._toolbox = await asyncio.shield(
                    asyncio.ensure_future(self._open_toolbox(history))
                )
                self._turns = Turns(
                    self.claim,
                    self._facts,
                    self._log,
                    self._output,
                    self._resources,
                    history=history,
                    toolbox=self._toolbox,
                    compactions=compactions,
                    is_retiring=lambda: self._is_retiring,
                )
                return await self._turns.run()
        except TimeoutError as error:
            if not wall_clock.expired():
                raise
            raise _OF_VERDICT[Verdict.LATE] from error

    async def _resume(self) -> None:
        """Opens this attempt's part of the stream: closes what an earlier one left open, or says that the response is in progress."""
        opening = 1 if self.claim.row["background"] else 0
        if self.claim.log_end <= opening:
            self._write([ResponseInProgress(response_object(self._facts, []))])
            return
        self._output = Output(
            self.claim,
            await fetch_when_back(self._resources.pool, statements.OUTPUT, {"id": self.claim.id}),
        )
        told = [
            (attempt, decode_frame(frame))
            for attempt, block in self.claim.frames
            for frame in split_frames(block)
        ]
        left = open_items([event for _, event in told])
        self._output.next_index = max(self._output.next_index, left.highest_index + 1)
        self._output.left = [
            {**item, "status": "incomplete"} if item.get("status") == "in_progress" else item
            for item in standing(told)
        ]
        # A compaction that broke off holds nothing.
        self._output.left = [
            item
            for item in self._output.left
            if (item["type"], item.get("status")) != ("compaction", "incomplete")
        ]
        self._output.note_closed([event for _, event in told])
        self._write(closing_events(left))

    async def _open_toolbox(self, history: list[Item]) -> Toolbox:
        tools = with_added_search(self._facts.parameters.get("tools", []), history)
        settings = self._resources.settings
        credentials = (
            await self._credentials() if any(tool["type"] == "mcp" for tool in tools) else {}
        )
        include = self._facts.parameters.get("include", ())
        return await Toolbox.of(
            tools, Means(settings, self._resources.egress, credentials, include)
        )

    async def _credentials(self) -> dict[str, Any]:
        """What the client entrusted us with: server_label -> `authorization`, `headers`."""
        kept = await fetch_when_back(
            self._resources.pool, statements.SECRETS, {"id": self.claim.id}
        )
        try:
            return (
                self._resources.sealer.open(
                    self.claim.id, Sealed(kept[0]["key_id"], kept[0]["sealed"])
                )
                if kept
                else {}
            )
        except Unreadable:
            message = "The credentials for this response's MCP servers can no longer be read: this server's sealing keys have changed."
            raise ToolFailed(message, reason="secrets_unreadable") from None

    @property
    def _before(self) -> str:
        """The parameter that brought what was said before."""
        return "previous_response_id" if self._facts.conversation_id is None else "conversation"

    async def _history(self) -> tuple[list[Item], int]:
        """All that was said so far, and how many items at its end are this response's own input."""
        rows = await fetch_when_back(self._resources.pool, statements.CHAIN, {"id": self.claim.id})
        if any(row["broken"] for row in rows):
            raise UpstreamFailed(
                "A response or conversation that this one continues has been deleted.", code="invalid_prompt", reason="history_deleted", status=400,
                param="previous_response_id", envelope_code="previous_response_not_found",
            )  # fmt: skip
        told = [row for row in rows if row["payload"] is not None]
        return [as_told(row["payload"], row["turn"], row["answer"]) for row in told], sum(
            row["depth"] == 0 for row in told
        )

    def _compactions(self, said: list[Item]) -> Compactions:
        resources, row = self._resources, self.claim.row
        return Compactions(
            row["project_id"], resources.sealer, resources.settings.compaction, row["parameters"], is_all=is_forced(said)
        )  # fmt: skip

    def _write(self, events: list[Event]) -> None:
        self._resources.journal.write(self._log, events)

    # --- the ending ---

    async def _end(self, conclusion: Conclusion) -> None:
        if self._speaking is not None:
            self._write(
                shown_events(self._speaking.cut(), self._facts.parameters.get("include", ()))
            )
        self._write(self._output.cut())
        await self._resources.journal.lightened(self._log)
        async with self._log.lock:
            try:
                await self._end_unless_cancelled(conclusion)
            except LeaseLost:
                raise
            except Exception:
                # Whatever it was: without an ending the response would be run again and again.
                logger.exception("ending_broke", response=self._facts.id)
                self._turns, self._output.left = None, []
                await self._end_unless_cancelled(_broken("The response could not be stored."))
        await self._remember()
        self._resources.publisher.publish(self._log.channel, b"")

    async def _remember(self) -> None:
        """Before anybody is told of the ending: who asks the same then is to find the answer."""
        row = self.claim.row
        if (
            self._answer is not None
            and self.conclusion is not None
            and self.conclusion.status is Status.COMPLETED
            and row["cache_ttl"]
        ):
            await self._resources.cache.keep(
                row["project_id"], bytes(row["cache_key"]), row["cache_ttl"], self._answer
            )

    async def _end_unless_cancelled(self, conclusion: Conclusion) -> None:
        try:
            await self._end_as(conclusion)
        except Cancelled:
            await self._end_as(_CANCELLED)

    async def _end_as(self, conclusion: Conclusion) -> None:
        speaking, kept = self._speaking, self._output
        unstored = (
            speaking.output
            if speaking is not None and (speaking.output or speaking.outcome is not None)
            else kept.left
        )
        output = [*kept.items, *unstored]
        usage = add_usage(kept.usage, speaking.usage) if speaking is not None else kept.usage
        service_tier = (
            speaking.service_tier if speaking is not None else None
        ) or kept.service_tier
        completed_at = int(time.time())
        facts = self._facts.evolve(
            status=conclusion.status.value,
            error=conclusion.error,
            incomplete_reason=conclusion.reason,
            usage=usage,
            completed_at=completed_at,
            service_tier=service_tier,
        )
        shown = included(output, self._facts.parameters.get("include", ()))
        last = TERMINAL[conclusion.status](response_object(facts, shown))
        ending = Ending(
            status=conclusion.status,
            tail=self._log.rest(last),
            items=unstored,
            position=len(kept.entries),
            changed=[(entry.position, entry.item) for entry in kept.entries if entry.changed],
            usage=usage,
            completed_at=completed_at,
            turns=1 if speaking is not None else 0,
            error=conclusion.error,
            reason=conclusion.reason,
            failure=conclusion.failure
            if all(item["type"] in _UNSPOKEN for item in output)
            else None,
            unanswered_calls=unanswered(output),
            service_tier=service_tier,
            upstream=kept.upstream,
        )
        await self._resources.ownership.end(self.claim, ending)
        self.conclusion, self._answer = conclusion, Answer(output, usage, service_tier)

    async def _release(self) -> None:
        """Hands the response over: its log is stored first, then somebody else may claim it. The next attempt closes the open item."""
        await self._resources.journal.settled(self._log)
        async with self._log.lock:
            parting = (
                Parting.REQUEUED
                if self._stopped is Stop.REQUEUE
                else Parting.HANDED_OVER
                if self._pause is None
                else Parting.PUT_OFF
            )
            await self._resources.ownership.release(
                self.claim, self._log.rest(), parting, self._pause
            )
            self._parting = parting
        if self._pause is None:
            self._resources.bell.ring(
                self.claim.id, queue_for(background=self._facts.background, deaths=0)
            )

    def _spread(self, seconds: float) -> timedelta:
        """For how long it is put off: longer each time, and not all for the same time, lest thousands come back at once to be sent away."""
        longer = max(seconds, min(_LONGEST_PAUSE, 1.5 ** min(self.claim.attempt, 20)))
        return timedelta(seconds=longer * random.uniform(1.0, 1.25))  # noqa: S311  (nobody has to guess it)


_UNSPOKEN = frozenset(("mcp_list_tools", "compaction"))
"""Items that are no word of the model's: a response that failed with nothing else has said nothing (design §4.9)."""

_CANCELLED = Conclusion(Status.CANCELLED, reason="cancelled")

_OF_VERDICT: dict[Verdict, RunError] = {
    Verdict.CANCELLED: Cancelled(),
    Verdict.GIVEN_UP: LimitReached(
        "The response was ended by the server's operator.", reason="failed_by_operator", status=502
    ),
    Verdict.UNSTARTED: LimitReached(
        "The response waited in the queue for longer than it may.", reason="queue_wait"
    ),
    Verdict.LATE: LimitReached(
        "The response did not finish within the time it is given.", reason="deadline"
    ),
    Verdict.POISON: LimitReached(
        "The response was given up: the processes that ran it died three times.",
        reason="too_many_deaths",
        status=502,
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
        conversation_id=conversation_id(row["conversation_id"])
        if row["conversation_id"] is not None
        else None,
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
            failure = {
                "status": error.status,
                "code": error.envelope_code,
                "param": error.param,
                "retry_after": error.retry_after,
            }
            return _failed(error.message, code=error.code, reason=error.reason, failure=failure)
        case _:
            raise error


def _broken(message: str) -> Conclusion:
    """A bug of ours ended it."""
    return _failed(message, reason="internal_error", failure={"status": 500})


def _failed(
    message: str, *, code: str = "server_error", reason: str, failure: dict[str, Any] | None = None
) -> Conclusion:
    return Conclusion(
        Status.FAILED, error={"code": code, "message": message}, reason=reason, failure=failure
    )


_OF_STOP = {Stop.CANCEL: _CANCELLED, Stop.FAIL: _of_error(_OF_VERDICT[Verdict.GIVEN_UP])}
"""How a run ends that was stopped; one that is not named here is given back, or is not ours to end."""
