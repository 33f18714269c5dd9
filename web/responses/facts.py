"""What a row says about a response, and the events that follow from it alone.

It imports little: the command line cancels responses as this process does.
"""

from uuid import UUID

from models.db.queries.read import ResponseRow
from models.ids import conversation_id, response_id
from models.lifecycle import Status
from models.wire.events import ResponseCreated, ResponseFailed, ResponseQueued, frame
from models.wire.response import ResponseFacts, response_object


def opening_event_types(
    *, background: bool
) -> tuple[type[ResponseCreated] | type[ResponseQueued], ...]:
    """The types of a response's first events, which are stored together with it."""
    return (ResponseCreated, ResponseQueued) if background else (ResponseCreated,)


def facts_from_row(row: ResponseRow) -> ResponseFacts:
    """The facts of a row. Clients see a foreground response in the queue as `in_progress`."""
    previous, conversation = row.previous_response_id, row.conversation_id
    hidden = row.status == Status.QUEUED and not row.background
    return ResponseFacts(
        id=response_id(row.id),
        created_at=row.created_at,
        status=Status.IN_PROGRESS.value if hidden else row.status,
        model=row.model,
        parameters=row.parameters,
        background=row.background,
        store=row.store,
        previous_response_id=response_id(previous) if previous is not None else None,
        conversation_id=conversation_id(conversation) if conversation is not None else None,
        usage=row.usage,
        error=row.error,
        incomplete_reason=row.reason,
        completed_at=row.completed_at,
        service_tier=row.service_tier,
    )


def cancel_values(
    row: ResponseRow, reason: str, now: int, waiter: UUID | None = None
) -> dict[str, object]:
    """The parameters of the statements that cancel a response (models/db/queries/end.py).

    `reason` is stored with a response that ends at once, at `now`, in whole seconds since the
    epoch. `waiter`: the connection that has ended, if that is the reason.
    """
    facts = facts_from_row(row).evolve(status=Status.CANCELLED.value)
    number = len(opening_event_types(background=row.background))
    return {
        "id": row.id,
        "completed_at": now,
        "reason": reason,
        "number": number,
        "frames": frame(ResponseFailed(response_object(facts, [])), number),
        "waiter": waiter,
    }
