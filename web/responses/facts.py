"""What a row says about a response, and the events that follow from it alone.

It imports little: the command line cancels responses as this process does.
"""

from uuid import UUID

from models.db.queries.read import ResponseRow
from models.lifecycle import Status
from models.shown_responses import facts_from_row
from models.wire.events import ResponseCreated, ResponseFailed, ResponseQueued, frame
from models.wire.response import response_object


def opening_event_types(
    *, background: bool
) -> tuple[type[ResponseCreated] | type[ResponseQueued], ...]:
    """The types of a response's first events, which are stored together with it."""
    return (ResponseCreated, ResponseQueued) if background else (ResponseCreated,)


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
