"""The statuses of a response and the changes between them.

The table becomes the WHERE clause: each change is one UPDATE whose WHERE names the statuses it may
leave (`sources_of`). No code reads a status, decides, and then writes. So a cancel, an ending and a
recovery race in the database, and exactly one of them succeeds. A claim is not in the table: it
also claims an `in_progress` row whose owner is dead (models/db/queries/claim.py)."""

from enum import StrEnum


class Status(StrEnum):
    """A response's status, as in the API."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.IN_PROGRESS, Status.FAILED, Status.CANCELLED}),
    Status.IN_PROGRESS: frozenset(
        {Status.COMPLETED, Status.INCOMPLETE, Status.FAILED, Status.CANCELLED}
    ),
}
"""status -> the statuses that may follow. A status that is no key here is terminal and never
changes (I3)."""

TERMINAL = frozenset(status for status in Status if status not in TRANSITIONS)


QUARANTINE_THRESHOLD = 2
"""After so many crashes of its owners since its last checkpoint, a response runs only in a
quarantine worker, which runs one response at a time. After one crash more it has failed (I5)."""


def sources_of(target: Status) -> list[str]:
    """The statuses that may change to `target`, sorted."""
    return sorted(status.value for status, targets in TRANSITIONS.items() if target in targets)
