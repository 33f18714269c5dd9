"""What an operator does to responses: a page that asks for confirmation, and the act itself."""

from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from starlette.responses import Response

from models.db.database import fetch, fetch_idempotent, find_by_id
from models.db.queries import operations
from models.db.queries.audit import RECORD_ABOUT_RESPONSE, AuditEntry
from models.db.queries.leases import LIVE_WORKERS
from models.ids import parse_response_id, response_id
from models.operator.diagnosis import diagnose
from models.operator.requests import RECORD_REQUEST, Action, why_refused
from models.redis.channels import control
from models.redis.client import REDIS_ERRORS
from web.console.errors import PageError
from web.console.page import Page
from web.console.visit import Visit

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
    live = {row.kind: row.live for row in await fetch_idempotent(visit.pool, LIVE_WORKERS, {})}
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
    public_id = response_id(identifier)
    entry = AuditEntry(visit.actor, f"response.{action}", public_id, "requested")
    async with visit.pool.connection() as connection, connection.transaction():
        recorded = await fetch(connection, RECORD_REQUEST[action], {"id": identifier})
        if recorded:
            values = entry.values() | {"response": identifier}
            await connection.execute(RECORD_ABOUT_RESPONSE.sql, values)
    row = await find_by_id(visit.pool, operations.STATE, identifier)
    status = "deleted" if row is None else row.status
    if not recorded:
        return Affected(public_id, status, why_refused(row), is_done=False)
    if action is Action.CANCEL and (owner := recorded[0].worker) is not None:
        # Without Redis nothing is lost: the worker sees the cancel at its next heartbeat.
        with suppress(*REDIS_ERRORS):
            await visit.state.redis.publish(control(owner), identifier.hex.encode())
    return Affected(public_id, status, f"{action} requested; its worker, or a sweep, acts on it")


PAGES = (
    Page("/responses/act", confirm),
    Page("/responses/act", act, method="POST"),
)
