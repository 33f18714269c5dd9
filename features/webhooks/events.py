"""The events that endpoints receive, in OpenAI's form, with signatures of Standard Webhooks
(https://www.standardwebhooks.com)."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import orjson

from models.secrets import Sealed, Sealer

_PREFIX = "whsec_"
_SECRET_BYTES = 32


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


def new_secret() -> str:
    """A new signing secret: `whsec_` and 32 random bytes in base64."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signed_headers(
    signing_secrets: Sequence[str], event: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """The headers of one delivery. During a rotation it has a signature with each secret.

    `event`: the id of the event. `timestamp`: of this try, in seconds; receivers refuse old ones.
    """
    signed = b"%b.%d.%b" % (event.encode(), timestamp, body)
    signatures = (
        base64.b64encode(hmac.digest(_key(secret), signed, hashlib.sha256)).decode()
        for secret in signing_secrets
    )
    return {
        "webhook-id": event,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(_PREFIX))


_HINT = 4
"""Characters of a secret that are shown."""


def seal_secrets(sealer: Sealer, endpoint: UUID, signing_secrets: Sequence[str]) -> Sealed:
    """`signing_secrets`: the newest one first. Raises NoKey."""
    return sealer.seal(endpoint, {"secrets": list(signing_secrets)})


def open_secrets(sealer: Sealer, endpoint: UUID, sealed: Sealed) -> list[str]:
    """The newest one first. Raises Unreadable."""
    opened: list[str] = sealer.open(endpoint, sealed)["secrets"]
    return opened


def secret_hint(secret: str) -> str:
    """By what an owner knows a secret again: its end."""
    return f"whsec_…{secret[-_HINT:]}"
