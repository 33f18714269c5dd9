"""What the operator's commands read and request (`backburner explain`, `stuck`, `workers`,
`requeue`, `fail`, `drain`), and the figures of `/metrics` and `/readyz`.

An operator's command changes no response itself. A request is a column. The owner acts on it at its
next heartbeat; without an owner, the next sweep does. Times come back as Postgres has them,
durations in seconds.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from models.db.queries.common import (
    LAST_FAILURES,
    NOT_DEFERRED,
    OPEN,
    RETRYING,
    STOPPED,
    journal_of,
)
from models.db.statement import Query, column
from models.lifecycle import IN_LINE, QUARANTINE_THRESHOLD, TERMINAL, OperatorStatus
from models.time_text import seconds_between

_CRASHES = "r.crashes + (w.dead IS TRUE)::int"
"""Owners of `r` that crashed since its last checkpoint, with its present owner `w` if that is
dead."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that owns a response, dead or alive."""

    id: UUID
    kind: str
    host: str
    pid: int
    dead: bool
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class ResponseState:
    """A response, its owner, and when it last made progress."""

    id: UUID
    status: str
    background: bool
    model: str
    attempt: int
    turns: int
    enqueue_count: int
    """how often it was put into the queue again since it was last released"""
    created_at: datetime
    started_at: datetime | None
    enqueued_at: datetime
    deadline: datetime
    resume_at: datetime | None
    """deferred: not claimed before this time, except to end it"""
    waits: bool | None
    """for the end of its previous response"""
    upstream: str | None
    previous_response_id: UUID | None
    conversation_id: UUID | None
    cancel_requested_at: datetime | None
    fail_requested_at: datetime | None
    requeue_requested_at: datetime | None
    delete_requested_at: datetime | None
    completed_at: datetime | None
    reason: str | None
    error: dict[str, Any] | None
    failed_upstream: str | None
    """that it waits for, or that it failed with (models/db/tables)"""
    retrying_since: datetime | None
    failed_tries: int
    crashes: int
    """owners that crashed since the last checkpoint, a dead owner without a successor included"""
    worker: UUID | None
    """the owner; the columns from `kind` to `expires_at` are the owner's, null without one"""
    kind: str | None
    host: str | None
    pid: int | None
    dead: bool | None
    expires_at: datetime | None
    now: datetime
    progressed_at: datetime
    """when it was created, claimed, released, or when events were stored, whichever was last; of one
    that is `retrying`, when an upstream failed first: tries in vain are no progress"""
    failures: list[dict[str, Any]] | None
    """of the last attempt that called an upstream in vain, while it is `retrying`: those that failed,
    each with `upstream`, `reason` and `message`; it waits for the last one"""

    @property
    def is_retrying(self) -> bool:
        """Whether it waits for an upstream that has failed: none has answered it since."""
        return self.failed_upstream is not None and self.status not in TERMINAL

    @property
    def operator_status(self) -> str:
        """Its `OperatorStatus`."""
        return OperatorStatus.RETRYING if self.is_retrying else self.status

    @property
    def owner(self) -> Owner | None:
        """The owner; None for a response that no process owns."""
        if self.worker is None or self.kind is None or self.host is None or self.pid is None:
            return None
        if self.dead is None or self.expires_at is None:
            return None
        return Owner(self.worker, self.kind, self.host, self.pid, self.dead, self.expires_at)


_COLUMNS = f"""
    r.id, r.status, r.background, r.model, r.attempt, r.turns, r.enqueue_count, r.created_at, r.started_at,
    r.enqueued_at, r.deadline,
    r.resume_at, r.waits, r.upstream, r.previous_response_id, r.conversation_id,
    r.cancel_requested_at, r.fail_requested_at, r.requeue_requested_at, r.delete_requested_at, r.completed_at,
    r.reason, r.error, r.failed_upstream, r.retrying_since, r.failed_tries,
    {_CRASHES} AS crashes, r.worker, w.kind, w.host, w.pid, w.dead, w.expires_at,
    clock_timestamp() AS now, progress.at AS progressed_at, progress.failures"""

