"""What a new response continues, a previous response or a conversation; and the items that its
input refers to, which replace the references before anything is stored."""

from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

from models.db.database import Pool, fetch_idempotent, find_by_id
from models.db.queries import conversations
from models.db.queries.chains import COUNT_WAITING
from models.db.queries.conversations import ConversationRow
from models.db.queries.history import PREVIOUS_RESPONSE, REFERENCED_ITEMS, PreviousResponse
from models.db.queries.steers import PENDING_STEERS, PendingSteer
from models.errors import (
    InvalidRequest,
    NotFound,
    history_too_large_message,
)
from models.ids import parse_conversation_id, parse_response_id
from models.lifecycle import TRANSITIONS, Status
from models.wire.compaction import newest_compaction
from models.wire.events import Item
from models.wire.items import duplicate_item, referenced_ids, substitute_references
from models.wire.json_input import json_size
from models.wire.request import CreateRequest

MAX_BESIDE = 100
"""Responses that wait for the same one: its end changes all of their rows."""
_NOT_CONTINUED = (Status.FAILED, Status.CANCELLED)


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a new response continues; a conversation is read at one `revision`."""

    previous: UUID | None = None
    conversation: UUID | None = None
    revision: int | None = None
    open_calls: list[str] = field(default_factory=list)
    """The ids of the calls whose outputs the input must contain."""
    existing_item_ids: frozenset[str] = frozenset()
    """The item ids of the input that the conversation has already."""
    waits: bool = False
    """The previous response has not ended: the new one is to wait for it."""
    size: int | None = None
    """The size of its items (models/wire/json_input.py); None: not known."""
    was_steered: bool = False
    """Input has arrived while it ran, which may still be pending."""

    def require_new(self, items: list[Item]) -> None:
        """Raises InvalidRequest for an item that the conversation has already.

        Pages of a conversation begin after an item id, so an id must be unique in it.
        """
        for item in items:
            if item["id"] in self.existing_item_ids:
                raise duplicate_item(item["id"], "input")

    def size_with(self, items: list[Item]) -> int | None:
        """The size with these items behind it; None if it is not known."""
        if self.size is None and (self.previous is not None or self.conversation is not None):
            return None
        return (self.size or 0) + json_size(items)

    def require_size(self, limit: int, items: list[Item]) -> None:
        """Raises InvalidRequest if this is more than a worker may load. The worker judges again,
        with the input; a compaction in the input would replace what is here."""
        if (self.size or 0) > limit and newest_compaction(items) < 0:
            raise InvalidRequest(
                history_too_large_message(limit),
                param="previous_response_id" if self.conversation is None else "conversation",
                code="history_too_large",
            )


async def load_continuation(
    pool: Pool,
    project: UUID,
    request: CreateRequest,
    unstored_ids: Collection[UUID] = (),
    max_waiting: int = 0,
) -> Continuation:
    """What the request continues.

    `unstored_ids`: responses with `store: false` that it may continue all the same. `max_waiting`:
    how many responses may wait in a row. Raises InvalidRequest or NotFound, with the parameter's
    name.
    """
    if request.conversation is not None:
        try:
            row = await conversation_row(pool, project, request.conversation, request.input)
        except NotFound as error:
            error.param = "conversation"
            raise
        if row.is_busy:
            raise conversation_locked()
        return Continuation(
            size=row.size,
            conversation=row.id,
            revision=row.revision,
            open_calls=row.unanswered_calls,
            existing_item_ids=frozenset(row.existing_item_ids),
        )
    if request.previous_response_id is None:
        return Continuation()
    previous = await _previous_row(pool, project, request.previous_response_id, unstored_ids)
    waits = Status(previous.status) in TRANSITIONS
    if request.waits:
        _require_continuable(request.previous_response_id, previous)
        if waits:
            await _require_short(pool, previous.id, max_waiting)
    elif waits:
        raise InvalidRequest(
            f"Previous response with id '{request.previous_response_id}' has not finished yet.",
            param="previous_response_id",
            code="previous_response_not_ready",
        )
    return Continuation(
        previous=previous.id,
        waits=waits,
        open_calls=[] if waits else previous.unanswered_calls,
        size=previous.history_size,
        was_steered=previous.steers > 0,
    )


def _require_continuable(public_id: str, previous: PreviousResponse) -> None:
    """Raises InvalidRequest if a response that waited for this one would not run."""
    if previous.status in _NOT_CONTINUED:
        raise InvalidRequest(
            f"Previous response with id '{public_id}' has ended as '{previous.status}', so nothing "
            "waits for it. Run it again, or leave out 'wait_for_previous'.",
            param="previous_response_id",
            code="previous_response_failed",
        )


async def _require_short(pool: Pool, previous: UUID, max_waiting: int) -> None:
    """Raises InvalidRequest if too many responses wait already, in a row or for this one."""
    values = {"id": previous, "most": max_waiting}
    [count] = await fetch_idempotent(pool, COUNT_WAITING, values)
    message = None
    if count.before >= max_waiting:
        message = f"At most {max_waiting} responses may wait in a row"
    elif count.beside >= MAX_BESIDE:
        message = f"At most {MAX_BESIDE} responses may wait for the same one"
    if message is not None:
        raise InvalidRequest(
            f"{message}. Send this request later.",
            param="previous_response_id",
            code="too_many_waiting_responses",
        )


async def pending_steers(pool: Pool, continuation: Continuation) -> list[PendingSteer]:
    """The steers that wait for the create which continues this response."""
    if not continuation.was_steered:
        return []
    return await fetch_idempotent(pool, PENDING_STEERS, {"id": continuation.previous})


async def conversation_row(
    pool: Pool, project: UUID, public_id: str, items: list[Item]
) -> ConversationRow:
    """The row of the conversation `conv_…` in this project, and which of the items it has.

    Raises NotFound.
    """
    row = await find_by_id(
        pool,
        conversations.READ,
        parse_conversation_id(public_id),
        project=project,
        item_ids=[item["id"] for item in items],
    )
    if row is None:
        raise NotFound(
            f"Conversation with id '{public_id}' not found.", code="conversation_not_found"
        )
    return row


def conversation_locked() -> InvalidRequest:
    """Another response of the conversation is open.

    OpenAI's text; not 409, which the SDK would retry at once.
    """
    return InvalidRequest(
        "Another process is currently operating on this conversation. "
        "Please retry in a few seconds.",
        param="conversation",
        code="conversation_locked",
    )


async def _previous_row(
    pool: Pool, project: UUID, public_id: str, unstored_ids: Collection[UUID]
) -> PreviousResponse:
    response_id = parse_response_id(public_id)
    row = await find_by_id(
        pool,
        PREVIOUS_RESPONSE,
        response_id,
        project=project,
        include_unstored=response_id in unstored_ids,
    )
    if row is None:
        raise InvalidRequest(
            f"Previous response with id '{public_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return row


async def resolve_references(
    pool: Pool, project: UUID, items: list[Item], max_bytes: int, where: str = "input"
) -> list[Item]:
    """The items, with each reference replaced by the item it names, at most `max_bytes` of them.

    `where` is the name of the list in the request. Raises InvalidRequest.
    """
    ids = referenced_ids(items)
    if not ids:
        return items
    rows = await fetch_idempotent(
        pool, REFERENCED_ITEMS, {"ids": ids, "project": project, "max_bytes": max_bytes}
    )
    items_by_id = {row.id: row.payload for row in rows if row.payload is not None}
    if any(row.payload is None for row in rows):
        raise InvalidRequest(
            f"The items that '{where}' refers to are larger than {max_bytes} bytes together.",
            param=where,
            code="input_too_large",
        )
    return substitute_references(items, items_by_id, where)
