"""Times that lie in the future because the clock of the database was set back.

What waits for such a time would wait for as long as the clock was set back. The purge moves each of
them to the present. Which time is impossible is known from how it is made: of a row that nobody has
tried, and of the moment at which a response was enqueued, nothing is later than now; a batch rests
for half a minute at most. Leases of processes are judged by the watch (models/db/queries/leases.py).
"""

from models.db.queries.common import OPEN
from models.db.statement import column
from models.lifecycle import BACKLOG, IN_LINE, PLACE_IN_LINE

_LATEST = "(statement_timestamp() + interval '5 seconds')"
"""A transaction that set a time may have begun later than this statement. No time of an event is
later."""

REPAIR_RESPONSES = column(
    f"""
    WITH early AS MATERIALIZED (
        SELECT r.id FROM responses r WHERE {IN_LINE} AND {PLACE_IN_LINE} > {_LATEST} AND r.enqueued_at > {_LATEST}
          AND (r.attempt > 0 OR r.confirmed)
        UNION
        SELECT r.id FROM responses r WHERE r.worker IS NULL AND r.status IN {OPEN} AND NOT {BACKLOG}
          AND r.enqueued_at > {_LATEST} AND (r.attempt > 0 OR r.confirmed)
        LIMIT :rows)
    UPDATE responses r SET enqueued_at = statement_timestamp(),
           resume_at = statement_timestamp() + (r.resume_at - r.enqueued_at),
           started_at = least(r.started_at, statement_timestamp())
    FROM early WHERE r.id = early.id AND r.worker IS NULL RETURNING 1 AS repaired
    """,
    int,
)
"""Responses that wait. A deferred one waits from now on. Not those whose wake-up no worker has read:
their web process may have answered with 503, and what it knows depends on these times (I9)."""
_RESTS = "statement_timestamp() + interval '1 minute'"
REPAIR_BATCHES = column(
    f"""
    UPDATE batches SET collector_until = least(collector_until, clock_timestamp()),
           expander_until = least(expander_until, clock_timestamp())
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling')
      AND (collector_until > {_RESTS} OR expander_until > {_RESTS}) RETURNING 1 AS repaired
    """,
    int,
)
REPAIR_ENTRIES = column(
    f"""
    UPDATE vector_store_files SET next_attempt_at = clock_timestamp()
    WHERE status = 'in_progress' AND delete_requested_at IS NULL AND next_attempt_at > {_LATEST} AND attempts = 0
    RETURNING 1 AS repaired
    """,
    int,
)
"""Files of vector stores that no worker has taken yet."""
REPAIR_DELIVERIES = column(
    f"""
    UPDATE webhook_deliveries SET next_attempt_at = clock_timestamp() WHERE next_attempt_at > {_LATEST} AND attempts = 0
    RETURNING 1 AS repaired
    """,
    int,
)
"""Deliveries that were never tried."""
REPAIR_ENDPOINTS = column(
    """
    UPDATE webhook_endpoints SET paused_until = NULL
    WHERE paused_until > statement_timestamp() + CAST(:longest_pause AS int) * interval '1 s' RETURNING 1 AS repaired
    """,
    int,
)
"""Endpoints that would get nothing for longer than `longest_pause` seconds."""

REPAIRS = (REPAIR_RESPONSES, REPAIR_BATCHES, REPAIR_ENTRIES, REPAIR_DELIVERIES, REPAIR_ENDPOINTS)
