"""A server error (5xx) that an upstream gives to one request again and again, while it answers
others of the same model: the request is its cause, whatever the status says.

The count is kept with the attempt (`attempts.failures`), so it outlives the process. What shows
that there is no outage are answers of the model to others that this process has seen between two
tries: after many of them few tries are enough. In an outage, or where nobody else uses the model, a
response waits.
"""

import time
from dataclasses import fields, replace
from typing import Any

from models.errors import FailedCall, LimitReached, UpstreamFailed
from models.upstream_errors.words import comparable
from worker.run.attempt import Attempt
from worker.upstream.upstreams import Candidate

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
    return UpstreamFailed(
        f"{words}. It has answered this request so {tries} times, and other requests of the model "
        "in between.",
        code="invalid_prompt",
        reason=REPEATED_FAILURE,
        status=400,
        envelope_code="invalid_prompt",
    )
