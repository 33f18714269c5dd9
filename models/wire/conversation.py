"""Conversations: what a client may send about them, and how they look (contract §1)."""

from typing import Any

from models.errors import InvalidRequest
from models.wire.checks import empty, json_type, missing, shorten
from models.wire.events import Item
from models.wire.items import NewId, conversation_items
from models.wire.request import metadata

MAX_ADDED_ITEMS = 20
"""Items that are added at once (contract §1)."""


def parse_conversation(body: Any, *, new_id: NewId) -> tuple[dict[str, str], list[Item]]:
    """Metadata and first items of a new conversation; both may be absent. Raises InvalidRequest, worded as in contract §5.1."""
    given = _require_known(body, "items", "metadata")
    items = (
        conversation_items(given["items"], new_id, MAX_ADDED_ITEMS)
        if given.get("items") is not None
        else []
    )
    return _metadata(given), items


def parse_update(body: Any) -> dict[str, str]:
    """The metadata that is to replace the old; null leaves none. Raises InvalidRequest."""
    given = _require_known(body, "metadata")
    if "metadata" not in given:
        raise missing("metadata")
    return _metadata(given)


def parse_addition(body: Any, *, new_id: NewId) -> list[Item]:
    """Items to be added. Raises InvalidRequest."""
    given = _require_known(body, "items")
    if given.get("items") is None:
        raise missing("items")
    items = conversation_items(given["items"], new_id, MAX_ADDED_ITEMS)
    if not items:
        raise empty("items", "array")
    return items


def conversation_object(name: str, created_at: int, pairs: dict[str, str]) -> dict[str, Any]:
    """The Conversation as JSON. `name`: `conv_…`; `created_at` in whole seconds since the epoch."""
    return {"id": name, "object": "conversation", "created_at": created_at, "metadata": pairs}


def _metadata(given: dict[str, Any]) -> dict[str, str]:
    found = given.get("metadata")
    return {} if found is None else metadata(found, "metadata")


def _require_known(body: Any, *known: str) -> dict[str, Any]:
    if type(body) is not dict:
        raise InvalidRequest(
            f"Invalid body: expected a JSON object, but got {json_type(body)} instead.",
            code="invalid_type",
        )
    for name, value in body.items():
        if name not in known and value is not None:
            raise InvalidRequest(
                f"Unknown parameter: '{shorten(name)}'.",
                param=shorten(name),
                code="unknown_parameter",
            )
    return body
