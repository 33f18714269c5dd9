"""Steering in a web process: accepting, showing and listing steers of running responses. Always
within one project (I11)."""

from typing import Any
from uuid import UUID

import orjson

from features.steering import queries
from features.steering.queries import SteerRow, SteerTarget
from models.db.database import (
    DATABASE_UNAVAILABLE,
    NOT_EXECUTED,
    Json,
    Jsonb,
    fetch,
    fetch_idempotent,
    fetch_when_available,
    large_connection,
    require_by_id,
)
from models.db.queries.api_keys import ApiKey
from models.errors import InvalidRequest, NotFound
from models.ids import STEER, admin_id, new_item_id, new_uuid, parse_admin_id, response_id
from models.lifecycle import TERMINAL
from models.wire.checks.faults import missing, not_an_object, shorten, unknown_parameter
from models.wire.steering import invalid_input, steer_items
from web.http.params import Paging
from web.idempotency.creates import note_made
from web.state import AppState, Feature

_FIELDS = ("input",)
_MESSAGES = {
    "response_not_active": "The response was no longer accepting steering input when it ended.",
    "successor_creation_failed": "The response that was to continue this one could not be created.",
}
"""Why an accepted steer goes back to the client, by its code."""


class SteerStore:
    """The steers of all responses."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._pool = state.pool
        self._settings = state.settings.steering

    async def create(self, key: ApiKey, target: str, body: Any) -> dict[str, Any]:
        """Queues the input of a request for a background response; returns the steer. Raises
        InvalidRequest and NotFound with nothing stored."""
        if type(body) is not dict:
            raise not_an_object(body)
        for name, value in body.items():
            if name not in _FIELDS and value is not None:
                raise unknown_parameter(name)
        if body.get("input") is None:
            raise missing("input")
        steered = parse_admin_id("resp", target)
        if steered is None:
            raise not_found(target)
        steer = await self.accept(key, steered, body["input"], is_socket=False)
        return await self.show(key.project_id, admin_id(STEER, steer))

    async def accept(self, key: ApiKey, response: UUID, value: Any, *, is_socket: bool) -> UUID:
        """Queues an input for a response that runs; returns the id of the steer. From now on it is
        committed or returned as failed, whatever ends in between.

        `is_socket`: over the connection that waits for the response, which may be a foreground
        one. Raises InvalidRequest and NotFound with nothing stored.
        """
        items = steer_items(value, new_item_id)
        try:
            items = await self._state.validation.check_items(items, key, "input", {})
        except InvalidRequest as error:
            raise invalid_input(error) from None
        encoded = orjson.dumps(items)
        steer = new_uuid()
        values = {
            "steer": steer,
            "response": response,
            "project": key.project_id,
            "input": Json(value),
            "items": Jsonb(items),
            "size": len(encoded),
            "max_pending": self._settings.pending,
            "max_bytes": self._settings.pending_bytes,
        }
        try:
            await self._store(values, is_socket=is_socket)
        except NOT_EXECUTED:
            raise
        except DATABASE_UNAVAILABLE:
            await self._pool.check()
            await self._store(values, is_socket=is_socket, pool_timeout=1.0)
        return steer

    async def _store(
        self, values: dict[str, Any], *, is_socket: bool, pool_timeout: float | None = None
    ) -> None:
        """One try. It changes nothing if an earlier one was committed."""
        async with (
            large_connection(self._pool, 2 * values["size"], pool_timeout) as connection,
            connection.transaction(),
        ):
            targets = await fetch(connection, queries.LOCK_TARGET, values)
            if not targets or not (is_socket or targets[0].background):
                raise not_found(response_id(values["response"]))
            if targets[0].is_accepted:
                return
            _require_active(targets[0])
            if not await fetch(connection, queries.ACCEPT, values):
                raise InvalidRequest(
                    "Too much steering input is pending for the response: at most "
                    f"{self._settings.pending} inputs, and {self._settings.pending_bytes} bytes.",
                    param="input",
                    code="too_many_pending_steers",
                )
            await note_made(connection, admin_id(STEER, values["steer"]))

    async def show(self, project: UUID, public_id: str) -> dict[str, Any]:
        """The steer. Raises NotFound."""
        absent = NotFound(f"Steer with id '{shorten(public_id)}' not found.")
        wanted = parse_admin_id(STEER, public_id)
        return steer_object(
            await require_by_id(self._pool, queries.FIND_STEER, wanted, absent, project=project)
        )

    async def page(self, project: UUID, target: str, paging: Paging) -> dict[str, Any]:
        """A page of the steers of a response, as OpenAI's list object. Raises NotFound and
        InvalidRequest."""
        try:
            found = await self._state.response_store.find(project, target)
        except NotFound:
            raise not_found(target) from None
        values = {"id": found.id, "after": paging.after_id(STEER), "limit": paging.row_limit}
        rows = await fetch_idempotent(self._pool, queries.LIST_STEERS[paging.order], values)
        return paging.page_of([steer_object(row) for row in rows])

    async def outcomes(self, response: UUID) -> list[SteerRow]:
        """The steers of a response that has ended, in order: none of them is queued any more."""
        return await fetch_when_available(self._pool, queries.STEERS_OF, {"id": response})


def not_found(target: str) -> NotFound:
    """There is no such response for this client."""
    return NotFound(f"Response with id '{shorten(target)}' not found.", code="response_not_found")


def _require_active(target: SteerTarget) -> None:
    """Raises InvalidRequest if the response cannot be steered, or not any more."""
    if target.status in TERMINAL:
        raise InvalidRequest(
            "The response has ended and is no longer accepting steering input.",
            code="response_already_completed",
        )
    if target.is_stopping:
        raise InvalidRequest(
            "The response is no longer accepting steering input.", code="response_not_active"
        )
    if not target.is_steerable:
        raise InvalidRequest(
            "This response does not support steering: it is in a conversation or in a batch, or "
            "uses automatic compaction.",
            code="steering_not_supported",
        )


def steer_error(code: str) -> dict[str, str]:
    """Why an accepted steer goes back to the client."""
    return {"type": "invalid_request_error", "code": code, "message": _MESSAGES[code]}


def steer_object(row: SteerRow) -> dict[str, Any]:
    """The steer as JSON."""
    successor, code, waits = row.successor_id, row.error_code, row.state == "pending"
    return {
        "id": admin_id(STEER, row.id),
        "object": "response.steer",
        "created_at": row.created_at,
        "previous_response_id": response_id(row.response_id),
        "state": row.state,
        "input": row.input if successor is None else None,
        "required_input": row.required_input if waits else None,
        "successor_response_id": None if successor is None else response_id(successor),
        "error": None if code is None else steer_error(code),
    }


class Steering(Feature):
    """The steers of all responses."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.store = SteerStore(state)


FEATURE = Steering
