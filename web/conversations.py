"""Conversations by their id: made, shown, added to, deleted; always within one project (I11)."""

import time
from typing import Any
from uuid import UUID

from models.config.settings import Settings
from models.db.database import Jsonb, Pool, Row, read, write_idempotent
from models.db.queries import conversations
from models.egress import EgressPolicy
from models.errors import NotFound
from models.ids import conversation_id, new_item_id, new_uuid
from models.secrets import Sealer
from models.wire.checks import shorten
from models.wire.conversation import (
    conversation_object,
    parse_addition,
    parse_conversation,
    parse_update,
)
from models.wire.events import Item
from models.wire.items import duplicate_item
from models.wire.pairing import CALLS, OUTPUTS, find_open_calls, unanswered_calls
from web.http.json_responses import list_envelope
from web.http.params import Paging
from web.responses.addresses import require_fetchable
from web.responses.approvals import require_approval_requests
from web.responses.compactions import drop_compacted, require_readable
from web.responses.continuation import Continuation, conversation_locked, conversation_row
from web.responses.references import resolve_references

_ITEMS = "items"
"""What the list of new items is called in a body."""


class ConversationStore:
    """One web process's view of the stored conversations."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._settings = settings
        self._pool = pool
        self._egress = EgressPolicy(settings.egress)
        self._sealer = Sealer(settings.sealing_keys)

    async def create(self, project: UUID, body: Any) -> dict[str, Any]:
        """A new conversation, with the items it begins with. Raises InvalidRequest with nothing written."""
        metadata, items = parse_conversation(body, new_id=new_item_id)
        items, open_calls = await self._prepare_items(project, items, Continuation())
        values = {
            "id": new_uuid(), "project": project, "created_at": int(time.time()), "metadata": Jsonb(metadata), "items": Jsonb(items),
            "unanswered_calls": open_calls,
        }  # fmt: skip
        await write_idempotent(self._pool, conversations.CREATE, values)
        return _conversation_object(values | {"metadata": metadata})

    async def show(self, project: UUID, public_id: str) -> dict[str, Any]:
        """The Conversation object."""
        return _conversation_object(await self._find(project, public_id))

    async def update(self, project: UUID, public_id: str, body: Any) -> dict[str, Any]:
        """Replaces its metadata."""
        metadata = parse_update(body)
        row = await self._find(project, public_id)
        values = {"id": row["id"], "project": project, "metadata": Jsonb(metadata)}
        changed = await write_idempotent(self._pool, conversations.UPDATE, values)
        return _conversation_object(changed[0] if changed else await self._find(project, public_id))

    async def delete(self, project: UUID, public_id: str) -> None:
        """Deletes it; the items that responses have stay with them."""
        row: Row | None = await self._find(project, public_id)
        while row is not None:
            _require_idle(row)
            if await write_idempotent(
                self._pool, conversations.DELETE, _revision_condition(row, project)
            ):
                return
            row = await self._find_or_none(project, public_id)

    async def add(self, project: UUID, public_id: str, body: Any) -> dict[str, Any]:
        """Adds items to its end; a list of them. Raises InvalidRequest with nothing written."""
        new_items = parse_addition(body, new_id=new_item_id)
        row = await self._find(project, public_id, new_items)
        while True:
            if row["taken"]:
                raise duplicate_item(row["taken"][0], _ITEMS)
            _require_idle(row)
            continuation = Continuation(conversation=row["id"], open_calls=row["unanswered_calls"])
            items, open_calls = await self._prepare_items(project, new_items, continuation)
            values = _revision_condition(row, project) | {
                "items": Jsonb(items),
                "unanswered_calls": open_calls,
            }
            if await write_idempotent(self._pool, conversations.ADD_ITEMS, values):
                return list_envelope(items, len(items))
            row = await self._find(project, public_id, items)
            if len(row["taken"]) == len(items):
                return list_envelope(items, len(items))  # a try without an answer has stored them

    async def page(self, project: UUID, public_id: str, paging: Paging) -> dict[str, Any]:
        """A page of its items, in the list envelope (contract §1.1)."""
        row = await self._find(project, public_id)
        values = {"id": row["id"], "after": paging.after, "limit": paging.limit + 1}
        rows = await read(self._pool, conversations.PAGE[paging.order], values)
        return list_envelope([entry["payload"] for entry in rows], paging.limit)

    async def item(self, project: UUID, public_id: str, item_id: str) -> Item:
        """One of its items."""
        row = await self._find(project, public_id)
        rows = await read(self._pool, conversations.ITEM, {"id": row["id"], "item": item_id})
        if not rows:
            raise _item_not_found(item_id, public_id)
        item: Item = rows[0]["payload"]
        return item

    async def remove_item(self, project: UUID, public_id: str, item_id: str) -> dict[str, Any]:
        """Takes an item out of it; the Conversation object. A response keeps what is its own."""
        await self.item(project, public_id, item_id)
        while True:
            row = await self._find(project, public_id, [{"id": item_id}])
            if not row["taken"]:
                return _conversation_object(
                    row
                )  # what another request or a try of ours without an answer has done is done
            _require_idle(row)
            values = {"id": row["id"], "types": [*CALLS, *OUTPUTS]}
            remaining_calls = [
                call
                for call in await read(self._pool, conversations.CALLS, values)
                if call["id"] != item_id
            ]
            await write_idempotent(
                self._pool,
                conversations.REMOVE_ITEM,
                _revision_condition(row, project)
                | {"item": item_id, "unanswered_calls": unanswered_calls(remaining_calls)},
            )

    # --- what they have in common ---

    async def _find(self, project: UUID, public_id: str, items: list[Item] | None = None) -> Row:
        return await conversation_row(self._pool, project, public_id, items or [])

    async def _find_or_none(self, project: UUID, public_id: str) -> Row | None:
        try:
            return await self._find(project, public_id)
        except NotFound:
            return None

    async def _prepare_items(
        self, project: UUID, items: list[Item], continuation: Continuation
    ) -> tuple[list[Item], list[str]]:
        """The items as they are stored, and the calls that wait for an output after them. Raises InvalidRequest."""
        require_fetchable(self._egress, items, _ITEMS)
        items = await resolve_references(
            self._pool, project, items, self._settings.limits.body, _ITEMS
        )
        require_readable(items, self._sealer, project, _ITEMS)
        await require_approval_requests(self._pool, continuation, items, _ITEMS)
        return items, list(find_open_calls(*drop_compacted(items, continuation.open_calls), _ITEMS))


def _require_idle(row: Row) -> None:
    """While a response of it runs, what the response goes on from stays as it is. Raises InvalidRequest."""
    if row["is_busy"]:
        raise conversation_locked()


def _revision_condition(row: Row, project: UUID) -> dict[str, Any]:
    """What a write is on condition of."""
    return {"id": row["id"], "project": project, "revision": row["revision"]}


def _conversation_object(row: Row) -> dict[str, Any]:
    return conversation_object(conversation_id(row["id"]), row["created_at"], row["metadata"])


def _item_not_found(item_id: str, public_id: str) -> NotFound:
    return NotFound(f"Item with id '{shorten(item_id)}' not found in conversation '{public_id}'.")
