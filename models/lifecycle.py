"""The statuses of a response and the changes between them.

The table becomes the WHERE clause: each change is one UPDATE whose WHERE names the statuses it may
leave (`sources_of`). No code reads a status, decides, and then writes. So a cancel, an ending and a
recovery race in the database, and exactly one of them succeeds. A claim is not in the table: it
also claims an `in_progress` row whose owner is dead (models/db/queries/claim.py)."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Status(StrEnum):
    """A response's status, as in the API."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class OperatorStatus(StrEnum):
    """A response's status as operators see it: that of the API, but one that waits for an upstream
    that has failed is `retrying`, and not `in_progress`."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    RETRYING = "retrying"
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

BACKLOG = (
    "(status = 'queued' AND background AND cancel_requested_at IS NULL"
    " AND fail_requested_at IS NULL AND requeue_requested_at IS NULL)"
)
"""As SQL, of a response without an owner: it only waits for a worker. There may be very many."""

ONE_OPEN_PER_CONVERSATION = "uq_responses_conversation_running"
"""The unique index that allows one open response in a conversation."""


class Lane(IntEnum):
    """Which waiting responses go first, by the service tier of the request and its completion
    window (ADR 0041, ADR 0072). The numbers are stored; `LANE_ORDER` is their order."""

    PRIORITY = 0
    DEFAULT = 1
    FLEX = 2
    BATCH = 3
    WINDOW_2H = 4
    WINDOW_8H = 5


LANE_ORDER = (
    *(Lane.PRIORITY, Lane.DEFAULT, Lane.FLEX),
    *(Lane.WINDOW_2H, Lane.WINDOW_8H, Lane.BATCH),
)
"""The lanes, the first one first. From WINDOW_2H on they have only background responses, each with
the end of its window."""


_LANES = {"priority": Lane.PRIORITY, "flex": Lane.FLEX}


def lane_of(service_tier: str | None) -> Lane:
    """The lane of a request with this `service_tier`."""
    return _LANES.get(service_tier or "", Lane.DEFAULT)


IN_LINE = (
    "(worker IS NULL AND status IN ('queued', 'in_progress') AND crashes = 0"
    " AND cancel_requested_at IS NULL AND fail_requested_at IS NULL)"
)
"""As SQL, of a response: it waits for a slot, or until it may have one. No owner of it has crashed,
and it is not only to be ended. They have an index of their own (models/db/tables)."""
PLACE_IN_LINE = "coalesce(resume_at, started_at, enqueued_at)"
"""As SQL, of a response in line: it is before those of its project and lane with a later time. Not
before this time, if it is deferred. One that was released goes before those that never ran. A
follow-up has a `resume_at` before it came (ADR 0072)."""

NEVER = "timestamptz '9999-01-01 00:00+00'"
"""As SQL: `resume_at` of a response that waits for its previous one (ADR 0073). So it is behind all
others in line, and no worker claims it, not even one of a release that does not know the column
`waits`. Its `deadline` is later than that by the time that it may be in line afterwards: the end of
the previous one moves both to the present (migrations/functions.sql)."""

ATTEMPTS_PER_TIMELINE = 100_000
"""Numbers of attempts on one timeline of Postgres (docs/architecture.md, "Leases, attempts,
recovery"); a response has far fewer attempts."""

QUARANTINE_THRESHOLD = 2
"""After so many crashes of its owners since its last checkpoint, a response is a *suspect*: it runs
only in a quarantine worker, in a small group."""
LARGEST_GROUP = 16
"""Suspects that a quarantine worker runs together after `QUARANTINE_THRESHOLD` crashes. Each crash
more halves the group."""
CRASHES_ALONE = QUARANTINE_THRESHOLD + LARGEST_GROUP.bit_length() - 1
"""After so many crashes since its last checkpoint, a suspect runs alone. One crash more was its
own, and the response has failed (ADR 0022)."""
CRASHES_FINAL = 8
"""After so many crashes since its last finished turn, those that were forgotten included, a suspect
runs alone to its end. One crash more was its own."""


@dataclass(frozen=True, slots=True)
class Crashes:
    """How often an attempt at a response ended with a crash of its worker."""

    since_checkpoint: int
    """since the last checkpoint, or since they were forgotten (run.FORGET_CRASHES)"""
    in_turn: int
    """since the last finished turn: none of them is ever forgotten"""

    @property
    def is_suspect(self) -> bool:
        """Whether only a quarantine worker runs the response."""
        return self.since_checkpoint >= QUARANTINE_THRESHOLD

    @property
    def group_size(self) -> int:
        """How many suspects may run together in a worker while this one is among them."""
        if self.is_final:
            return 1
        return max(1, LARGEST_GROUP >> (self.since_checkpoint - QUARANTINE_THRESHOLD))

    @property
    def is_final(self) -> bool:
        """Whether the crashes are not forgotten any more, however long the suspect runs alone."""
        return self.in_turn >= CRASHES_FINAL

    @property
    def is_fatal(self) -> bool:
        """Whether the last of them happened while the response ran alone: it has failed.

        A suspect with `CRASHES_ALONE` or `CRASHES_FINAL` crashes runs alone. So one crash more
        happened to a worker that ran nothing else."""
        return self.since_checkpoint > CRASHES_ALONE or (
            self.since_checkpoint > QUARANTINE_THRESHOLD and self.in_turn > CRASHES_FINAL
        )

    @property
    def has_crashed_ending(self) -> bool:
        """Whether a worker has also crashed while it ended the response after `is_fatal`."""
        return self.since_checkpoint > CRASHES_ALONE + 1 or (
            self.is_fatal and self.in_turn > CRASHES_FINAL + 1
        )


NO_CRASHES = Crashes(since_checkpoint=0, in_turn=0)


def sources_of(target: Status) -> list[str]:
    """The statuses that may change to `target`, sorted."""
    return sorted(status.value for status, targets in TRANSITIONS.items() if target in targets)
