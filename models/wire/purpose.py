"""The purpose of a response: what a worker does for it; and the items of one that forwards a
request to an upstream (docs/batches.md).

The input of such a response is one item with the request, its output one with the answer. Both hold
JSON as text: nothing reads it between the client and the upstream, and a database that parses it
would change it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from models.wire.events import Item


class Purpose(StrEnum):
    """What a worker does for a response."""

    ANSWER = "answer"
    """Turns of the model and the tool calls between them."""
    COMPACT = "compact"
    """One compaction of the history: the last input item is a `compaction_trigger`."""
    COUNT = "count"
    """The input tokens are counted. The model is not called and clients never see the response."""
    FORWARD = "forward"
    """A request for another endpoint is sent as it is, and the answer is the output. Clients never
    see the response (docs/batches.md)."""


_COUNT_MARK = "count_input_tokens"
"""Key in the column `responses.parameters` of a response with the purpose COUNT.

It is stored there, and not in a column of its own, because web and worker processes of two releases
run side by side during an upgrade: a worker that does not know a new column would call the model.
No request parameter has this name; only this module reads or writes the key.
"""
_FORWARD_MARK = "forward_to"
"""The same for the purpose FORWARD; its value is the path of the endpoint."""


@dataclass(frozen=True, slots=True)
class StoredParameters:
    """What the column `responses.parameters` says."""

    parameters: dict[str, Any]
    """of the request"""
    purpose: Purpose
    """COMPACT is not stored: it follows from the input, and is ANSWER here."""
    path: str = ""
    """where a request with the purpose FORWARD is sent, behind the base URL of the upstream"""


def stored_parameters(parameters: dict[str, Any], purpose: Purpose) -> dict[str, Any]:
    """The value of the column `responses.parameters` for these request parameters."""
    return {**parameters, _COUNT_MARK: True} if purpose is Purpose.COUNT else parameters


def forward_parameters(path: str) -> dict[str, Any]:
    """The value of the column for a response with the purpose FORWARD."""
    return {_FORWARD_MARK: path}


def split_stored_parameters(stored: dict[str, Any]) -> StoredParameters:
    """What the value of the column says."""
    if _FORWARD_MARK in stored:
        return StoredParameters({}, Purpose.FORWARD, stored[_FORWARD_MARK])
    if _COUNT_MARK not in stored:
        return StoredParameters(stored, Purpose.ANSWER)
    parameters = {name: value for name, value in stored.items() if name != _COUNT_MARK}
    return StoredParameters(parameters, Purpose.COUNT)


NewId = Callable[[str], str]
"""Makes an item id with a prefix."""
_PREFIX = "fwd"
_REQUEST, _ANSWER = "forwarded_request", "forwarded_answer"


def request_item(new_id: NewId, body: dict[str, Any]) -> Item:
    """The input item with the body of a request. Too slow for an event loop if it is large."""
    return _item(new_id, _REQUEST, body)


def answer_item(new_id: NewId, body: Any) -> Item:
    """The output item with the body of an answer. The same."""
    return _item(new_id, _ANSWER, body)


def requested_body(item: Item) -> dict[str, Any]:
    """The body in an input item."""
    body: dict[str, Any] = orjson.loads(item["body"])
    return body


def answered_body(items: list[Item]) -> orjson.Fragment | None:
    """The body of the answer in the output of a response, to be put into other JSON. None: its
    output is no such answer."""
    if len(items) == 1 and items[0]["type"] == _ANSWER:
        return orjson.Fragment(items[0]["body"])
    return None


def _item(new_id: NewId, kind: str, body: Any) -> Item:
    return {"id": new_id(_PREFIX), "type": kind, "body": orjson.dumps(body).decode()}
