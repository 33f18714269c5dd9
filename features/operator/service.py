"""What an operator does to responses and processes. Each records a request, with its entry in the
audit log, on which the owner or a sweep acts."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from features.audit import act
from features.operator.filter import Filter
from models.db.database import Connection, Pool, execute, find_by_id
from models.db.queries import operations
from models.db.queries.audit import RECORD, RECORD_ABOUT_RESPONSE, Actor, AuditEntry
from models.db.queries.operations import FoundProcess, RecordedRequest, ResponseState
from models.db.statement import Query
from models.ids import response_id
from models.lifecycle import TERMINAL, Status


class Action(StrEnum):
    """A request that is recorded in a response's row; its owner, or a sweep, acts on it."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    FAIL = "fail"


_RECORD: dict[Action, Query[RecordedRequest]] = {
    Action.CANCEL: operations.REQUEST_CANCEL,
    Action.REQUEUE: operations.REQUEST_REQUEUE,
    Action.FAIL: operations.REQUEST_FAIL,
}
"""The statement that records each request. No row: it is impossible."""


@dataclass(frozen=True, slots=True)
class Requested:
    """What has become of a request."""

    refusal: str | None = None
    """why it is impossible; None: it is recorded, or the response is cancelled already"""
    is_recorded: bool = False
    cancelled_worker: UUID | None = None
    """the owner of a response to be cancelled: it acts at once on a message to `control`"""


async def request(
    connection: Connection, action: Action, response: UUID, actor: Actor
) -> Requested:
    """Records that a response is to be cancelled, released or failed. The cancel of a cancelled one
    succeeds, as over the API."""
    entry = AuditEntry(actor, f"response.{action}", response_id(response), "requested")
    values = {"id": response, "response": response}
    rows = await act(connection, _RECORD[action], values, entry, RECORD_ABOUT_RESPONSE)
    if rows:
        worker = rows[0].worker if action is Action.CANCEL else None
        return Requested(is_recorded=True, cancelled_worker=worker)
    state = await find_by_id(connection, operations.STATE, response)
    if action is Action.CANCEL and state is not None and state.status == Status.CANCELLED:
        return Requested()
    return Requested(_why_refused(state))


async def record_reveal(on: Pool | Connection, response: UUID, actor: Actor) -> None:
    """Records that input or output of a response is shown to an operator."""
    entry = AuditEntry(actor, "response.reveal", response_id(response))
    await execute(on, RECORD_ABOUT_RESPONSE, {"response": response, **entry.values()})


async def record_search(on: Pool | Connection, wanted: Filter, actor: Actor) -> None:
    """Records that an operator searches inputs and outputs for words."""
    project = wanted.project if wanted.names and wanted.names.project else None
    entry = AuditEntry(actor, "response.search", project=project, details={"text": wanted.text})
    await execute(on, RECORD, entry.values())


async def drain(
    connection: Connection, name: str, processes: Sequence[FoundProcess], actor: Actor
) -> None:
    """Records that processes are to hand over their responses and stop. Each sees it at its next
    heartbeat. `name`: what the operator has called them."""
    names = [f"{each.kind} {each.host}:{each.pid}" for each in processes]
    entry = AuditEntry(actor, "worker.drain", name, "requested", details={"processes": names})
    values = {"ids": [each.id for each in processes]}
    await act(connection, operations.REQUEST_DRAIN, values, entry)


def other_end(action: str, row: ResponseState | None) -> str | None:
    """Why a request that was recorded had no effect; None if it had one, or still may have."""
    wanted = {Action.CANCEL: Status.CANCELLED, Action.FAIL: Status.FAILED}.get(Action(action))
    if row is None or wanted is None or row.status not in TERMINAL or row.status == wanted:
        return None
    return f"it ended as {row.status} before the request was seen"


def _why_refused(row: ResponseState | None) -> str:
    """Why a request could not be recorded. `row`: the response after the try; None: it is gone."""
    if row is None:
        return "it was deleted"
    if row.status in TERMINAL:
        return f"it has already ended as {row.status}"
    if row.cancel_requested_at is not None:
        return "a cancel is recorded; it cannot end in another way"
    if row.waits:
        return "it waits for its previous response"
    return "an operator has already requested that it fails"
