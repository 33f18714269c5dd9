"""What an operator does to responses: a page that asks for confirmation, and the act itself."""

from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from starlette.responses import Response

from features.console.errors import PageError
from features.console.page import Page
from features.console.visit import Visit
from features.operator import service
from features.operator.diagnosis import diagnose
from features.operator.history import live_counts
from features.operator.service import Action
from models.db.database import find_by_id
from models.db.queries import operations
from models.ids import parse_response_id, response_id
from models.redis.channels import control
from models.redis.client import REDIS_ERRORS

_MOST = 100
"""Responses of one action."""
_MEANINGS = {
    Action.CANCEL: "They end as cancelled, as if their clients had cancelled them. Output so far "
    "is kept.",
    Action.REQUEUE: "Their workers release them, and a worker claims them again; deferred ones at "
    "once. The current turn is repeated. A tool call that runs is repeated only if that is safe.",
    Action.FAIL: "They end as failed, reason failed_by_operator. Output so far is kept.",
}


@dataclass(frozen=True, slots=True)
class Affected:
    """A response of an action."""

    id: str
    status: str
    text: str
    """what it does now; or what the action has done"""
    is_done: bool = True


def _action(text: str) -> Action:
    if text not in list(Action):
        raise PageError(400, "No such action", "There are cancel, requeue and fail.")
    return Action(text)


def _ids(texts: list[str]) -> list[UUID]:
    """Raises PageError (400) for none, for too many, and for what is no id."""
    ids = [parse_response_id(text) for text in dict.fromkeys(texts)]
    found = [identifier for identifier in ids if identifier is not None]
    if not found or len(found) < len(ids):
        raise PageError(400, "Nothing selected", "Select responses in the list first.")
    if len(found) > _MOST:
        raise PageError(400, "Too many", f"Select at most {_MOST} responses.")
    return found


async def confirm(visit: Visit) -> Response:
    """Shows exactly which responses are meant, before anything happens."""
    visit.require_operator()
    action = _action(visit.query.get("action", ""))
    live = await live_counts(visit.pool)
    affected = []
    for identifier in _ids(visit.query.getlist("id")):
        row = await find_by_id(visit.pool, operations.STATE, identifier)
        if row is not None:
            text = diagnose(row, live).why
            affected.append(Affected(response_id(identifier), row.status, text))
    if not affected:
        raise PageError(404, "No such response", "All of them were deleted.")
    return visit.page("confirm.html", action=action, meaning=_MEANINGS[action], affected=affected)


async def act(visit: Visit) -> Response:
    """Does it, each with its entry in the audit log."""
    fields = await visit.form(visit.user.token)
    action = _action(fields.get("action", [""])[0])
    results = [
        await _request(visit, action, identifier) for identifier in _ids(fields.get("id", []))
    ]
    return visit.page("acted.html", action=action, results=results)


async def _request(visit: Visit, action: Action, identifier: UUID) -> Affected:
    async with visit.pool.connection() as connection:
        requested = await service.request(connection, action, identifier, visit.actor)
    row = await find_by_id(visit.pool, operations.STATE, identifier)
    public_id, status = response_id(identifier), "deleted" if row is None else row.status
    if requested.refusal is not None:
        return Affected(public_id, status, requested.refusal, is_done=False)
    if (owner := requested.cancelled_worker) is not None:
        # Without Redis nothing is lost: the worker sees the cancel at its next heartbeat.
        with suppress(*REDIS_ERRORS):
            await visit.state.redis.publish(control(owner), identifier.hex.encode())
    if not requested.is_recorded:
        return Affected(public_id, status, "it was cancelled before")
    return Affected(public_id, status, f"{action} requested; its worker, or a sweep, acts on it")


PAGES = (
    Page("/responses/act", confirm),
    Page("/responses/act", act, method="POST"),
)
