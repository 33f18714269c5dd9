"""The events that endpoints receive, in OpenAI's form."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import orjson


class EventType(StrEnum):
    """What has happened. The names of the statuses of a response follow `response.`: a trigger
    makes them of the column `responses.status` (migrations/functions.sql). Those of a batch follow
    `batch.`: the statement that ends it makes them (features/batches/queries.py)."""

    RESPONSE_COMPLETED = "response.completed"
    RESPONSE_FAILED = "response.failed"
    RESPONSE_INCOMPLETE = "response.incomplete"
    RESPONSE_CANCELLED = "response.cancelled"
    BATCH_COMPLETED = "batch.completed"
    BATCH_FAILED = "batch.failed"
    BATCH_EXPIRED = "batch.expired"
    BATCH_CANCELLED = "batch.cancelled"


TEST_OBJECT = "resp_" + 32 * "0"
"""The response that a test event names: there is none."""


def event_id(value: UUID) -> str:
    """An event's id as endpoints see it: `evt_<32 hex>`. The same in every try and for every
    endpoint."""
    return f"evt_{value.hex}"


def event_body(event: UUID, event_type: str, created_at: datetime, object_id: str) -> bytes:
    """The body of a delivery: the same bytes in every try. Only the id of the response is sent; the
    receiver reads the response with its key."""
    return orjson.dumps(
        {
            "id": event_id(event),
            "object": "event",
            "created_at": int(created_at.timestamp()),
            "type": event_type,
            "data": {"id": object_id},
        }
    )
