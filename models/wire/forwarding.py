"""The items of a response that forwards a request to an upstream (docs/batches.md).

Its input is one item with the request, its output one with the answer. Both hold JSON as text:
nothing reads it between the client and the upstream, and a database that parses it would change it.
"""

from collections.abc import Callable
from typing import Any

import orjson

from models.wire.events import Item

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
