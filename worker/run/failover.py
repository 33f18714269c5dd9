"""The next upstream of a model, if one does not answer; and the end of a response that gets the
same failure again and again."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import structlog

from models.errors import FailedCall, LimitReached, UpstreamBusy, UpstreamFailed
from models.upstream_errors.words import comparable
from worker.metrics import UPSTREAM_FAILOVERS, UPSTREAM_TURNS
from worker.run.attempt import Attempt
from worker.upstream.error_rules import NO_SUCH_MODEL, no_such_model
from worker.upstream.failures import may_succeed_elsewhere
from worker.upstream.upstreams import Candidate, FailedTry, failure_of_all

logger = structlog.get_logger()

FEW_TRIES, MANY_TRIES = 5, 10
"""Tries with the same answer after which a response fails: if others were answered between all of
these tries, or between some. Ten take two minutes, five a quarter of a minute."""
REPEATED_FAILURE = "repeated_failure"
_RECORDED = tuple(field.name for field in fields(FailedCall))


class RepeatedFailures:
    """The failures of one call of a response at one upstream after the other."""

    def __init__(self, attempt: Attempt) -> None:
        row = attempt.claim.row
        # After a finished turn the upstreams get another request.
        is_same_request = attempt.output.turns == row.turns
        calls = row.last_failures if is_same_request and row.last_failures is not None else []
        self._earlier = {
            call["upstream"]: _from_row(call) for call in calls if call.get("at", 0) > 0
        }

    def marked(self, candidate: Candidate) -> Candidate:
        """The candidate with the time of the last try that failed there, for its circuits."""
        earlier = self._earlier.get(candidate.name)
        return candidate if earlier is None else replace(candidate, failed_at=earlier.at)

    def judge(
        self, candidate: Candidate, failure: UpstreamFailed | LimitReached
    ) -> tuple[UpstreamFailed | LimitReached, FailedCall]:
        """The failure, or the one that ends the response in its place; and the record of it."""
        call = FailedCall(candidate.name, failure.reason, failure.message)
        if not isinstance(failure, UpstreamFailed) or not failure.may_be_request:
            return failure, call
        call = replace(call, at=time.time())
        earlier = self._earlier.get(candidate.name)
        if earlier is not None and _kind(earlier) == _kind(call):
            between = earlier.answered_between + (candidate.answered_at > earlier.at)
            call = replace(call, tries=earlier.tries + 1, answered_between=between)
        is_final = call.answered_between >= FEW_TRIES - 1 or (
            call.tries >= MANY_TRIES and call.answered_between > 0
        )
        return (_final(failure, call.tries) if is_final else failure), call


def _from_row(call: dict[str, Any]) -> FailedCall:
    """The record in a row, which a worker of another release may have written."""
    return FailedCall(**{name: call[name] for name in _RECORDED if name in call})


def _kind(call: FailedCall) -> tuple[str, str]:
    return call.reason, comparable(call.message)


def _final(failure: UpstreamFailed, tries: int) -> UpstreamFailed:
    words = failure.message.rstrip(".")
    return UpstreamFailed.of_request(
        f"{words}. It has answered this request so {tries} times, and other requests of the model "
        "in between.",
        REPEATED_FAILURE,
        envelope_code="invalid_prompt",
    )


AnswerT = TypeVar("AnswerT")


async def first_answer(
    attempt: Attempt,
    candidates: Sequence[Candidate],
    call: Callable[[Candidate], Awaitable[AnswerT]],
    has_begun: Callable[[], bool] = lambda: False,
) -> AnswerT:
    """What `call` returns for the first candidate for which it does not fail. Failed calls are
    noted in the attempt. `has_begun`: whether clients have seen something of the last call, so that
    no other one may follow.

    Raises RunError if every upstream failed, or one of them after it had begun.
    """
    failed: list[FailedTry] = []
    repeated = RepeatedFailures(attempt)
    for candidate in candidates:
        try:
            return await call(repeated.marked(candidate))
        except (UpstreamFailed, LimitReached) as error:
            outcome = "busy" if isinstance(error, UpstreamBusy) else "failed"
            UPSTREAM_TURNS.labels(candidate.name, outcome).inc()
            failure, failed_call = repeated.judge(candidate, error)
            error.upstream = failure.upstream = candidate.name
            attempt.failed_calls.append(failed_call)
            if failure.reason == NO_SUCH_MODEL:
                # With the name that the client knows, not the upstream's.
                missing = no_such_model(attempt.facts.model)
                missing.upstream = candidate.name
                raise missing from error
            if has_begun() or not may_succeed_elsewhere(failure):
                if failure is error:
                    raise
                raise failure from error
            failed.append(FailedTry(candidate, failure, failed_call))
        if candidate is not candidates[-1]:
            UPSTREAM_FAILOVERS.labels(candidate.name).inc()
            logger.info(
                "upstream_skipped",
                response=attempt.facts.id,
                upstream=candidate.name,
                reason=failed[-1].failure.reason,
            )
    raise failure_of_all(failed, can_wait=attempt.facts.background)


def note_failure(
    attempt: Attempt, candidate: Candidate, failure: UpstreamFailed | LimitReached
) -> None:
    """Keeps the failure for `explain`, and the upstream with it."""
    failure.upstream = candidate.name
    attempt.failed_calls.append(FailedCall(candidate.name, failure.reason, failure.message))
