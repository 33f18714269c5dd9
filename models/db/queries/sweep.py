"""Responses without a live owner: which of them a sweep enqueues again, and which it claims
itself."""

from dataclasses import dataclass
from uuid import UUID

from models.db.queries.common import (
    ABANDONED,
    CRASHES_OF_ORPHAN,
    CREATE_IS_SETTLED,
    NOT_DEFERRED,
    OPEN,
    ORPHAN,
)
from models.db.statement import Query, column
from models.lifecycle import BACKLOG, CRASHES_ALONE, IN_LINE, PLACE_IN_LINE, QUARANTINE_THRESHOLD


@dataclass(frozen=True, slots=True)
class ReenqueuedResponse:
    """A response for which a Celery message is to be sent."""

    id: UUID
    background: bool
    crashes: int
    """owners that crashed since the last checkpoint"""


_OVERDUE = (
    f"(SELECT * FROM responses r WHERE r.status IN {OPEN} AND r.deadline <= now() OFFSET 0) r WHERE true",
    "r.deadline",
)
"""The part of the backlog whose deadline has passed, and its order."""


IS_DUE = column(
    f"""
    SELECT (SELECT true FROM responses WHERE worker IS NULL AND status IN {OPEN} AND NOT {BACKLOG}
            ORDER BY enqueued_at LIMIT 1) IS NOT NULL
        OR (SELECT true FROM responses WHERE {IN_LINE}
            ORDER BY background, lane, project_id, {PLACE_IN_LINE} LIMIT 1) IS NOT NULL
        OR (SELECT true FROM responses WHERE status IN {OPEN} AND deadline <= now()
            ORDER BY deadline LIMIT 1) IS NOT NULL
        OR EXISTS (SELECT 1 FROM workers o CROSS JOIN LATERAL (
                       SELECT 1 FROM responses r
                       WHERE r.worker = o.id AND r.status IN {OPEN} LIMIT 1) r WHERE o.dead)
    """,
    bool,
)
"""Whether the other statements of a sweep can find anything: most of the time nothing waits. Each
part is the first row of an index that has only such rows: the order keeps PostgreSQL from reading
the table."""


def _orphans(
    condition: str, max_rows: str, *backlog: tuple[str, str], order: str = "r.enqueued_at"
) -> str:
    """Selects `r.id` of the orphans `r` for which this condition holds: the first `max_rows` by
    `order`.

    Of the backlog these parts are read: it may be large, and each worker sweeps every two seconds.
    What waits for a slot is claimed in its turn (models/db/queries/line.py). The other responses
    without an owner have an index, and so have those of dead owners: the responses that live
    processes run cost nothing. Each `OFFSET 0` keeps Postgres from reading an index of all open
    responses: while they are few that is cheap, and it may keep the plan."""
    columns = "r.id, r.enqueued_at, r.crashes, r.worker"
    limit = f"ORDER BY {order} LIMIT {max_rows}"
    parts = "".join(
        f"""
            UNION
            (SELECT {columns} FROM {source} AND r.worker IS NULL AND {BACKLOG} AND {CREATE_IS_SETTLED}
             ORDER BY {column} LIMIT {max_rows})"""
        for source, column in backlog
    )
    return f"""
        SELECT r.id FROM (
            (SELECT {columns} FROM responses r
             WHERE r.worker IS NULL AND r.status IN {OPEN} AND NOT {BACKLOG} AND {CREATE_IS_SETTLED}
               AND {condition} {limit})
            UNION
            (SELECT {columns} FROM workers o CROSS JOIN LATERAL (SELECT * FROM responses r
                                                                 WHERE r.worker = o.id OFFSET 0) r
             WHERE o.dead AND r.status IN {OPEN} AND {condition} {limit}){parts}) r {limit}"""


_MESSAGE_IS_OLD = """r.enqueued_at + CAST(:interval AS interval)
    * power(2, least(r.enqueue_count, 6)) < clock_timestamp()"""
