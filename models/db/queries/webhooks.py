"""Endpoints of webhooks and the deliveries to them. A trigger of `responses` makes deliveries
(migration 0015)."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from models.db.statement import Query, Statement, column


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery that this worker tries now."""

    id: UUID
    attempts: int
    """with this try; the number that a result must carry"""
    event_id: UUID
    type: str
    object_id: str
    created_at: datetime
    endpoint_id: UUID
    project_id: UUID
    url: str
    secret_key_id: str
    secrets: bytes
    has_old_secret: bool
    """a rotation is going on: sign with both secrets"""


TAKE_DELIVERIES = Query(
    """
    WITH ready AS (
             SELECT id, CASE WHEN failures > 0 THEN 1 ELSE CAST(:at_once AS int) END AS room FROM webhook_endpoints
             WHERE disabled_at IS NULL AND (paused_until IS NULL OR paused_until <= clock_timestamp()) AND id <> ALL (CAST(:busy AS uuid[]))),
         due AS (
             SELECT waiting.id FROM ready CROSS JOIN LATERAL (
                 SELECT d.id FROM webhook_deliveries d WHERE d.endpoint_id = ready.id AND d.next_attempt_at <= clock_timestamp()
                 ORDER BY d.next_attempt_at LIMIT ready.room FOR UPDATE SKIP LOCKED) waiting
             LIMIT :free)
    UPDATE webhook_deliveries d SET attempts = d.attempts + 1, next_attempt_at = clock_timestamp() + CAST(:lease AS interval)
    FROM due, webhook_endpoints e WHERE d.id = due.id AND e.id = d.endpoint_id
    RETURNING d.id, d.attempts, d.event_id, d.type, d.object_id, d.created_at, e.id AS endpoint_id, e.project_id, e.url, e.secret_key_id, e.secrets,
              coalesce(e.old_secret_until > clock_timestamp(), false) AS has_old_secret
    """,
    Delivery,
)
"""Takes due deliveries for as long as the lease: if this worker dies, another one tries them then.
At most `at_once` of an endpoint, one of an endpoint whose last try failed, none of those in `busy`:
so a slow endpoint holds few of the tries that run at a time."""

DELIVERED = Statement("""
    WITH delivered AS (UPDATE webhook_deliveries SET delivered_at = clock_timestamp(), next_attempt_at = NULL, last_status = :status, last_error = NULL
                       WHERE id = :id)
    UPDATE webhook_endpoints SET failures = 0, failing_since = NULL, paused_until = NULL WHERE id = :endpoint AND failures > 0
""")
"""The endpoint has accepted it, whichever try that was."""


@dataclass(frozen=True, slots=True)
class EndpointState:
    """An endpoint after a failure."""

    is_disabled: bool
    failures: int


NOT_DELIVERED = Query(
    """
    WITH failed AS (UPDATE webhook_deliveries
                    SET next_attempt_at = CASE WHEN created_at + CAST(:expiry AS interval) > clock_timestamp() THEN clock_timestamp() + CAST(:pause AS interval) END,
                        last_status = :status, last_error = :error
                    WHERE id = :id AND attempts = :attempts AND delivered_at IS NULL)
    UPDATE webhook_endpoints
    SET failures = failures + 1, failing_since = coalesce(failing_since, clock_timestamp()),
        paused_until = clock_timestamp() + least(power(2, least(failures, 10)), CAST(:longest_pause AS int)) * interval '1 s',
        disabled_at = CASE WHEN :is_gone OR failing_since < clock_timestamp() - CAST(:disable_after AS interval) THEN clock_timestamp() END,
        disabled_reason = CASE WHEN :is_gone THEN 'it answered 410 Gone' ELSE 'all tries have failed for days' END
    WHERE id = :endpoint AND disabled_at IS NULL
    RETURNING disabled_at IS NOT NULL AS is_disabled, failures
    """,
    EndpointState,
)
"""A try has failed. The delivery waits for `pause`, or is given up after `expiry`. The endpoint gets
nothing for a second, doubled with each failure in a row, and is disabled if it is gone or has
failed for `disable_after`. No row: it was disabled before. A later try of another worker keeps its own
result."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint as operators see it."""

    id: UUID
    project: str
    url: str
    types: list[str]
    created_at: datetime
    disabled_at: datetime | None
    disabled_reason: str | None
    failures: int
    failing_since: datetime | None
    waiting: int
    """deliveries that are to be tried"""
    secret_key_id: str
    secrets: bytes


