"""Waiting for the end of a foreground response, which the client gets as the reply to its POST."""

from typing import Any

from fastapi import Request

from models.db.queries.read import ResponseRow
from models.errors import ApiError, RunFailed, ServerStopping, Unavailable
from models.lifecycle import Status
from web.http.connection import cancel_on_disconnect
from web.responses.create import AcceptedResponse
from web.state import AppState

ERROR_TYPES = {
    401: "authentication_error",
    424: "external_connector_error",
    429: "rate_limit_error",
}
"""The error `type` for a status of an upstream or a tool's server, where it is a special one."""


async def wait_for_response(
    state: AppState, accepted: AcceptedResponse, request: Request
) -> ResponseRow:
    """The row of the response after its end.

    Cancels the response if the client disconnects before that, unless a retry has joined it.
    Raises RunFailed if it failed before any output, ServerStopping if this process stops or the
    client disconnects before the end.
    """
    try:
        row = await cancel_on_disconnect(
            state.event_reader.wait_until_ended(accepted.id), request.receive, state.grace_expired
        )
    except ServerStopping:
        state.cancel_abandoned(accepted)
        raise
    if row is None:
        raise ApiError("The server could not finish this response.")
    if row.status == Status.FAILED and row.failure is not None:
        raise _failure(row.failure, row.error)
    return row


async def wait_for_completion(
    state: AppState, accepted: AcceptedResponse, request: Request, error_message: str
) -> ResponseRow:
    """As `wait_for_response`; raises ApiError(error_message) unless the response completed, and
    Unavailable if it was cancelled: this process was taken for dead, or an operator did it."""
    try:
        row = await wait_for_response(state, accepted, request)
    except ApiError as error:
        state.record_answer(accepted, answered_request(request, error))
        raise
    state.record_answer(accepted, request)
    if row.status == Status.CANCELLED:
        raise Unavailable(f"{error_message} It was cancelled. Please retry.")
    if row.status != Status.COMPLETED:
        raise ApiError(error_message)
    return row


def answered_request(request: Request, error: ApiError) -> Request | None:
    """The request, if it is answered with the error: a response whose client has left is
    cancelled, and a retry gets another one."""
    return None if isinstance(error, ServerStopping) else request


def _failure(failure: dict[str, Any], error: dict[str, Any] | None) -> RunFailed:
    status = failure["status"]
    return RunFailed(
        status,
        error["message"] if error is not None else "",
        kind=ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
        code=failure.get("code"),
        param=failure.get("param"),
        retry_after=failure.get("retry_after"),
    )