_NOT_IN_LINE = "(r.worker IS NOT NULL OR r.crashes > 0)"
"""Workers find those in line without a message (models/db/queries/line.py)."""
_MAY_BE_ENQUEUED = f"""(r.requeue_requested_at IS NOT NULL
          OR {NOT_DEFERRED}
            AND CASE WHEN {CRASHES_OF_ORPHAN} >= {QUARANTINE_THRESHOLD} THEN CAST(:quarantine AS boolean)
                                     WHEN r.background THEN CAST(:background AS boolean)
                                         ELSE CAST(:interactive AS boolean) END
          AND {_MESSAGE_IS_OLD} AND {_NOT_IN_LINE}
          AND NOT EXISTS (SELECT 1 FROM workers o WHERE o.id = r.worker
                          AND o.expires_at + CAST(:interval AS interval) > clock_timestamp()))"""

REENQUEUE = Query(
    f"""
    WITH candidate AS MATERIALIZED ({_orphans(_MAY_BE_ENQUEUED, "200")}),
         unowned AS MATERIALIZED (
             SELECT r.id, r.background, {CRASHES_OF_ORPHAN} AS crashes FROM candidate
             JOIN responses r ON r.id = candidate.id
             WHERE r.status IN {OPEN} AND {ORPHAN} AND {_MAY_BE_ENQUEUED} FOR UPDATE OF r SKIP LOCKED)
    UPDATE responses SET enqueued_at = clock_timestamp(), enqueue_count = responses.enqueue_count + 1,
           requeue_requested_at = NULL, resume_at = NULL
    FROM unowned WHERE responses.id = unowned.id
    RETURNING responses.id, unowned.background, unowned.crashes
    """,
    ReenqueuedResponse,
)
"""Marks up to 200 open responses without a live owner as enqueued again: those an operator
requeued, and those that are not in line and whose last Celery message is too old. The limit on its
age doubles with each message. `interactive`, `background`, `quarantine`: whether that queue is
short. Behind many other messages a row's message is not lost, it waits. The responses of a dead
worker are not enqueued before the sweeps had time to claim them: not until its lease has been over
for `interval`."""

_ONLY_TO_END = f"""(r.cancel_requested_at IS NOT NULL OR r.fail_requested_at IS NOT NULL
                    OR r.deadline <= clock_timestamp()
           OR {ABANDONED} OR {CRASHES_OF_ORPHAN} > {CRASHES_ALONE})"""
"""An orphan that is claimed only to be ended: `EndReason` in models/ownership/claims.py."""

ORPHANS_TO_END = column(_orphans(_ONLY_TO_END, ":max_rows", _OVERDUE), UUID)
"""Selects what a sweep may claim only to end it. That takes no slot of a run, so a full worker does
it too."""

_MAY_BE_CLAIMED = f"""(r.status = 'in_progress' AND {NOT_DEFERRED} OR r.cancel_requested_at IS NOT NULL
                       OR r.deadline <= clock_timestamp() OR {ABANDONED}
           OR {NOT_DEFERRED} AND r.enqueued_at < clock_timestamp() - CAST(:waiting AS interval)
           OR r.fail_requested_at IS NOT NULL OR r.requeue_requested_at IS NOT NULL)
      AND (CAST(:quarantine AS boolean) = ({CRASHES_OF_ORPHAN} >= {QUARANTINE_THRESHOLD})
           OR r.cancel_requested_at IS NOT NULL
           OR r.fail_requested_at IS NOT NULL OR r.deadline <= clock_timestamp()
             OR {CRASHES_OF_ORPHAN} > {CRASHES_ALONE})
      AND (CAST(:in_line AS boolean) OR {_NOT_IN_LINE})"""

ORPHANS = column(
    _orphans(
        _MAY_BE_CLAIMED,
        ":max_rows",
        _OVERDUE,
        order=f"CASE WHEN CAST(:quarantine AS boolean) THEN {CRASHES_OF_ORPHAN} END DESC, r.enqueued_at",
    ),
    UUID,
)
"""Selects what a sweep may claim without a Celery message: responses of crashed workers, those that
are only to be ended, and foreground ones that have been in the queue for longer than `waiting`.
`in_line`: also those that wait in line, after a release. `quarantine`:
the sweeping worker is a quarantine worker, and gets those with the most crashes first, so that a
group which is halved stays together. One that is only to be ended goes to any worker."""
