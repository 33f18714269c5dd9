"""Times that lie in the future because the clock of the database was set back.

What waits for such a time would wait for as long as the clock was set back. The purge moves each of
them to the present. Which time is impossible is known from how it is made: of a row that nobody has
tried, and of the moment at which a response was enqueued, nothing is later than now; a batch rests
for half a minute at most. Leases of processes are judged by the watch (models/db/queries/leases.py).
"""

from models.db.queries.common import OPEN
from models.db.statement import column
from models.lifecycle import BACKLOG, IN_LINE, PLACE_IN_LINE

LATEST = "(statement_timestamp() + interval '5 seconds')"
"""A transaction that set a time may have begun later than this statement. No time of an event is
later."""

REPAIR_RESPONSES = column(
    f"""
    WITH early AS MATERIALIZED (
        SELECT r.id FROM responses r WHERE {IN_LINE} AND {PLACE_IN_LINE} > {LATEST} AND r.enqueued_at > {LATEST}
          AND (r.attempt > 0 OR r.confirmed)
        UNION
        SELECT r.id FROM responses r WHERE r.worker IS NULL AND r.status IN {OPEN} AND NOT {BACKLOG}
          AND r.enqueued_at > {LATEST} AND (r.attempt > 0 OR r.confirmed)
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
