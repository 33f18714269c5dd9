"""Steering over one WebSocket: input for its responses that run, and what became of it
(docs/websocket.md)."""

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from features.steering.queries import SteerRow
from features.steering.web import SteerStore, not_found, steer_error
from features.websocket.frames import SteerFrame, steer_frame
from models.db.queries.api_keys import ApiKey
from models.errors import ApiError, InvalidRequest
from models.ids import STEER, admin_id, parse_response_id, response_id
from models.wire.checks.faults import missing, unknown_parameter, wrong_type
from models.wire.steering import invalid_input

_MAX_RESPONSES = 1000
"""Responses that one connection may name; the oldest are dropped."""
_FIELDS = ("previous_response_id", "input")


@dataclass(slots=True)
class _Response:
    """A response of the connection."""

    stream_id: str | None
    was_steered: bool = False
    """It has, or may have, a steer."""
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a steer of it is stored, until the client has got `accepted`."""


class SocketSteering:
    """The steers of one connection. What is accepted is in PostgreSQL; here is only to which lanes
    its events belong."""

    def __init__(self, store: SteerStore, send: Callable[[str], Awaitable[None]]) -> None:
        """`send`: sends a frame to the client."""
        self._store = store
        self._send = send
        self._responses: OrderedDict[UUID, _Response] = OrderedDict()
        self._numbers = itertools.count()
        """Of the events that are not in the log of a response."""

    def begin(self, response: UUID, stream_id: str | None) -> None:
        """The events of this response are sent from now on."""
        self._responses[response] = _Response(stream_id)
        if len(self._responses) > _MAX_RESPONSES:
            self._responses.popitem(last=False)

    def was_steered(self, response: UUID) -> bool:
        """Whether the response may have a successor that this connection does not know."""
        known = self._responses.get(response)
        return known is not None and known.was_steered

    async def steer(self, frame: SteerFrame, key: ApiKey) -> None:
        """Stores the input of a frame and acknowledges it, or returns it with the reason. Raises
        ApiError if it cannot be returned, or is perhaps stored."""
        fields = frame.fields
        given, value = fields.get("previous_response_id"), fields.get("input")
        known = None
        try:
            target = _target_of(fields)
            wanted = parse_response_id(target)
            known = None if wanted is None else self._responses.get(wanted)
            if wanted is None or known is None:
                raise not_found(target)
            async with known.storing:
                known.was_steered = True
                steer = await self._store.accept(key, wanted, value, is_socket=True)
                await self._event("accepted", known.stream_id, steer=_named(steer, wanted))
        except ApiError as error:
            if error.status >= 500 or type(given) is not str or type(value) not in (str, list):
                raise
            returned = {"previous_response_id": given, "input": value}
            stream_id = None if known is None else known.stream_id
            await self._event("failed", stream_id, steer=returned, error=_error_of(error))

    async def settle(self, response: UUID) -> UUID | None:
        """After the last event of a response: notifies the client of its steers that wait or were
        returned. Returns the response that has the others as its input."""
        known = self._responses.get(response)
        if known is None or not known.was_steered:
            return None
        async with known.storing:
            rows = await self._store.outcomes(response)
        successor = None
        for row in rows:
            successor = row.successor_id or successor
            await self._notify(row, known.stream_id)
        return successor

    async def successor_of(self, response: UUID) -> UUID | None:
        """The response that has steers of this one as its input."""
        rows = await self._store.outcomes(response)
        return next((row.successor_id for row in rows if row.successor_id is not None), None)

    async def _notify(self, row: SteerRow, stream_id: str | None) -> None:
        steer = _named(row.id, row.response_id)
        if row.error_code is not None:
            returned = {**steer, "input": row.input}
            error = steer_error(row.error_code)
            await self._event("failed", stream_id, steer=returned, error=error)
        elif row.state == "pending":
            reason = "waiting_for_required_input"
            required = row.required_input
            await self._event(
                "pending", stream_id, steer=steer, reason=reason, required_input=required
            )

    async def _event(self, outcome: str, stream_id: str | None, **fields: Any) -> None:
        await self._send(steer_frame(outcome, next(self._numbers), stream_id, **fields))


def _named(steer: UUID, response: UUID) -> dict[str, Any]:
    return {"id": admin_id(STEER, steer), "previous_response_id": response_id(response)}


def _error_of(error: ApiError) -> dict[str, Any]:
    code = error.code or "invalid_input"
    return {"type": "invalid_request_error", "code": code, "message": error.message}


def _target_of(fields: dict[str, Any]) -> str:
    """The id of the response. Raises InvalidRequest for these fields."""
    try:
        for name, value in fields.items():
            if name not in _FIELDS and value is not None:
                raise unknown_parameter(name)
        for name in _FIELDS:
            if fields.get(name) is None:
                raise missing(name)
        target = fields["previous_response_id"]
        if type(target) is not str:
            raise wrong_type("previous_response_id", "a string", target)
    except InvalidRequest as error:
        raise invalid_input(error) from None
    return target
