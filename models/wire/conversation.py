"""Conversations: the bodies of their routes, and their JSON."""

from typing import Any

from models.wire.checks.faults import empty, missing, not_an_object, unknown_parameter
from models.wire.checks.parameters import METADATA
from models.wire.events import Item
from models.wire.items import NewId, conversation_items
from models.wire.without_effect import UnknownFields, left_out

MAX_ADDED_ITEMS = 20
"""Items in one request, as OpenAI documents it."""


def parse_conversation(
    body: Any, *, new_id: NewId, unknown: UnknownFields
) -> tuple[dict[str, str], list[Item]]:
    """Metadata and first items of a new conversation; both are optional. Raises InvalidRequest.

    `unknown`: gets the fields that only an upstream may know. The items have them too.
    """
    fields = _known_fields(body, "items", "metadata")
    items = (
        _added_items(fields["items"], new_id, unknown) if fields.get("items") is not None else []
    )
    return _metadata(fields), items


def parse_update(body: Any) -> dict[str, str]:
    """The metadata that replaces the old metadata; null removes all. Raises InvalidRequest."""
    fields = _known_fields(body, "metadata")
    if "metadata" not in fields:
        raise missing("metadata")
    return _metadata(fields)


def parse_addition(body: Any, *, new_id: NewId, unknown: UnknownFields) -> list[Item]:
    """The items to add, at least one. Raises InvalidRequest. `unknown`: see
    `parse_conversation`."""
    fields = _known_fields(body, "items")
    if fields.get("items") is None:
        raise missing("items")
    items = _added_items(fields["items"], new_id, unknown)
    if not items:
        raise empty("items", "array")
    return items


def conversation_object(name: str, created_at: int, pairs: dict[str, str]) -> dict[str, Any]:
    """The Conversation as JSON. `name` is `conv_…`; `created_at` is in seconds since the epoch."""
    return {"id": name, "object": "conversation", "created_at": created_at, "metadata": pairs}


def _added_items(value: Any, new_id: NewId, unknown: UnknownFields) -> list[Item]:
    items = conversation_items(value, new_id, MAX_ADDED_ITEMS)
    unknown.restore(left_out(value, items, (None, "items")))
    return items


def _metadata(fields: dict[str, Any]) -> dict[str, str]:
    metadata = fields.get("metadata")
    return {} if metadata is None else METADATA(metadata, "metadata")


def _known_fields(body: Any, *known: str) -> dict[str, Any]:
    """The body. Raises InvalidRequest if it is not an object, or for an unknown field."""
    if type(body) is not dict:
        raise not_an_object(body)
    for name, value in body.items():
        if name not in known and value is not None:
            raise unknown_parameter(name)
    return body
