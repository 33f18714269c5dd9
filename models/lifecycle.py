"""The states of a response and the moves between them: a table, and the table becomes the WHERE clause.

Nobody reads a status, decides, and writes another: every move is one UPDATE whose WHERE names the states it may leave
(`sources_of`), so that a cancel, an ending and a recovery race in the database and exactly one wins. A claim is no such move:
it also takes an `in_progress` row whose owner is dead (models/ownership/claims.py).
"""

from enum import StrEnum


class Status(StrEnum):
    """A response's status, as the API spells it."""

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
"""status -> the statuses it may become; a status that is no key here is terminal and never changes (I3)."""

TERMINAL = frozenset(status for status in Status if status not in TRANSITIONS)


QUARANTINE_THRESHOLD = 2
"""After so many crashes of its owners since its last checkpoint, a response runs only in a quarantine
worker, which runs one response at a time. After one crash more it has failed (I5)."""


def sources_of(target: Status) -> list[str]:
    """The statuses a row may leave for `target`, sorted, as a WHERE clause wants them."""
    return sorted(status.value for status, targets in TRANSITIONS.items() if target in targets)
