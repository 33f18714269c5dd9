"""What a new response goes on from: another response, or a conversation (design §11, chaining; contract §5)."""

from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

from models.db.database import Pool, Row, read
from models.db.queries import conversations, statements
from models.errors import InvalidRequest, NotFound
from models.ids import parse_conversation_id, parse_response_id
from models.lifecycle import TRANSITIONS, Status
from models.wire.events import Item
from models.wire.items import duplicate_item
from models.wire.request import CreateRequest


@dataclass(frozen=True, slots=True)
class Continuation:
    """What is known of it before the create; of a conversation, as of one `revision`."""

    previous: UUID | None = None
    conversation: UUID | None = None
    revision: int | None = None
    open_calls: list[str] = field(default_factory=list)
    """The ids of the calls that must be answered first."""
    existing_item_ids: frozenset[str] = frozenset()
    """Those of the input's item ids that the conversation has."""

    def require_new(self, items: list[Item]) -> None:
        """An item stands in a conversation once: the list could not be paged else. Raises InvalidRequest(param="input")."""
        for item in items:
            if item["id"] in self.existing_item_ids:
                raise duplicate_item(item["id"], "input")


async def load_continuation(
    pool: Pool, project: UUID, request: CreateRequest, unstored_ids: Collection[UUID] = ()
) -> Continuation:
    """The past of a response. `remembered`: unstored responses that it may go on from all the same.

    Raises InvalidRequest or NotFound, naming the parameter.
    """
    if request.conversation is not None:
        try:
            row = await conversation_row(pool, project, request.conversation, request.input)
        except NotFound as error:
            error.param = "conversation"
            raise
        if row["is_busy"]:
            raise conversation_locked()
        return Continuation(
            conversation=row["id"],
            revision=row["revision"],
            open_calls=row["unanswered_calls"],
            existing_item_ids=frozenset(row["taken"]),
        )
    if request.previous_response_id is None:
        return Continuation()
    row = await _previous_row(pool, project, request.previous_response_id, unstored_ids)
    return Continuation(previous=row["id"], open_calls=row["unanswered_calls"])


async def conversation_row(pool: Pool, project: UUID, public_id: str, items: list[Item]) -> Row:
    """The conversation behind `conv_…`, as `conversations.READ` gives it. Raises NotFound: another project's is none."""
    conversation_id = parse_conversation_id(public_id)
    values = {"id": conversation_id, "project": project, "item_ids": [item["id"] for item in items]}
    rows = await read(pool, conversations.READ, values) if conversation_id is not None else []
    if not rows:
        raise NotFound(
            f"Conversation with id '{public_id}' not found.", code="conversation_not_found"
        )
    return rows[0]


def conversation_locked() -> InvalidRequest:
    """Somebody else is at work in the conversation. The words are OpenAI's (contract §5.1); no 409, which the SDK would try again."""
    message = "Another process is currently operating on this conversation. Please retry in a few seconds."
    return InvalidRequest(message, param="conversation", code="conversation_locked")


async def _previous_row(
    pool: Pool, project: UUID, public_id: str, unstored_ids: Collection[UUID]
) -> Row:
    response_id = parse_response_id(public_id)
    values = {"id": response_id, "project": project, "remembered": response_id in unstored_ids}
    rows = await read(pool, statements.PREVIOUS_RESPONSE, values) if response_id is not None else []
    if not rows:
        raise InvalidRequest(
            f"Previous response with id '{public_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if Status(rows[0]["status"]) in TRANSITIONS:
        raise InvalidRequest(
            f"Previous response with id '{public_id}' has not finished yet.",
            param="previous_response_id",
            code="previous_response_not_ready",
        )
    return rows[0]