_ENDPOINT = """e.id, p.name AS project, e.url, e.types, e.created_at, e.disabled_at, CASE WHEN e.disabled_at IS NOT NULL THEN e.disabled_reason END AS disabled_reason,
           e.failures, e.failing_since,
           (SELECT count(*) FROM webhook_deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at IS NOT NULL)::int AS waiting, e.secret_key_id, e.secrets"""
LIST_ENDPOINTS = Query(
    f"""
    SELECT {_ENDPOINT} FROM webhook_endpoints e JOIN projects p ON p.id = e.project_id
    WHERE CAST(:project AS text) IS NULL OR p.name = :project ORDER BY e.created_at
    """,
    Endpoint,
)
INSERT_ENDPOINT = column(
    """
    INSERT INTO webhook_endpoints (id, project_id, url, types, secret_key_id, secrets)
    SELECT :id, id, :url, :types, :secret_key_id, :secrets FROM projects WHERE name = :project AND archived_at IS NULL RETURNING id
    """,
    UUID,
)
"""No row: there is no such project."""
ROTATE_SECRET = Statement("""
    UPDATE webhook_endpoints SET secret_key_id = :secret_key_id, secrets = :secrets, old_secret_until = clock_timestamp() + CAST(:overlap AS interval) WHERE id = :id
""")
SET_ENABLED = Statement("""
    UPDATE webhook_endpoints SET disabled_at = CASE WHEN NOT :enabled THEN coalesce(disabled_at, clock_timestamp()) END, disabled_reason = 'an operator has disabled it',
           failures = 0, failing_since = NULL, paused_until = NULL WHERE id = :id
""")
DELETE_ENDPOINT = Statement("DELETE FROM webhook_endpoints WHERE id = :id")
"""Its deliveries are deleted with it."""
INSERT_DELIVERY = Statement("""
    INSERT INTO webhook_deliveries (id, endpoint_id, event_id, type, object_id) VALUES (:id, :endpoint, :event_id, :type, :object_id)
""")
"""A test event."""


@dataclass(frozen=True, slots=True)
class ListedDelivery:
    """A delivery as operators see it."""

    id: UUID
    endpoint_id: UUID
    event_id: UUID
    type: str
    object_id: str
    created_at: datetime
    attempts: int
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    last_status: int | None
    last_error: str | None


LIST_DELIVERIES = Query(
    """
    SELECT id, endpoint_id, event_id, type, object_id, created_at, attempts, next_attempt_at, delivered_at, last_status, last_error FROM webhook_deliveries
    WHERE (CAST(:endpoint AS uuid) IS NULL OR endpoint_id = :endpoint) AND (NOT :failed OR delivered_at IS NULL)
    ORDER BY created_at DESC LIMIT :limit
    """,
    ListedDelivery,
)
RESEND = column(
    """
    UPDATE webhook_deliveries SET next_attempt_at = clock_timestamp(), delivered_at = NULL, created_at = clock_timestamp() WHERE event_id = :event_id RETURNING id
    """,
    UUID,
)
"""Tries all deliveries of an event again, with the same id. No row: there is no such event."""
DELETE_OLD_DELIVERIES = column(
    """
    DELETE FROM webhook_deliveries WHERE id IN (
        SELECT id FROM webhook_deliveries WHERE created_at < clock_timestamp() - CAST(:retention AS interval) LIMIT :rows) RETURNING id
    """,
    UUID,
)
OLDEST_DELIVERY = column(
    "SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float FROM webhook_deliveries d "
    "WHERE next_attempt_at IS NOT NULL AND EXISTS (SELECT FROM webhook_endpoints e WHERE e.id = d.endpoint_id AND e.disabled_at IS NULL)",
    float,
)
"""Seconds for which the oldest delivery has waited."""
