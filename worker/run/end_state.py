"""How a response ends: the status and error that follow from an outcome, an error or a stop.

Pure: no I/O and no clock.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from models.errors import Cancelled, LimitReached, RunError, StatementRefused, UpstreamFailed
from models.lifecycle import Status
from models.ownership.takeover import EndReason
from worker.translation.turn import TurnOutcome


class StopReason(StrEnum):
    """Why a run is stopped from outside."""

    CANCEL = "cancel"
    FAIL = "fail"
    HAND_OVER = "hand_over"
    REQUEUE = "requeue"
    MEMORY = "memory"
    """The worker has too little memory; counts as a crash, so the number of such attempts is
    bounded."""
    TOO_LARGE = "too_large"
    """The response needs more memory than a worker has, although nothing else ran."""
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class EndState:
    """The terminal state of a response."""

    status: Status
    error: dict[str, Any] | None = None
    """`error` of the Response object: code and message."""
    reason: str | None = None
    """The column `responses.reason`: why it ended, for operators and metrics."""
    failure: dict[str, Any] | None = None
    """HTTP status, code, param and retry_after for a foreground client that got no output."""
    upstream: str | None = None
    """The upstream because of which it failed."""


CANCELLED = EndState(Status.CANCELLED, reason="cancelled")


def end_state_of_outcome(outcome: TurnOutcome) -> EndState:
    """The end state after the last turn. Raises what `end_state_of_error` raises."""
    if outcome.failure is not None:
        return end_state_of_error(outcome.failure)
    return EndState(Status(outcome.status), reason=outcome.incomplete_reason or outcome.unmet)


def end_state_of_error(error: RunError) -> EndState:
    """The end state after an error of the run. Raises the error itself if it ends no response."""
    match error:
        case Cancelled():
            return CANCELLED
        case LimitReached():
            failed = _failed(error.message, reason=error.reason, failure={"status": error.status})
            return replace(failed, upstream=error.upstream)
        case UpstreamFailed():
            failure = {
                "status": error.status,
                "code": error.envelope_code,
                "param": error.param,
                "retry_after": error.retry_after,
            }
            failed = _failed(error.message, code=error.code, reason=error.reason, failure=failure)
            return replace(failed, upstream=error.upstream)
        case StatementRefused():
            message = "The server could not read or store this response."
            return _failed(message, reason="statement_refused", failure={"status": 500})
        case _:
            raise error


def end_state_of_stop(stop_reason: StopReason | None) -> EndState | None:
    """The end state of a stopped run. None: it ends no response, the response is released."""
    match stop_reason:
        case StopReason.CANCEL:
            return CANCELLED
        case StopReason.FAIL:
            return end_state_of_error(error_of_end_reason(EndReason.FAILED_BY_OPERATOR))
        case StopReason.TOO_LARGE:
            message = "The response needs more memory than this server gives to one response."
            return end_state_of_error(LimitReached(message, reason="memory_limit", status=413))
        case _:
            return None


_PREVIOUS = {
    EndReason.PREVIOUS_FAILED: "has failed",
    EndReason.PREVIOUS_CANCELLED: "was cancelled",
    EndReason.PREVIOUS_DELETED: "was deleted",
    EndReason.PREVIOUS_CALLS: "has ended with tool calls whose outputs are missing",
}
"""What became of a previous response whose end was awaited in vain."""


def error_of_end_reason(
    end_reason: EndReason, last_failure: str | None = None, previous: str | None = None
) -> RunError:
    """The error that ends a response which was claimed only to be ended, or has reached its
    deadline.

    `last_failure`: the message of the upstream's failure for which it was deferred. `previous`: the
    id of the response that it continues.
    """
    match end_reason:
        case EndReason.CANCELLED:
            return Cancelled()
        case EndReason.FAILED_BY_OPERATOR:
            message = "The response was ended by the server's operator."
            return LimitReached(message, reason="failed_by_operator", status=502)
        case EndReason.QUEUE_WAIT:
            message = "The response waited in the queue longer than the limit."
            return LimitReached(message, reason="queue_wait")
        case EndReason.DEADLINE:
            message = "The response did not finish within its time limit."
            if last_failure is not None:
                message += f" The last failure of its upstream: {last_failure}"
            return LimitReached(message, reason="deadline")
        case EndReason.TOO_MANY_CRASHES:
            message = "The response failed: the processes that ran it crashed again and again."
            return LimitReached(message, reason="too_many_deaths", status=502)
        case _:
            name = "" if previous is None else f" '{previous}'"
            message = f"The response did not run: its previous response{name} "
            return LimitReached(message + f"{_PREVIOUS[end_reason]}.", reason=end_reason.value)


def internal_error(message: str) -> EndState:
    """The end state after a bug of this server."""
    return _failed(message, reason="internal_error", failure={"status": 500})


def _failed(
    message: str, *, code: str = "server_error", reason: str, failure: dict[str, Any]
) -> EndState:
    error = {"code": code, "message": message}
    return EndState(Status.FAILED, error=error, reason=reason, failure=failure)
