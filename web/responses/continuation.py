"""What a new response goes on from: another response, or a conversation (design §11, chaining; contract §5)."""

from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

from models.db.database import Pool, Row, read
from models.db.queries import conversations, statements
from models.errors import InvalidRequest, NotFound
from models.ids import parse_conversation_id, parse_response_id
from models.lifecycle import NEXT, Status
from models.wire.events import Item
from models.wire.items import duplicate
from models.wire.request import CreateRequest


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of it before the create; of a conversation, as of one `revision`."""

    previous: UUID | None = None
    conversation: UUID | None = None
    revision: int | None = None
    open_calls: list[str] = field(default_factory=list)
    """The ids of the calls that must be answered first."""
    taken: frozenset[str] = frozenset()
    """Those of the input's item ids that the conversation has."""

    def require_new(self, items: list[Item]) -> None:
        """An item stands in a conversation once: the list could not be paged else. Raises InvalidRequest(param="input")."""
        for item in items:
            if item["id"] in self.taken:
                raise duplicate(item["id"], "input")


async def past_of(
    pool: Pool, project: UUID, request: CreateRequest, remembered: Collection[UUID] = ()
) -> Past:
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
            raise locked()
        return Past(
            conversation=row["id"],
            revision=row["revision"],
            open_calls=row["unanswered_calls"],
            taken=frozenset(row["taken"]),
        )
    if request.previous_response_id is None:
        return Past()
    row = await _previous(pool, project, request.previous_response_id, remembered)
    return Past(previous=row["id"], open_calls=row["unanswered_calls"])


async def conversation_row(pool: Pool, project: UUID, named: str, items: list[Item]) -> Row:
    """The conversation behind `conv_…`, as `conversations.READ` gives it. Raises NotFound: another project's is none."""
    wanted = parse_conversation_id(named)
    values = {"id": wanted, "project": project, "item_ids": [item["id"] for item in items]}
    found = await read(pool, conversations.READ, values) if wanted is not None else []
    if not found:
        raise NotFound(f"Conversation with id '{named}' not found.", code="conversation_not_found")
    return found[0]


def locked() -> InvalidRequest:
    """Somebody else is at work in the conversation. The words are OpenAI's (contract §5.1); no 409, which the SDK would try again."""
    message = "Another process is currently operating on this conversation. Please retry in a few seconds."
    return InvalidRequest(message, param="conversation", code="conversation_locked")


async def _previous(pool: Pool, project: UUID, named: str, remembered: Collection[UUID]) -> Row:
    wanted = parse_response_id(named)
    values = {"id": wanted, "project": project, "remembered": wanted in remembered}
    found = await read(pool, statements.PREVIOUS, values) if wanted is not None else []
    if not found:
        raise InvalidRequest(
            f"Previous response with id '{named}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if Status(found[0]["status"]) in NEXT:
        raise InvalidRequest(
            f"Previous response with id '{named}' has not finished yet.",
            param="previous_response_id",
            code="previous_response_not_ready",
        )
    return found[0]
