"""What an operator may request of a response, and why a request has no effect. Pure."""

from enum import StrEnum

from models.db.queries import operations
from models.db.queries.operations import ResponseState
from models.db.statement import Query
from models.lifecycle import TERMINAL, Status


class Action(StrEnum):
    """A request that is recorded in a response's row; its owner, or a sweep, acts on it."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    FAIL = "fail"


RECORD_REQUEST: dict[Action, Query[operations.RecordedRequest]] = {
    Action.CANCEL: operations.REQUEST_CANCEL,
    Action.REQUEUE: operations.REQUEST_REQUEUE,
    Action.FAIL: operations.REQUEST_FAIL,
}
"""The statement that records each request. No row: it is impossible."""


def why_refused(row: ResponseState | None) -> str:
    """Why a request could not be recorded. `row`: the response after the try; None: it is gone."""
    if row is None:
        return "it was deleted"
    if row.status in TERMINAL:
        return f"it has already ended as {row.status}"
    if row.cancel_requested_at is not None:
        return "a cancel is recorded; it cannot end in another way"
    return "an operator has already requested that it fails"


def other_end(action: str, row: ResponseState | None) -> str | None:
    """Why a request that was recorded had no effect; None if it had one, or still may have."""
    wanted = {Action.CANCEL: Status.CANCELLED, Action.FAIL: Status.FAILED}.get(Action(action))
    if row is None or wanted is None or row.status not in TERMINAL or row.status == wanted:
        return None
    return f"it ended as {row.status} before the request was seen"
