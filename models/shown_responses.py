"""A response that is stored, as the object that clients see."""

from collections.abc import Collection
from typing import Any

from models.db.queries.read import ResponseRow
from models.ids import conversation_id, response_id
from models.lifecycle import TERMINAL, Status
from models.wire.events import Item
from models.wire.response import ResponseFacts, filter_items, response_object, without_images


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
        upstream_fields=row.upstream_fields,
        retried_by=None if row.retried_by is None else response_id(row.retried_by),
    )


def shown_object(
    row: ResponseRow, items: list[Item], include: Collection[str] = ()
) -> dict[str, Any]:
    """The Response object with this output. `include`: values of this request, in addition to those
    of the create."""
    visible = filter_items(items, {*include, *row.parameters.get("include", ())})
    if row.status not in TERMINAL:
        visible = without_images(visible)
    return response_object(facts_from_row(row), visible)
