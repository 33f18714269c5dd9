"""The next upstream of a model, if one does not answer."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from models.errors import FailedCall, LimitReached, UpstreamBusy, UpstreamFailed
from worker.metrics import UPSTREAM_FAILOVERS, UPSTREAM_TURNS
from worker.run.attempt import Attempt
from worker.run.repeated_failures import RepeatedFailures
from worker.upstream.failures import may_succeed_elsewhere
from worker.upstream.stream_errors import NO_SUCH_MODEL, no_such_model
from worker.upstream.upstreams import Candidate, FailedTry, failure_of_all

logger = structlog.get_logger()

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
            attempt.failed_calls.append(failed_call)
            if failure.reason == NO_SUCH_MODEL:
                # With the name that the client knows, not the upstream's.
                raise no_such_model(attempt.facts.model) from error
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
    """Keeps the failure for `explain`."""
    attempt.failed_calls.append(FailedCall(candidate.name, failure.reason, failure.message))
