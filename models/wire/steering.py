"""Steering: what a client may send while a response runs, and what it has to send before the input
is used (docs/websocket.md)."""

from collections.abc import Sequence
from typing import Any

from models.errors import InvalidRequest
from models.wire.checks.faults import empty, missing, unsupported_value, wrong_type
from models.wire.events import Item
from models.wire.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE
from models.wire.items import NewId, input_items
from models.wire.pairing import is_call, unanswered_calls

STEERED = "steered"
"""`incomplete_details.reason` of a response that stopped because of a steer."""
MARK = "context_management"
"""The request parameter of automatic compaction, with which a response cannot be steered."""
_MESSAGE_FIELDS = ("type", "role", "content")
_PARTS = ("input_text", "input_image", "input_file")


def steer_items(value: Any, new_id: NewId) -> list[Item]:
    """The messages in the `input` of a steer, normalised like an input.

    They are of the user, and have text, images and files. Raises InvalidRequest, which names the
    place, with the code `invalid_input`.
    """
    try:
        if type(value) is list:
            if not value:
                raise empty("input", "array")
            for index, item in enumerate(value):
                _require_user_message(item, f"input[{index}]")
        return input_items(value, new_id)
    except InvalidRequest as error:
        raise invalid_input(error) from None


def invalid_input(error: InvalidRequest) -> InvalidRequest:
    """The error for an input that may not be a steer."""
    return InvalidRequest(error.message, param=error.param, code="invalid_input")


def _require_user_message(item: Any, where: str) -> None:
    if type(item) is not dict:
        raise wrong_type(where, "a message", item)
    for name, value in item.items():
        if name not in _MESSAGE_FIELDS and value is not None:
            raise InvalidRequest(
                f"Unknown parameter: '{where}.{name}'. A message of a steer has only 'type', "
                "'role' and 'content'.",
                param=f"{where}.{name}",
            )
    if item.get("role") is None:
        raise missing(f"{where}.role")
    _require_one_of(item.get("type"), ("message",), f"{where}.type")
    _require_one_of(item["role"], ("user",), f"{where}.role")
    parts = item.get("content")
    for index, part in enumerate(parts if type(parts) is list else ()):
        if type(part) is dict:
            _require_one_of(part.get("type"), _PARTS, f"{where}.content[{index}].type")


def _require_one_of(value: Any, supported: tuple[str, ...], where: str) -> None:
    """What is no text is refused with the rest of the item."""
    if type(value) is str and value not in supported:
        raise unsupported_value(where, value, supported)


def required_input(output: Sequence[Item]) -> list[dict[str, Any]]:
    """What a client has to send before a response with this output can go on: a stub for the output
    of each of its calls, and for each decision that is wanted."""
    open_calls = unanswered_calls(output)
    return [
        stub
        for item in output
        if (stub := _stub(item)) is not None
        and ("call_id" not in stub or stub["call_id"] in open_calls)
    ]


def _stub(item: Item) -> dict[str, Any] | None:
    kind = item["type"]
    if kind == APPROVAL_REQUEST:
        return {"type": APPROVAL_RESPONSE, "approval_request_id": item["id"]}
    if not is_call(item) or item.get("status") == "incomplete":
        return None
    call_id = item["call_id"]
    if kind == "function_call":
        return {"type": "function_call_output", "call_id": call_id, "name": item["name"]}
    if kind == "tool_search_call":
        return {"type": "tool_search_output", "call_id": call_id, "execution": "client"}
    return {"type": f"{kind}_output", "call_id": call_id}
