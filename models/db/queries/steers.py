"""Steers: user input that arrives while a response runs, and the successor that has it as input
(ADR 0075).

A steer is *queued* while its response runs. The ending of the response, in one transaction, makes
it input of a successor (*committed*), or keeps it until the client has sent the outputs of its
tools (*pending*). Whatever else ends the response makes it *failed* (migrations/functions.sql).
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.db.queries.common import FENCE, INSERT_INTO_LOG, insert_items
from models.db.queries.run import OWNED
from models.db.statement import Query, Statement, column


@dataclass(frozen=True, slots=True)
class QueuedSteer:
    """A steer of a running response. There is one without items if it has none."""

    steers: int
    """how many steers the response has"""
    items: list[dict[str, Any]] | None


QUEUED_STEERS = Query(
    """
    SELECT r.steers, s.items FROM responses r LEFT JOIN steers s ON s.response_id = r.id AND s.state = 'queued'
    WHERE r.id = :id ORDER BY s.number
    """,
    QueuedSteer,
)
"""Selects what was sent to a response while it ran, in order. No row: it was deleted."""

_STEERED = f"""{FENCE},
     steered AS MATERIALIZED (SELECT r.* FROM responses r, me
                              WHERE {OWNED} AND r.cancel_requested_at IS NULL AND r.steers = CAST(:steers AS int)
                              FOR NO KEY UPDATE OF r)"""
_COMMITTED = "state = 'committed', settled_at = clock_timestamp()"

SUCCEED = column(
    f"""
    WITH {_STEERED},
         successor AS (INSERT INTO responses (
                           id, project_id, status, background, store, model, parameters, previous_response_id,
                           created_at, expires_at, deadline, enqueued_at, web, waiter, traceparent, request_id,
                           api_key_id, kept_for, lane, window_ends_at, urgent_at, continuation_id)
                       SELECT CAST(:successor AS uuid), project_id, 'queued', background, store, model,
                              coalesce(CAST(:parameters AS json), parameters), id,
                              to_timestamp(:created_at), clock_timestamp() + (expires_at - created_at),
                              clock_timestamp() + CAST(:queue_wait AS interval), clock_timestamp(), web, waiter,
                              traceparent, request_id, api_key_id, kept_for, lane,
                              clock_timestamp() + (window_ends_at - created_at),
                              clock_timestamp() + (urgent_at - created_at), continuation_id
                       FROM steered RETURNING id),
         stored AS ({insert_items("successor", response="successor.id")}),
         logged AS ({INSERT_INTO_LOG}
                    SELECT id, 0, CAST(:last AS int), 0, CAST(:frames AS bytea) FROM successor),
         secrets AS (INSERT INTO job_secrets (response_id, key_id, sealed)
                     SELECT id, :key_id, CAST(:sealed AS bytea) FROM successor WHERE CAST(:key_id AS text) IS NOT NULL),
         committed AS (UPDATE steers s SET {_COMMITTED}, successor_id = successor.id, input = NULL, items = NULL
                       FROM successor
                       WHERE s.response_id = CAST(:id AS uuid) AND s.state = 'queued')
    SELECT id FROM successor
    """,
    UUID,
)
"""In the transaction that ends a response of this worker, before END: inserts its successor, with
the same settings and with the steers as input. `items`: those of all steers, of which there are
still `steers`. No row: there are others by now; or see OWNERSHIP_STATE."""

KEEP_STEERS = column(
    f"""
    WITH {_STEERED},
         kept AS (UPDATE steers s SET state = 'pending', required_input = CAST(:required_input AS jsonb) FROM steered
                  WHERE s.response_id = steered.id AND s.state = 'queued')
    SELECT id FROM steered
    """,
    UUID,
)
"""The same for a response that ends with calls of the client's tools or requests of approval: its
steers wait for the create that answers these. No row: as SUCCEED."""


@dataclass(frozen=True, slots=True)
class PendingSteer:
    """A steer that waits for the create which continues its response."""

    id: UUID
    items: list[dict[str, Any]]


PENDING_STEERS = Query(
    "SELECT id, items FROM steers WHERE response_id = :id AND state = 'pending' ORDER BY number",
    PendingSteer,
)
"""Selects the pending steers of a response, in order."""

COMMIT_PENDING = column(
    f"""
    UPDATE steers SET {_COMMITTED}, successor_id = :successor
    WHERE response_id = :id AND id = ANY(CAST(:steers AS uuid[])) AND state = 'pending' RETURNING id
    """,
    UUID,
)
"""In the transaction that stores the create which continues the response: its input begins with
these steers. One without a row: another create has it. The input is kept for RETURN_VOIDED."""

RETURN_VOIDED = Statement("""
    UPDATE steers SET state = 'pending', successor_id = NULL, settled_at = NULL FROM responses r
    WHERE steers.successor_id = ANY(CAST(:ids AS uuid[])) AND steers.state = 'committed'
      AND r.id = steers.successor_id AND r.reason = 'create_refused'
""")
"""After VOID_UNCLEAR_CREATES: the steers of these creates wait for the next one. It is a statement
of its own because the snapshot of that one is older than the rows of the creates' transactions."""
