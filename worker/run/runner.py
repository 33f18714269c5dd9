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

from models.db.database import fetch_when_available
from models.db.queries import statements
from models.errors import (
    Cancelled,
    Deferred,
    LeaseLost,
    LimitReached,
    RunError,
    ToolFailed,
    UpstreamFailed,
)
from models.ids import conversation_id, response_id
from models.lifecycle import Status
from models.ownership.claims import Claim, Ending, EndReason, ReleaseReason
from models.redis.answer_cache import CachedAnswer
from models.redis.channels import queue_for
from models.secrets import Sealed, Unreadable
from models.wire.counting import COUNT_INPUT_TOKENS
from models.wire.events import (
    TERMINAL_EVENTS,
    Event,
    Item,
    ResponseInProgress,
    decode_frame,
    split_frames,
)
from models.wire.includes import filter_events, filter_items
from models.wire.pairing import unanswered_calls
from models.wire.response import ResponseFacts, response_object
from models.wire.snapshot import closing_events, find_unfinished, fold_latest_attempt
from models.wire.tools import with_added_search
from worker.log.event_log import EventLog
from worker.run.attachments import with_files
from worker.run.compaction import Compactions, ends_with_trigger, expand_input
from worker.run.output import Output, history_item
from worker.run.resources import Resources
from worker.run.tool_loop import ToolLoop
from worker.tools.provider import ToolContext
from worker.tools.toolbox import Toolbox
from worker.translation.turn import Outcome, Turn
from worker.translation.usage import add_usage

logger = structlog.get_logger()

_MAX_RETRY_DELAY = 30.0
"""Seconds: how long a response that is put off again and again waits for its next try, unless a circuit is open for longer."""


class StopReason(StrEnum):
    """Why a run is stopped from outside."""

    CANCEL = "cancel"
    FAIL = "fail"
    HAND_OVER = "hand_over"
    REQUEUE = "requeue"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class EndState:
    """How a response ends: status, and what the row and the client are told."""

    status: Status
    error: dict[str, Any] | None = None
    reason: str | None = None
    failure: dict[str, Any] | None = None