_STATE = f"""
    SELECT {_COLUMNS}
    FROM responses r LEFT JOIN workers w ON w.id = r.worker
    CROSS JOIN LATERAL (
        SELECT CASE WHEN {RETRYING} THEN r.retrying_since ELSE greatest(
                   r.created_at, (SELECT e.stored_at FROM event_log e WHERE e.response_id = r.id
                                  ORDER BY e.first_number DESC LIMIT 1),
                   last.claimed_at, last.ended_at) END AS at,
               CASE WHEN {RETRYING} THEN {LAST_FAILURES} ELSE last.failures END AS failures
        FROM (SELECT) one
        LEFT JOIN LATERAL (SELECT a.claimed_at, a.ended_at, a.failures FROM attempts a WHERE a.response_id = r.id
                           ORDER BY a.attempt DESC LIMIT 1) last ON true
    ) progress
"""

STATE = Query(f"{_STATE} WHERE r.id = :id", ResponseState)
"""Selects a response for an operator. No row: there is none of that id."""
MADE_BY_REQUEST = column(
    "SELECT id FROM responses WHERE request_id = :request_id ORDER BY id LIMIT :max_rows", UUID
)
"""Selects the first responses that a request made: a WebSocket makes many. No row: it made none, or
they are deleted."""

STUCK = Query(
    f"""
    SELECT * FROM ({_STATE} WHERE r.status IN {OPEN} AND (r.waits IS NULL OR r.fail_requested_at IS NOT NULL)) open
    WHERE progressed_at < now - CAST(:idle AS interval) ORDER BY progressed_at, id LIMIT :max_rows
    """,
    ResponseState,
)
"""Selects the open responses without progress for longer than `idle`, the longest first; not those
that wait for their previous one. Tries that fail are no progress."""


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """A claim, and how the attempt ended."""

    attempt: int
    worker: UUID
    kind: str
    host: str
    pid: int
    claimed_at: datetime
    turns_ended_at: list[datetime]
    """of each turn that another followed"""
    outcome: str | None
    """None: it runs, or it has ended the response"""
    ended_at: datetime | None
    failures: list[dict[str, Any]] | None
    """as in ResponseState"""


ATTEMPTS = Query(
    """
    SELECT attempt, worker, kind, host, pid, claimed_at, turns_ended_at,
           outcome, ended_at, failures
    FROM attempts WHERE response_id = :id ORDER BY attempt
    """,
    AttemptRow,
)
"""Selects the attempts of a response."""


@dataclass(frozen=True, slots=True)
class LogSummary:
    """What an attempt has written to the event log."""

    attempt: int
    blocks: int
    first: int
    last: int
    bytes: int
    first_at: datetime | None
    last_at: datetime | None
    longest_pause: float | None
    """between two flushes, in seconds"""


LOG_SUMMARY = Query(
    """
    SELECT attempt, count(*) AS blocks, min(first_number) AS first, max(last_number) AS last,
           sum(size)::bigint AS bytes,
           min(stored_at) AS first_at, max(stored_at) AS last_at, extract(epoch FROM max(pause))::float AS longest_pause
    FROM (SELECT attempt, first_number, last_number, octet_length(frames) AS size, stored_at,
                 stored_at - lag(stored_at) OVER (PARTITION BY attempt ORDER BY first_number) AS pause
          FROM event_log WHERE response_id = :id) block
    GROUP BY attempt ORDER BY attempt
    """,
    LogSummary,
)


@dataclass(frozen=True, slots=True)
class LastJournalled:
    """The last event that readers have received and no flush has stored yet; None: there is
    none."""

    last: int | None


