"""Conversations in a web process: creating, showing, changing and deleting them and their items.
Always within one project (I11)."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

import orjson

from models.db.database import Jsonb, fetch_idempotent
from models.db.queries import conversations
from models.db.queries.api_keys import ApiKey
from models.db.queries.audit import Actor, AuditEntry
from models.db.queries.conversations import CallItem, ConversationRow, UpdatedConversation
from models.errors import NotFound
from models.ids import conversation_id, new_item_id, new_uuid
from models.load.budget import Reservation
from models.load.pacing import pause_if_large
from models.wire.checks.faults import shorten
from models.wire.conversation import (
    conversation_object,
    parse_addition,
    parse_conversation,
    parse_update,
)
from models.wire.events import Item
from models.wire.item_types import CALLS, OUTPUTS
from models.wire.items import duplicate_item
from models.wire.json_input import encoded_size
from models.wire.pairing import find_open_calls, unanswered_calls
from models.wire.without_effect import UnknownFields
from web.http.json_responses import list_envelope
from web.http.params import Paging
from web.idempotency.creates import fetch_once
from web.responses.continuation import Continuation, conversation_locked, conversation_row
from web.responses.item_pages import ItemReader
from web.responses.validation import (
    match_calls,
    require_approval_requests,
)
from web.state import AppState, Feature

_ITEMS = "items"
"""The name of the list of new items in a body."""


class ConversationStore:
    """Reads and changes stored conversations."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._pool = state.pool
        self._items = ItemReader(state.pool, state.images)

    async def create(self, key: ApiKey, body: Any) -> dict[str, Any]:
        """Creates a conversation with its items. Raises InvalidRequest with nothing stored."""
        unknown = UnknownFields()
        metadata, items = parse_conversation(body, new_id=new_item_id, unknown=unknown)
        items, open_calls = await self._prepare_items(key, items, unknown, Continuation())
        encoded, size = await _encode(items)
        new_id, created_at = new_uuid(), self._state.lease.clock.now()
        values = {
            "id": new_id,
            "project": key.project_id,
            "created_at": created_at,
            "metadata": Jsonb(metadata),
            "items": encoded,
            "size": size,
            "unanswered_calls": open_calls,
        }
        public_id = conversation_id(new_id)
        await fetch_once(self._pool, conversations.CREATE, values, public_id, size=size)
        return conversation_object(public_id, created_at, metadata)

    async def show(self, project: UUID, public_id: str) -> dict[str, Any]:
        """The Conversation object."""
        return _conversation_object(await self._find(project, public_id))

    async def show_unused(self, project: UUID, public_id: str) -> dict[str, Any]:
        """The Conversation object. Raises NotFound if anything was added to it since it was made:
        a retry gets no conversation that somebody uses."""
        row = await self._find(project, public_id)
        if row.revision:
            raise NotFound("The conversation was used.")
        return _conversation_object(row)

    async def update(self, project: UUID, public_id: str, body: Any) -> dict[str, Any]:
        """Replaces the metadata; returns the Conversation object."""
        metadata = parse_update(body)
        row = await self._find(project, public_id)
        values = {"id": row.id, "project": project, "metadata": Jsonb(metadata)}
        changed = await fetch_idempotent(self._pool, conversations.UPDATE, values)
        return _conversation_object(changed[0] if changed else await self._find(project, public_id))

    async def delete(self, project: UUID, public_id: str, actor: Actor) -> None:
        """Deletes the conversation. Items that belong to its responses too are not deleted."""
        row: ConversationRow | None = await self._find(project, public_id)
        audited = AuditEntry(actor, "conversation.delete", public_id).values()
        while row is not None:
            _require_idle(row)
            values = _revision_condition(row, project) | audited
            if await fetch_idempotent(self._pool, conversations.DELETE, values):
                return
            row = await self._find_or_none(project, public_id)

    async def add(self, key: ApiKey, public_id: str, body: Any) -> dict[str, Any]:
        """Appends items; returns a list object. Raises InvalidRequest with nothing stored."""
        project = key.project_id
        unknown = UnknownFields()
        new_items = parse_addition(body, new_id=new_item_id, unknown=unknown)
        row = await self._find(project, public_id, new_items)
        while True:
            if row.existing_item_ids:
                raise duplicate_item(row.existing_item_ids[0], _ITEMS)
            _require_idle(row)
            continuation = Continuation(conversation=row.id, open_calls=row.unanswered_calls)
            items, open_calls = await self._prepare_items(key, new_items, unknown, continuation)
            encoded, size = await _encode(items)
            values = _revision_condition(row, project) | {
                "items": encoded,
                "size": size,
                "unanswered_calls": open_calls,
            }
            made = " ".join(item["id"] for item in items)
            if await fetch_once(self._pool, conversations.ADD_ITEMS, values, made, size=size):
                await pause_if_large(size)
                return list_envelope(await self._state.images.filled(project, items))
            row = await self._find(project, public_id, items)
            if len(row.existing_item_ids) == len(items):
                # An earlier try, whose outcome was unknown, has stored them.
                return list_envelope(await self._state.images.filled(project, items))

    async def page(
        self, project: UUID, public_id: str, paging: Paging, held: Reservation
    ) -> dict[str, Any]:
        """A page of the items, as OpenAI's list object. `held`: as for `ItemReader.page`."""
        row = await self._find(project, public_id)
        query = conversations.PAGE[paging.order]
        return await self._items.page(project, query, {"id": row.id}, paging, held)

    async def item(self, project: UUID, public_id: str, item_id: str, held: Reservation) -> Item:
        """One item. `held`: as for `ItemReader.page`. Raises NotFound."""
        row = await self._find(project, public_id)
        values = {"id": row.id, "item": item_id}
        item: Item | None = await self._items.item(project, conversations.ITEM, values, held)
        if item is None:
            raise _item_not_found(item_id, public_id)
        return item

    async def added(
        self, project: UUID, public_id: str, held: Reservation, made: str
    ) -> dict[str, Any]:
        """The list of items that an earlier `add` has returned, without those that were removed
        since. `made`: their ids, as it has noted them. `held`: as for `ItemReader.page`."""
        row = await self._find(project, public_id)
        values = {"id": row.id}
        found = {
            item_id: await self._items.item(
                project, conversations.ITEM, values | {"item": item_id}, held
            )
            for item_id in made.split()
        }
        items = {item_id: item for item_id, item in found.items() if item is not None}
        envelope = list_envelope([{"id": item_id} for item_id in items])
        return envelope | {"data": [*items.values()]}

    async def remove_item(
        self, project: UUID, public_id: str, item_id: str, actor: Actor
    ) -> dict[str, Any]:
        """Removes an item; returns the Conversation object. Raises NotFound.

        An item that belongs to a response too is not deleted.
        """
        was_there = False
        entry = AuditEntry(
            actor, "conversation.item.delete", public_id, details={"item": shorten(item_id)}
        )
        while True:
            row = await self._find(project, public_id, [{"id": item_id}])
            if not row.existing_item_ids:
                if not was_there:
                    raise _item_not_found(item_id, public_id)
                # Removed by this request, or by another one.
                return _conversation_object(row)
            was_there = True
            _require_idle(row)
            values = {"id": row.id, "item": item_id, "types": [*CALLS, *OUTPUTS]}
            calls = await fetch_idempotent(self._pool, conversations.CALLS, values)
            await fetch_idempotent(
                self._pool,
                conversations.REMOVE_ITEM,
                _revision_condition(row, project)
                | {"item": item_id, "unanswered_calls": _unanswered_without(row, item_id, calls)}
                | entry.values(),
            )

    async def _find(
        self, project: UUID, public_id: str, items: list[Item] | None = None
    ) -> ConversationRow:
        return await conversation_row(self._pool, project, public_id, items or [])

    async def _find_or_none(self, project: UUID, public_id: str) -> ConversationRow | None:
        try:
            return await self._find(project, public_id)
        except NotFound:
            return None

    async def _prepare_items(
        self, key: ApiKey, items: list[Item], unknown: UnknownFields, continuation: Continuation
    ) -> tuple[list[Item], list[str]]:
        """The items to store, and the ids of the calls that have no output after them.

        Raises InvalidRequest.
        """
        items = await self._state.validation.check_items(items, key, _ITEMS, unknown.found)
        await require_approval_requests(self._pool, continuation, items, _ITEMS)
        open_calls = await match_calls(
            self._pool, continuation, items, partial(find_open_calls, where=_ITEMS)
        )
        return items, list(open_calls)


