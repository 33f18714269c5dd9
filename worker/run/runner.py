"""Runs one claimed response, from its first event under this claim to its ending or release.

`stop(reason)` stops a run from outside. It only cancels the work; what follows (an ending, a
release, nothing) is decided in one place, `Run.run`.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from models.db.database import DATABASE_UNAVAILABLE, fetch_when_available
from models.db.queries.read import UNDELETED_RESPONSE
from models.errors import Deferred, LeaseLost, RunError, Unavailable
from models.lifecycle import Status
from models.ownership.claims import ReleaseReason
from models.ownership.takeover import Claim, EndReason
from models.ownership.timeline import attempts_on_timeline
from models.redis.answer_cache import CachedAnswer
from models.redis.channels import queue_for
from models.tracing.spans import NO_SPAN
from models.wire.purpose import Purpose
from models.wire.token_counts import COUNTED_BY
from worker.metrics import count_deferral, count_turn_repeat
from worker.run.attempt import Attempt
from worker.run.attempt_writer import AttemptWriter
from worker.run.context import Footprint, RunContext
from worker.run.end_state import (
    EndState,
    StopReason,
    end_state_of_error,
    end_state_of_outcome,
    end_state_of_stop,
    error_of_end_reason,
    internal_error,
)
from worker.run.preparation import NoMemory, prepare_run, write_first_events
from worker.run.purposes import run_compaction, run_count, run_forwarding
from worker.run.resources import Resources
from worker.run.spans import end_attempt_span, start_attempt_span
from worker.run.tool_loop import run_tool_loop
from worker.translation.turn import TurnOutcome

logger = structlog.get_logger()

_WORK: dict[Purpose, Callable[[RunContext], Awaitable[TurnOutcome | None]]] = {
    Purpose.ANSWER: run_tool_loop,
    Purpose.COMPACT: run_compaction,
    Purpose.COUNT: run_count,
    Purpose.FORWARD: run_forwarding,
}

_MAX_RETRY_DELAY = 30.0
"""Seconds: the longest delay of a response that is deferred repeatedly, except that an open circuit
can ask for more."""


class Run:
    """A response under one claim."""

    def __init__(self, claim: Claim, resources: Resources) -> None:
        self.claim = claim
        self.started_at = time.monotonic()
        self.end_state: EndState | None = None
        """Set when the ending is stored."""
        self._release_reason: ReleaseReason | None = None
        """Set when the release is stored."""
        self._deferred: Deferred | None = None
        """Set if the response is deferred."""
        self._resources = resources
        self._attempt = Attempt(claim)
        self._footprint = Footprint(self._attempt)
        self._writer = AttemptWriter(
            self._attempt,
            resources.journal,
            resources.ownership,
            resources.on_ended,
            resources.sealer,
            resources.prices,
        )
        self._context: RunContext | None = None
        self._span = NO_SPAN
        self._is_draining = False
        self._stop_reason: StopReason | None = None
        self._work: asyncio.Task[TurnOutcome | None] | None = None

    @property
    def outcome(self) -> str:
        """How the attempt ended, for the metric: `ended`, a ReleaseReason, or `lost`."""
        if self.end_state is not None:
            return "ended"
        return self._release_reason.value if self._release_reason is not None else "lost"

    @property
    def upstream(self) -> str | None:
        """The upstream of the last turn; None if none was answered."""
        return self._attempt.output.upstream

    @property
    def cost(self) -> int | None:
        """What the response cost, in billionths of the currency; None: not known, or not ended."""
        return self._writer.cost

    @property
    def has_finished_turn(self) -> bool:
        """Whether a checkpoint of this attempt has stored a turn: earlier crashes are forgotten."""
        return self._attempt.has_finished_turn

    @property
    def _has_output(self) -> bool:
        """Whether the model has sent something in this attempt."""
        turn = self._attempt.current_turn
        return self.has_finished_turn or (turn is not None and bool(turn.output))

    @property
    def _last_failure(self) -> str | None:
        """The message of the upstream's failure for which the attempt before was deferred."""
        failures = self.claim.row.last_failures
        return failures[-1]["message"] if failures else None

    @property
    def is_awaited(self) -> bool:
        """Whether another response may have waited for the ending, which is stored."""
        return self._writer.is_awaited

    @property
    def flushed_number(self) -> int:
        """The last event that a confirmed transaction has stored in the event log."""
        return self._writer.log.flushed_number

    @property
    def has_unrepeatable_call(self) -> bool:
        """Whether a tool call runs now that must not run twice."""
        return self._attempt.unrepeatable_calls > 0

    @property
    def is_background(self) -> bool:
        """Whether no client waits for it."""
        return self._attempt.facts.background

    @property
    def is_draining(self) -> bool:
        """Whether it is handed over before its next step."""
        return self._is_draining

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped; what it has done may still be being stored."""
        return self._stop_reason is not None

    @property
    def is_prepared(self) -> bool:
        """Whether its history is read, so that `memory` contains it."""
        return self._context is not None

    @property
    def memory(self) -> int:
        """Bytes of memory that it takes, approximately. May take some milliseconds."""
        return self._footprint.estimate(self._context)

    def drain(self) -> None:
        """Lets the run finish its current step; it is handed over before the next one."""
        self._is_draining = True

    def stop(self, reason: StopReason) -> None:
        """Stops the work. The first reason counts, but a lost lease replaces any other."""
        if self._stop_reason is None or reason is StopReason.LOST:
            self._stop_reason = reason
        if self._work is not None:
            self._work.cancel()

    async def run(self) -> None:
        """Runs to an ending or a release; to neither if the response belongs to another owner."""
        self._writer.open()
        self._span = start_attempt_span(self._resources.tracer, self.claim)
        try:
            await self._resources.quotas.on_claimed(self.claim)
            end_state = await self._execute()
            if end_state is not None:
                await self._end(end_state)
            elif self._stop_reason is not StopReason.LOST:
                await self._release()
        except LeaseLost:
            logger.warning(
                "lease_lost", response=self._attempt.facts.id, attempt=self.claim.attempt
            )
            await self._release_after_error(ReleaseReason.HANDED_OVER)
        except Exception:
            logger.exception("run_not_ended", response=self._attempt.facts.id)
            await self._release_after_error(ReleaseReason.ERROR)
        finally:
            self._writer.close()
            await self._close_tools()
            # They refer to this run: only a garbage collection would free the history.
            self._context = self._work = None
            if self._span is not NO_SPAN:
                end_attempt_span(self._span, self.outcome, self.end_state)

    async def _execute(self) -> EndState | None:
        """Does the work. None: nothing to end, the response is released or belongs to another."""
        try:
            await write_first_events(self._attempt, self._writer, self._resources.pool)
        except Exception:
            logger.exception("resume_failed", response=self._attempt.facts.id)
            return internal_error("The server could not resume this response.")
        self._work = asyncio.create_task(self._run_within_deadline())
        if self._stop_reason is not None:
            self._work.cancel()
        await asyncio.wait({self._work})
        if self._work.cancelled():
            return end_state_of_stop(self._stop_reason)
        error = self._work.exception()
        if self._stop_reason is StopReason.LOST:
            return None
        if error is None:
            outcome = self._work.result()
            return end_state_of_outcome(outcome) if outcome is not None else None
        if isinstance(error, Deferred):
            self._deferred = error
            return None
        if isinstance(error, NoMemory):
            return None
        if isinstance(error, RunError):
            return end_state_of_error(error)
        logger.error("run_failed", response=self._attempt.facts.id, exc_info=error)
        return internal_error("The server had an error while running this response.")

    async def _run_within_deadline(self) -> TurnOutcome | None:
        """Does the work within the response's wall clock limit; None: the process stops."""
        if self.claim.end_reason is not None:
            previous = self._attempt.facts.previous_response_id
            raise error_of_end_reason(self.claim.end_reason, self._last_failure, previous)
        wall_clock = asyncio.timeout(max(0.0, self.claim.row.seconds_left))
        try:
            async with wall_clock:
                self._context = await prepare_run(
                    self._attempt,
                    self._writer,
                    self._resources,
                    lambda: self._is_draining,
                    self._span,
                )
                if self.claim.row.input is None:
                    self._resources.memory.count_history(self._footprint.measure(self._context))
                return await _WORK[self._context.purpose](self._context)
        except TimeoutError as error:
            if not wall_clock.expired():
                raise
            failure = None if self._has_output else self._last_failure
            raise error_of_end_reason(EndReason.DEADLINE, failure) from error
        finally:
            # It refers to the task, whose exception refers to this frame: all of it would be left
            # to the garbage collector.
            del wall_clock

    async def _end(self, end_state: EndState) -> None:
        limits = await self._resources.quotas.limits_of(self.claim)
        self.end_state = await self._writer.end(end_state)
        if self._writer.successor is not None:
            queue = queue_for(background=self._attempt.facts.background, crashes=0)
            self._resources.job_queue.enqueue(self._writer.successor, queue)
        if limits is not None:
            self._resources.quotas.on_ended(self.claim, limits, self._tokens(self.end_state))
        key = None
        try:
            key = await self._cache_answer(self.end_state)
        finally:
            self._writer.publish_end()
        if self._attempt.failed_calls:
            await self._resources.ownership.record_failures(self.claim, self._attempt.failed_calls)
        if key is not None:
            await self._uncache_deleted_answer(key)

    def _tokens(self, end_state: EndState) -> int | None:
        """What the response has used; None if it was answered and the upstream did not report it.
        A count of tokens uses none."""
        usage = self._attempt.final_output().usage
        if usage is None:
            return None if end_state.status is Status.COMPLETED else 0
        return 0 if COUNTED_BY in usage else usage["total_tokens"]

    async def _cache_answer(self, end_state: EndState) -> bytes | None:
        """Stores the answer in the cache if the request asked for that; returns its key there.

        Before the ending is published: a client that then repeats the request gets the answer.
        """
        row = self.claim.row
        key, ttl = row.cache_key, row.cache_ttl
        is_whole = end_state.status is Status.COMPLETED and end_state.reason is None
        if not is_whole or key is None or not ttl:
            return None
        if self._attempt.unstored_origins:
            return None  # what the upstream wants back with a call is not in the items
        final = self._attempt.final_output()
        try:
            # Those who get it have it under other ids, and for longer than this response is kept.
            items = await self._resources.images.filled(row.project_id, final.items)
        except (Unavailable, *DATABASE_UNAVAILABLE):
            return None
        answer = CachedAnswer(items, final.usage, final.service_tier)
        policy = await self._resources.policies.policy(row.project_id)
        share = policy.quotas.cache_bytes
        await self._resources.cache.store(row.project_id, key, ttl, answer, share)
        return key

    async def _uncache_deleted_answer(self, key: bytes) -> None:
        """Deletes the answer from the cache if the response was deleted before it was stored there.

        A delete first hides the row, then deletes the answer. So either it deletes what was stored,
        or the row is hidden when it is read here.
        """
        values = {"id": self.claim.id}
        if not await fetch_when_available(self._resources.pool, UNDELETED_RESPONSE, values):
            await self._resources.cache.delete(self.claim.row.project_id, key)

    async def _release(self) -> None:
        """Gives the response up, with its log stored. The next attempt closes the open items."""
        if self._deferred is not None and self._stop_reason is not StopReason.REQUEUE:
            await self._defer(self._deferred)
            return
        reason = ReleaseReason.HANDED_OVER
        if self._stop_reason is StopReason.REQUEUE:
            reason = ReleaseReason.REQUEUED
        elif self._stop_reason is StopReason.MEMORY:
            reason = ReleaseReason.ERROR
        await self._writer.release(reason)
        self._release_reason = reason
        crashes = 0 if self.has_finished_turn else self.claim.row.crashes
        crashes += reason is ReleaseReason.ERROR
        queue = queue_for(background=self._attempt.facts.background, crashes=crashes)
        self._resources.job_queue.enqueue(self.claim.id, queue)

    async def _defer(self, deferred: Deferred) -> None:
        """Gives the response up until a later time: a sweep claims it then."""
        delay = self._jittered_delay(deferred)
        waits_for = deferred.failures[-1]
        line = logger.bind(
            response=self._attempt.facts.id,
            attempt=self.claim.attempt,
            upstream=waits_for.upstream,
            reason=waits_for.reason,
            seconds=round(delay.total_seconds(), 1),
        )
        if deferred.repeat:
            reason, count = ReleaseReason.REPEATED, count_turn_repeat
            line.warning("turn_broken_off", repeat=deferred.repeat)
            await self._writer.close_turn()
        else:
            reason, count = ReleaseReason.DEFERRED, count_deferral
            line.info("response_deferred")
        await self._writer.release(reason, delay, deferred.failures)
        count(waits_for.upstream, waits_for.reason)
        self._release_reason = reason

    async def _close_tools(self) -> None:
        if self._context is None:
            return
        try:
            self._context.attachments.close()
            await self._context.toolbox.close()
        except Exception:
            # The response has ended or was released: nothing depends on these sessions.
            logger.exception("tools_not_closed", response=self._attempt.facts.id)

    async def _release_after_error(self, reason: ReleaseReason) -> None:
        """Gives the response up after an error of this server, with the whole rest of its log.

        Readers have received these events. Were they dropped here, the next attempt would use their
        numbers again (I4). If they cannot be stored, the process exits, and the next owner recovers
        them from the journal. Does nothing if the response has ended or has another owner.
        """
        if self.end_state is not None or self._stop_reason is StopReason.LOST:
            return
        try:
            await self._writer.release(reason)
        except LeaseLost:
            return
        except Exception:
            logger.critical("log_not_stored", response=self._attempt.facts.id, exc_info=True)
            self._resources.exit_process()
        self._release_reason = reason

    def _jittered_delay(self, deferred: Deferred) -> timedelta:
        """How long the response is deferred: longer with each attempt, unless it returns soon;
        before a turn is repeated, longer with each repeat.

        The random part spreads the deferred responses, so that they do not return all at once.
        """
        attempts = 1 if deferred.returns_soon else attempts_on_timeline(self.claim.attempt)
        attempts = deferred.repeat or attempts
        backoff = min(_MAX_RETRY_DELAY, 1.5 ** min(attempts, 20))
        jitter = random.uniform(1.0, 1.25)  # noqa: S311 - need not be unpredictable
        return timedelta(seconds=max(deferred.seconds, backoff) * jitter)