LAST_JOURNALLED = Query(
    f"""
    SELECT max(j.last_numbers[p.n]) AS last
    FROM responses r JOIN workers w ON w.id = r.worker {journal_of("r.id")}
    WHERE r.id = :id
    """,
    LastJournalled,
)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A process, and how many responses it owns."""

    id: UUID
    kind: str
    host: str
    pid: int
    started_at: datetime
    expires_at: datetime
    dead: bool
    ended: str | None
    drain_requested_at: datetime | None
    now: datetime
    running: int
    slots: int | None
    """null: it states none"""
    version: str | None
    """the release that it runs; null: it does not state it"""

    @property
    def state(self) -> str:
        """`live`, `draining`, `silent` (its lease has expired, and it was not reaped yet),
        `stopped` (it ended by itself, and had released everything) or `dead`."""
        if self.dead:
            return "stopped" if self.ended == STOPPED else "dead"
        if self.expires_at < self.now:
            return "silent"
        return "draining" if self.drain_requested_at else "live"

    @property
    def age_seconds(self) -> float:
        """Since its start."""
        return round(seconds_between(self.started_at, self.now), 3)

    @property
    def lease_seconds(self) -> float:
        """The time that is left of its lease; negative after its end."""
        return round((self.expires_at - self.now).total_seconds(), 3)


WORKERS = Query(
    """
    SELECT w.id, w.kind, w.host, w.pid, w.started_at, w.expires_at, w.dead, w.ended, w.drain_requested_at,
           clock_timestamp() AS now,
           (SELECT count(*) FROM responses r WHERE r.worker = w.id) AS running, w.slots, w.version
    FROM workers w
    WHERE NOT w.dead OR w.expires_at > clock_timestamp() - CAST(:since AS interval)
          OR EXISTS (SELECT 1 FROM responses r WHERE r.worker = w.id)
    ORDER BY w.dead, w.kind, w.started_at
    """,
    WorkerRow,
)
"""Selects the live processes, and those dead ones whose lease ran out within `since` or that still
own responses."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A response of which something was requested. `worker`: its owner, or None."""

    worker: UUID | None


REQUEST_REQUEUE = Query(
    f"""
    UPDATE responses SET requeue_requested_at = coalesce(requeue_requested_at, clock_timestamp())
    WHERE id = :id AND status IN {OPEN} AND cancel_requested_at IS NULL AND fail_requested_at IS NULL AND waits IS NULL
    RETURNING worker
    """,
    RecordedRequest,
)
"""Records that another worker is to run the response. The owner releases it at its next heartbeat;
without an owner the next sweep enqueues it. No row: it has ended, a cancel or fail is recorded, or
it waits for its previous response."""

REQUEST_CANCEL = Query(
    f"""
    UPDATE responses SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp())
    WHERE id = :id AND status IN {OPEN} RETURNING worker
    """,
    RecordedRequest,
)
"""Records that the response is to be cancelled. Without an owner the next sweep ends it. No row: it
has ended."""

REQUEST_FAIL = Query(
    f"""
    UPDATE responses SET fail_requested_at = coalesce(fail_requested_at, clock_timestamp())
    WHERE id = :id AND status IN {OPEN} AND cancel_requested_at IS NULL RETURNING worker
    """,
    RecordedRequest,
)
"""Records that the response is to end as failed. The owner ends it at its next heartbeat; without
an owner the next sweep does. No row: it has ended, or a cancel is recorded."""


@dataclass(frozen=True, slots=True)
class FoundProcess:
    """A process that a name may mean."""

    id: UUID
    kind: str
    host: str
    pid: int
    dead: bool


FIND_WORKERS = Query(
    """
    SELECT w.id, w.kind, w.host, w.pid, w.dead FROM workers w
    WHERE w.host = :name OR replace(w.id::text, '-', '') LIKE CAST(:prefix AS text) || '%' ORDER BY w.dead, w.started_at
    """,
    FoundProcess,
)
"""Selects the processes with this host's name, or whose id begins with `prefix` (hex digits)."""

REQUEST_DRAIN = column(
    """
    UPDATE workers SET drain_requested_at = coalesce(drain_requested_at, clock_timestamp())
    WHERE id = ANY(:ids) AND NOT dead RETURNING id
    """,
    UUID,
)
"""Records that these processes are to hand over their responses and stop, as on SIGTERM. Each sees
it at its next heartbeat."""

STILL_RUNNING = column("SELECT id FROM workers WHERE id = ANY(:ids) AND NOT dead", UUID)
"""Selects those of the processes `ids` that are not dead yet."""


