"""Conversations by their id: made, shown, added to, deleted; always within one project (I11)."""

import time
from typing import Any
from uuid import UUID

from models.config.settings import Settings
from models.db.database import Jsonb, Pool, Row, read, request
from models.db.queries import conversations
from models.egress import Egress
from models.errors import NotFound
from models.ids import conversation_id, new_item_id, new_uuid
from models.secrets import Sealer
from models.wire.checks import shown
from models.wire.conversation import (
    conversation_object,
    parse_addition,
    parse_conversation,
    parse_update,
)
from models.wire.events import Item
from models.wire.items import duplicate
from models.wire.pairing import CALLS, OUTPUTS, still_open, unanswered
from web.http.json_responses import list_envelope
from web.http.params import Paging
from web.responses.addresses import require_fetchable
from web.responses.approvals import require_asked
from web.responses.compactions import require_readable, still_told
from web.responses.continuation import Past, conversation_row, locked
from web.responses.references import with_referred

_ITEMS = "items"
"""What the list of new items is called in a body."""


class Chronicle:
    """One web process's view of the stored conversations."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._settings = settings
        self._pool = pool
        self._egress = Egress(settings.egress)
        self._sealer = Sealer(settings.sealing_keys)

    async def create(self, project: UUID, body: Any) -> dict[str, Any]:
        """A new conversation, with the items it begins with. Raises InvalidRequest with nothing written."""
        metadata, items = parse_conversation(body, new_id=new_item_id)
        items, open_calls = await self._checked(project, items, Past())
        values = {
            "id": new_uuid(), "project": project, "created_at": int(time.time()), "metadata": Jsonb(metadata), "items": Jsonb(items),
            "unanswered_calls": open_calls,
        }  # fmt: skip
        await request(self._pool, conversations.CREATE, values)
        return _shown(values | {"metadata": metadata})

    async def show(self, project: UUID, named: str) -> dict[str, Any]:
        """The Conversation object."""
        return _shown(await self._find(project, named))

    async def update(self, project: UUID, named: str, body: Any) -> dict[str, Any]:
        """Replaces its metadata."""
        metadata = parse_update(body)
        row = await self._find(project, named)
        values = {"id": row["id"], "project": project, "metadata": Jsonb(metadata)}
        changed = await request(self._pool, conversations.UPDATE, values)
        return _shown(changed[0] if changed else await self._find(project, named))

    async def delete(self, project: UUID, named: str) -> None:
        """Deletes it; the items that responses have stay with them."""
        row: Row | None = await self._find(project, named)
        while row is not None:
            _require_idle(row)
            if await request(self._pool, conversations.DELETE, _at(row, project)):
                return
            row = await self._again(project, named)

    async def add(self, project: UUID, named: str, body: Any) -> dict[str, Any]:
        """Adds items to its end; a list of them. Raises InvalidRequest with nothing written."""
        given = parse_addition(body, new_id=new_item_id)
        row = await self._find(project, named, given)
        while True:
            if row["taken"]:
                raise duplicate(row["taken"][0], _ITEMS)
            _require_idle(row)
            past = Past(conversation=row["id"], open_calls=row["unanswered_calls"])
            items, open_calls = await self._checked(project, given, past)
            values = _at(row, project) | {"items": Jsonb(items), "unanswered_calls": open_calls}
            if await request(self._pool, conversations.ADD, values):
                return list_envelope(items, len(items))
            row = await self._find(project, named, items)
            if len(row["taken"]) == len(items):
                return list_envelope(items, len(items))  # a try without an answer has stored them

    async def page(self, project: UUID, named: str, wanted: Paging) -> dict[str, Any]:
        """A page of its items, in the list envelope (contract §1.1)."""
        row = await self._find(project, named)
        values = {"id": row["id"], "after": wanted.after, "limit": wanted.limit + 1}
        found = await read(self._pool, conversations.PAGE[wanted.order], values)
        return list_envelope([entry["payload"] for entry in found], wanted.limit)

    async def item(self, project: UUID, named: str, item_id: str) -> Item:
        """One of its items."""
        row = await self._find(project, named)
        found = await read(self._pool, conversations.ITEM, {"id": row["id"], "item": item_id})
        if not found:
            raise _no_item(item_id, named)
        item: Item = found[0]["payload"]
        return item

    async def drop(self, project: UUID, named: str, item_id: str) -> dict[str, Any]:
        """Takes an item out of it; the Conversation object. A response keeps what is its own."""
        await self.item(project, named, item_id)
        while True:
            row = await self._find(project, named, [{"id": item_id}])
            if not row["taken"]:
                return _shown(
                    row
                )  # what another request or a try of ours without an answer has done is done
            _require_idle(row)
            values = {"id": row["id"], "types": [*CALLS, *OUTPUTS]}
            left = [
                call
                for call in await read(self._pool, conversations.CALLS, values)
                if call["id"] != item_id
            ]
            await request(
                self._pool,
                conversations.DROP,
                _at(row, project) | {"item": item_id, "unanswered_calls": unanswered(left)},
            )

    # --- what they have in common ---

    async def _find(self, project: UUID, named: str, items: list[Item] | None = None) -> Row:
        return await conversation_row(self._pool, project, named, items or [])

    async def _again(self, project: UUID, named: str) -> Row | None:
        try:
            return await self._find(project, named)
        except NotFound:
            return None

    async def _checked(
        self, project: UUID, items: list[Item], past: Past
    ) -> tuple[list[Item], list[str]]:
        """The items as they are stored, and the calls that wait for an output after them. Raises InvalidRequest."""
        require_fetchable(self._egress, items, _ITEMS)
        items = await with_referred(self._pool, project, items, self._settings.limits.body, _ITEMS)
        require_readable(items, self._sealer, project, _ITEMS)
        await require_asked(self._pool, past, items, _ITEMS)
        return items, list(still_open(*still_told(items, past.open_calls), _ITEMS))


def _require_idle(row: Row) -> None:
    """While a response of it runs, what the response goes on from stays as it is. Raises InvalidRequest."""
    if row["is_busy"]:
        raise locked()


def _at(row: Row, project: UUID) -> dict[str, Any]:
    """What a write is on condition of."""
    return {"id": row["id"], "project": project, "revision": row["revision"]}


def _shown(row: Row) -> dict[str, Any]:
    return conversation_object(conversation_id(row["id"]), row["created_at"], row["metadata"])


def _no_item(item_id: str, named: str) -> NotFound:
    return NotFound(f"Item with id '{shown(item_id)}' not found in conversation '{named}'.")