def _require_idle(row: ConversationRow) -> None:
    """Raises InvalidRequest while a response of the conversation is open: it needs this history."""
    if row.is_busy:
        raise conversation_locked()


def _unanswered_without(row: ConversationRow, item_id: str, calls: Sequence[CallItem]) -> list[str]:
    """The unanswered calls of a conversation without one of its items. `calls`: those that have the
    item's `call_id`, with their outputs."""
    changed = {call.call_id for call in calls}
    left = [
        {"type": call.type, "call_id": call.call_id, "status": call.status}
        for call in calls
        if call.id != item_id
    ]
    others = [call_id for call_id in row.unanswered_calls if call_id not in changed]
    return others + unanswered_calls(left)


def _revision_condition(row: ConversationRow, project: UUID) -> dict[str, Any]:
    """The values of a write that changes nothing if the conversation was changed after `row`."""
    return {"id": row.id, "project": project, "revision": row.revision}


def _conversation_object(row: ConversationRow | UpdatedConversation) -> dict[str, Any]:
    return conversation_object(conversation_id(row.id), row.created_at, row.metadata)


def _item_not_found(item_id: str, public_id: str) -> NotFound:
    return NotFound(f"Item with id '{shorten(item_id)}' not found in conversation '{public_id}'.")


async def _encode(items: list[Item]) -> tuple[Jsonb, int]:
    """The items as a parameter of a statement, and their size."""
    encoded = orjson.dumps(items)
    await pause_if_large(len(encoded))
    size = encoded_size(encoded)
    await pause_if_large(len(encoded))
    return Jsonb(encoded, dumps=_as_it_is), size


def _as_it_is(encoded: bytes) -> bytes:
    return encoded


class Conversations(Feature):
    """The stored conversations."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.store = ConversationStore(state)


FEATURE = Conversations