@dataclass(frozen=True, slots=True)
class BacklogRow:
    """Open responses with the same queue, lane, status, `waiting` and `retrying`."""

    queue: str
    lane: int
    status: str
    waiting: bool
    """no live worker owns them, and one may claim them now"""
    retrying: bool
    """they wait for an upstream that has failed; those that are `waiting` too may be tried now"""
    responses: int
    oldest: float
    """seconds since a worker might have claimed the first of them"""
    overdue: int
    """of them, those whose completion window has ended"""

    @property
    def is_in_line(self) -> bool:
        """Whether they wait for nothing but a worker."""
        return self.waiting and not self.retrying


_DUE_AT = """CASE WHEN r.worker IS NOT NULL THEN w.expires_at
                 WHEN r.enqueue_count = 0 THEN greatest(r.enqueued_at, r.resume_at)
                 ELSE coalesce((SELECT a.ended_at FROM attempts a WHERE a.response_id = r.id
                                ORDER BY a.attempt DESC LIMIT 1), r.created_at) END"""
"""Since when a worker might have claimed response `r`, which no live worker owns: since the death of
its owner `w`, its creation or release, or the end of its pause. One that was enqueued again has
another `enqueued_at`."""


def _backlog(source: str) -> Query[BacklogRow]:
    return Query(
        f"""
        SELECT CASE WHEN {_CRASHES} >= {QUARANTINE_THRESHOLD} THEN 'quarantine' WHEN r.background THEN 'background'
            ELSE 'interactive' END AS queue,
               r.lane, r.status, (r.status = 'queued' OR r.worker IS NULL OR w.dead IS TRUE)
                 AND {NOT_DEFERRED} AS waiting, r.failed_upstream IS NOT NULL AS retrying,
               count(*) AS responses,
               greatest(extract(epoch FROM clock_timestamp() - min({_DUE_AT})), 0)::float AS oldest,
               count(*) FILTER (WHERE r.window_ends_at <= clock_timestamp()) AS overdue
        FROM {source} r LEFT JOIN workers w ON w.id = r.worker WHERE r.status IN {OPEN} GROUP BY 1, 2, 3, 4, 5
        """,
        BacklogRow,
    )


GAUGES = _backlog("responses")
"""Counts the open responses, with the partial index of open rows: ended ones cost nothing."""
OLDEST_BACKLOG = _backlog(
    f"(SELECT * FROM responses WHERE status IN {OPEN} ORDER BY deadline LIMIT :max_rows)"
)
"""The same of the open responses with the earliest deadlines, which are the oldest."""


@dataclass(frozen=True, slots=True)
class RetryingResponses:
    """The responses that wait for one upstream, which has failed."""

    upstream: str
    responses: int
    oldest: float
    """seconds since the first of these failures"""


RETRYING_BY_UPSTREAM = Query(
    f"""
    SELECT r.failed_upstream AS upstream, count(*) AS responses,
           greatest(extract(epoch FROM clock_timestamp() - min(r.retrying_since)), 0)::float AS oldest
    FROM responses r WHERE {RETRYING} GROUP BY r.failed_upstream
    """,
    RetryingResponses,
)
"""Counts the responses that are `retrying`. It reads an index that has no others."""

OPEN_COUNT = column(
    f"""
    SELECT count(*) FROM (SELECT 1 FROM responses r WHERE r.status IN {OPEN} ORDER BY r.deadline LIMIT :max_rows) open
    """,
    int,
)
"""Counts the open responses, at most `max_rows`."""


@dataclass(frozen=True, slots=True)
class WaitingProject:
    """How many responses of a project wait for a slot."""

    project: str
    """its id"""
    responses: int


WAITING_PROJECTS = Query(
    f"""
    SELECT r.project_id::text AS project, count(*) AS responses FROM responses r WHERE {IN_LINE} GROUP BY r.project_id
    ORDER BY 2 DESC LIMIT :max_rows
    """,
    WaitingProject,
)
"""Counts the responses that wait for a slot, of the projects with most of them. It reads all of the
line."""

DATABASE_BYTES = column("SELECT pg_database_size(current_database()) AS bytes", int)
"""The size of the database's files, indexes included. Postgres asks the file system for the size of
each."""

SCHEMA_REVISION = column("SELECT version_num FROM alembic_version", str)
"""The newest migration that this database has."""
OLDEST_COMPATIBLE_REVISION = column("SELECT oldest_revision FROM schema_compatibility", str)
"""The oldest migration whose release still runs on this database."""