class Run:
    """A response under one claim."""

    def __init__(self, claim: Claim, resources: Resources) -> None:
        self.claim = claim
        self.started_at = time.monotonic()
        self.end_state: EndState | None = None
        """Set once the ending is stored."""
        self._release_reason: ReleaseReason | None = None
        self._retry_delay: timedelta | None = None
        """It is put off for this long."""
        self._resources = resources
        self._log = EventLog.of(claim)
        self._facts = _facts(claim)
        self._output = Output(claim, [])
        self._tool_loop: ToolLoop | None = None
        self._toolbox: Toolbox | None = None
        self._answer_to_cache: CachedAnswer | None = None
        """What was said in the end, once that is stored."""
        self._is_draining = False
        self._stop_reason: StopReason | None = None
        self._work: asyncio.Task[Outcome | None] | None = None

    @property
    def _current_turn(self) -> Turn[Any] | None:
        """The turn that is not stored yet."""
        return self._tool_loop.current_turn if self._tool_loop is not None else None

    def drain(self) -> None:
        """The process is to stop: the run is handed over before its next step, and meanwhile what is under way may end."""
        self._is_draining = True

    @property
    def outcome(self) -> str:
        """What became of this attempt: `ended`, a word of `Parting`, or `lost`."""
        if self.end_state is not None:
            return "ended"
        return self._release_reason.value if self._release_reason is not None else "lost"

    def stop(self, reason: StopReason) -> None:
        """Stops the work; the first reason counts, except that a lost lease beats all."""
        if self._stop_reason is None or reason is StopReason.LOST:
            self._stop_reason = reason
        if self._work is not None:
            self._work.cancel()

    async def run(self) -> None:
        """Runs to an ending, a release, or silence. Raises nothing but what is a bug."""
        self._resources.journal.open(self._log)
        try:
            conclusion = await self._execute()
            if conclusion is not None:
                await self._end(conclusion)
            elif self._stop_reason is not StopReason.LOST:
                await self._release()
        except LeaseLost:
            logger.warning("run_lost", response=self._facts.id, attempt=self.claim.attempt)
        finally:
            self._resources.journal.close(self._log)
            if self._toolbox is not None:
                await self._toolbox.close()

    async def _execute(self) -> EndState | None:
        """The work's outcome; None when there is nothing to end: handed over or lost."""
        try:
            await self._resume()
        except Exception:
            logger.exception("resume_broke", response=self._facts.id)
            return _internal_error("The server could not take this response up again.")
        self._work = asyncio.create_task(self._run_within_deadline())
        if self._stop_reason is not None:
            self._work.cancel()
        await asyncio.wait({self._work})
        if self._work.cancelled():
            return (
                _END_STATE_BY_STOP.get(self._stop_reason) if self._stop_reason is not None else None
            )
        error = self._work.exception()
        if self._stop_reason is StopReason.LOST:
            return None
        if error is None:
            outcome = self._work.result()
            return _end_state_of_outcome(outcome) if outcome is not None else None
        if isinstance(error, Deferred):
            self._retry_delay = self._jittered_delay(error.seconds)
            return None
        if isinstance(error, RunError):
            return _end_state_of_error(error)
        logger.error("run_broke", response=self._facts.id, exc_info=error)
        return _internal_error("The server had an error while running this response.")

    # --- the work ---

    async def _run_within_deadline(self) -> Outcome | None:
        """All turns, within the response's wall clock. None: to be handed over."""
        if self.claim.end_reason is not None:
            raise _ERROR_BY_END_REASON[self.claim.end_reason]
        wall_clock = asyncio.timeout(max(0.0, self.claim.row["seconds_left"]))
        try:
            async with wall_clock:
                # Shielded: a cancelled query keeps psycopg busy for up to five seconds, and a cancel means now.
                said, own = await asyncio.shield(asyncio.ensure_future(self._load_history()))
                compactions = self._new_compactions(said)
                history, own, skipped = expand_input(said, own, compactions)
                if (
                    not compactions.is_only_compaction
                    and COUNT_INPUT_TOKENS not in self._facts.parameters
                ):
                    history = await with_files(
                        history,
                        own,
                        self._resources.settings.egress,
                        history_parameter=self._history_parameter,
                        skipped=skipped,
                    )
                self._toolbox = await asyncio.shield(
                    asyncio.ensure_future(self._open_toolbox(history))
                )
                self._tool_loop = ToolLoop(
                    self.claim,
                    self._facts,
                    self._log,
                    self._output,
                    self._resources,
                    history=history,
                    toolbox=self._toolbox,
                    compactions=compactions,
                    is_draining=lambda: self._is_draining,
                )
                return await self._tool_loop.run()
        except TimeoutError as error:
            if not wall_clock.expired():
                raise
            raise _ERROR_BY_END_REASON[EndReason.DEADLINE] from error

    async def _resume(self) -> None:
        """Opens this attempt's part of the stream: closes what an earlier one left open, or says that the response is in progress."""
        opening = 1 if self.claim.row["background"] else 0
        if self.claim.log_end <= opening:
            self._write([ResponseInProgress(response_object(self._facts, []))])
            return
        self._output = Output(
            self.claim,
            await fetch_when_available(
                self._resources.pool, statements.CHECKPOINTED_OUTPUT, {"id": self.claim.id}
            ),
        )
        told = [
            (attempt, decode_frame(frame))
            for attempt, block in self.claim.frames
            for frame in split_frames(block)
        ]
        left = find_unfinished([event for _, event in told])
        self._output.next_index = max(self._output.next_index, left.highest_index + 1)
        self._output.unstored_items = [
            {**item, "status": "incomplete"} if item.get("status") == "in_progress" else item
            for item in fold_latest_attempt(told)
        ]
        # A compaction that broke off holds nothing.
        self._output.unstored_items = [
            item
            for item in self._output.unstored_items
            if (item["type"], item.get("status")) != ("compaction", "incomplete")
        ]
        self._output.apply_done_events([event for _, event in told])
        self._write(closing_events(left))

    async def _open_toolbox(self, history: list[Item]) -> Toolbox:
        tools = with_added_search(self._facts.parameters.get("tools", []), history)
        settings = self._resources.settings
        credentials = (
            await self._credentials() if any(tool["type"] == "mcp" for tool in tools) else {}
        )
        include = self._facts.parameters.get("include", ())
        return await Toolbox.of(
            tools, ToolContext(settings, self._resources.egress, credentials, include)
        )

    async def _credentials(self) -> dict[str, Any]:
        """What the client entrusted us with: server_label -> `authorization`, `headers`."""
        kept = await fetch_when_available(
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
    def _history_parameter(self) -> str:
        """The parameter that brought what was said before."""
        return "previous_response_id" if self._facts.conversation_id is None else "conversation"

    async def _load_history(self) -> tuple[list[Item], int]:
        """All that was said so far, and how many items at its end are this response's own input."""
        rows = await fetch_when_available(
            self._resources.pool, statements.HISTORY, {"id": self.claim.id}
        )
        if any(row["broken"] for row in rows):
            raise UpstreamFailed(
                "A response or conversation that this one continues has been deleted.", code="invalid_prompt", reason="history_deleted", status=400,
                param="previous_response_id", envelope_code="previous_response_not_found",
            )  # fmt: skip
        told = [row for row in rows if row["payload"] is not None]
        return [history_item(row["payload"], row["turn"], row["answer"]) for row in told], sum(
            row["depth"] == 0 for row in told
        )

    def _new_compactions(self, history: list[Item]) -> Compactions:
        resources, row = self._resources, self.claim.row
        return Compactions(
            row["project_id"], resources.sealer, resources.settings.compaction, row["parameters"], is_only_compaction=ends_with_trigger(history)
        )  # fmt: skip

    def _write(self, events: list[Event]) -> None:
        self._resources.journal.write(self._log, events)

    # --- the ending ---

    async def _end(self, end_state: EndState) -> None:
        if self._current_turn is not None:
            self._write(
                filter_events(
                    self._current_turn.close_incomplete(), self._facts.parameters.get("include", ())
                )
            )
        self._write(self._output.close_incomplete())
        await self._resources.journal.wait_for_small_tail(self._log)
        async with self._log.lock:
            try:
                await self._end_unless_cancelled(end_state)
            except LeaseLost:
                raise
            except Exception:
                # Whatever it was: without an ending the response would be run again and again.
                logger.exception("ending_broke", response=self._facts.id)
                self._tool_loop, self._output.unstored_items = None, []
                await self._end_unless_cancelled(
                    _internal_error("The response could not be stored.")
                )
        await self._cache_answer()
        self._resources.publisher.publish(self._log.channel, b"")

    async def _cache_answer(self) -> None:
        """Before anybody is told of the ending: who asks the same then is to find the answer."""
        row = self.claim.row
        if (
            self._answer_to_cache is not None
            and self.end_state is not None
            and self.end_state.status is Status.COMPLETED
            and row["cache_ttl"]
        ):
            await self._resources.cache.store(
                row["project_id"], bytes(row["cache_key"]), row["cache_ttl"], self._answer_to_cache
            )

    async def _end_unless_cancelled(self, end_state: EndState) -> None:
        try:
            await self._store_end(end_state)
        except Cancelled:
            await self._store_end(_CANCELLED)

    async def _store_end(self, end_state: EndState) -> None:
        speaking, kept = self._current_turn, self._output
        unstored = (
            speaking.output
            if speaking is not None and (speaking.output or speaking.outcome is not None)
            else kept.unstored_items
        )
        output = [*kept.items, *unstored]
        usage = add_usage(kept.usage, speaking.usage) if speaking is not None else kept.usage
        service_tier = (
            speaking.service_tier if speaking is not None else None
        ) or kept.service_tier
        completed_at = int(time.time())
        facts = self._facts.evolve(
            status=end_state.status.value,
            error=end_state.error,
            incomplete_reason=end_state.reason,
            usage=usage,
            completed_at=completed_at,
            service_tier=service_tier,
        )
        shown = filter_items(output, self._facts.parameters.get("include", ()))
        last = TERMINAL_EVENTS[end_state.status](response_object(facts, shown))
        ending = Ending(
            status=end_state.status,
            tail=self._log.unflushed(last),
            items=unstored,
            position=len(kept.entries),
            changed=[(entry.position, entry.item) for entry in kept.entries if entry.changed],
            usage=usage,
            completed_at=completed_at,
            turns=1 if speaking is not None else 0,
            error=end_state.error,
            reason=end_state.reason,
            failure=end_state.failure
            if all(item["type"] in _NON_MODEL_ITEMS for item in output)
            else None,
            unanswered_calls=unanswered_calls(output),
            service_tier=service_tier,
            upstream=kept.upstream,
        )
        await self._resources.ownership.end(self.claim, ending)
        self.end_state, self._answer_to_cache = end_state, CachedAnswer(output, usage, service_tier)

    async def _release(self) -> None:
        """Hands the response over: its log is stored first, then somebody else may claim it. The next attempt closes the open item."""
        await self._resources.journal.wait_until_journaled(self._log)
        async with self._log.lock:
            parting = (
                ReleaseReason.REQUEUED
                if self._stop_reason is StopReason.REQUEUE
                else ReleaseReason.HANDED_OVER
                if self._retry_delay is None
                else ReleaseReason.DEFERRED
            )
            await self._resources.ownership.release(
                self.claim, self._log.unflushed(), parting, self._retry_delay
            )
            self._release_reason = parting
        if self._retry_delay is None:
            self._resources.job_queue.enqueue(
                self.claim.id, queue_for(background=self._facts.background, deaths=0)
            )

    def _jittered_delay(self, seconds: float) -> timedelta:
        """For how long it is put off: longer each time, and not all for the same time, lest thousands come back at once to be sent away."""
        longer = max(seconds, min(_MAX_RETRY_DELAY, 1.5 ** min(self.claim.attempt, 20)))
        return timedelta(seconds=longer * random.uniform(1.0, 1.25))  # noqa: S311  (nobody has to guess it)


_NON_MODEL_ITEMS = frozenset(("mcp_list_tools", "compaction"))
"""Items that are no word of the model's: a response that failed with nothing else has said nothing (design §4.9)."""

_CANCELLED = EndState(Status.CANCELLED, reason="cancelled")

_ERROR_BY_END_REASON: dict[EndReason, RunError] = {
    EndReason.CANCELLED: Cancelled(),
    EndReason.FAILED_BY_OPERATOR: LimitReached(
        "The response was ended by the server's operator.", reason="failed_by_operator", status=502
    ),
    EndReason.QUEUE_WAIT: LimitReached(
        "The response waited in the queue for longer than it may.", reason="queue_wait"
    ),
    EndReason.DEADLINE: LimitReached(
        "The response did not finish within the time it is given.", reason="deadline"
    ),
    EndReason.TOO_MANY_CRASHES: LimitReached(
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


def _end_state_of_outcome(outcome: Outcome) -> EndState:
    if outcome.failure is not None:
        return _end_state_of_error(outcome.failure)
    return EndState(Status(outcome.status), reason=outcome.incomplete_reason)


def _end_state_of_error(error: RunError) -> EndState:
    """The one place where what ended a run becomes an ending."""
    match error:
        case Cancelled():
            return _CANCELLED
        case LimitReached():
            return _failed_state(
                error.message, reason=error.reason, failure={"status": error.status}
            )
        case UpstreamFailed():
            failure = {
                "status": error.status,
                "code": error.envelope_code,
                "param": error.param,
                "retry_after": error.retry_after,
            }
            return _failed_state(
                error.message, code=error.code, reason=error.reason, failure=failure
            )
        case _:
            raise error


def _internal_error(message: str) -> EndState:
    """A bug of ours ended it."""
    return _failed_state(message, reason="internal_error", failure={"status": 500})


def _failed_state(
    message: str, *, code: str = "server_error", reason: str, failure: dict[str, Any] | None = None
) -> EndState:
    return EndState(
        Status.FAILED, error={"code": code, "message": message}, reason=reason, failure=failure
    )


_END_STATE_BY_STOP = {
    StopReason.CANCEL: _CANCELLED,
    StopReason.FAIL: _end_state_of_error(_ERROR_BY_END_REASON[EndReason.FAILED_BY_OPERATOR]),
}
"""How a run ends that was stopped; one that is not named here is given back, or is not ours to end."""
