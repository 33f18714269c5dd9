"""Which processes are alive: the rows of `workers`, and who declares them dead."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from models.db.queries.common import ABANDONED, FENCE
from models.db.statement import Query, Statement, column

REGISTER = Statement("""
    INSERT INTO workers (id, kind, host, pid, expires_at) VALUES (:me, :kind, :host, :pid, clock_timestamp() + CAST(:lease AS interval))
""")
"""Inserts the row of a process that starts. The id is new at every start."""

MARK_JOURNAL = Statement(f"""
    WITH {FENCE}
    INSERT INTO journal (worker, batch, response_ids, attempts, first_numbers, last_numbers, frames)
    SELECT id, 0, '{{}}', '{{}}', '{{}}', '{{}}', '{{}}' FROM me ON CONFLICT DO NOTHING
""")
"""Inserts batch 0 of this worker's journal. The table is UNLOGGED: a crash of Postgres empties it.
While batch 0 exists, that has not happened."""


@dataclass(frozen=True, slots=True)
class RenewedLease:
    """The lease after a heartbeat."""

    draining: bool
    """an operator wants this process to hand over its responses and to stop"""


RENEW = Query(
    """
    UPDATE workers SET expires_at = clock_timestamp() + CAST(:lease AS interval) WHERE id = :me AND NOT dead
    RETURNING drain_requested_at IS NOT NULL AS draining
    """,
    RenewedLease,
)
"""The heartbeat: extends this process's lease. No row: the process was declared dead."""


@dataclass(frozen=True, slots=True)
class OwnedResponse:
    """A response that the database counts as this worker's, and what others requested of it."""

    id: UUID
    attempt: int
    cancelled: bool
    failed: bool
    """an operator wants it to end as failed"""
    requeued: bool
    """an operator wants another worker to run it"""
    abandoned: bool
    """the web process whose client waits for it is dead"""


OWNED_RESPONSES = Query(
    f"""
    SELECT r.id, r.attempt, r.cancel_requested_at IS NOT NULL AS cancelled, r.fail_requested_at IS NOT NULL AS failed,
           r.requeue_requested_at IS NOT NULL AS requeued, {ABANDONED} AS abandoned
    FROM responses r WHERE r.worker = :me AND r.status = 'in_progress'
    """,
    OwnedResponse,
)
"""Selects the responses of this worker, which compares them with what it runs."""


@dataclass(frozen=True, slots=True)
class ExpiredLease:
    """A process that did not renew its lease in time and is not declared dead yet."""

    id: UUID
    expires_at: datetime


EXPIRED_LEASES = Query(
    "SELECT id, expires_at FROM workers WHERE NOT dead AND expires_at < clock_timestamp() ORDER BY id",
    ExpiredLease,
)
REAP_LOCK = column(
    """
    SELECT id FROM workers WHERE id = :id AND NOT dead AND expires_at = :seen AND expires_at < clock_timestamp() FOR UPDATE
    """,
    UUID,
)
"""Locks the row of a process that is to be declared dead. No row: it has renewed its lease since
`expires_at` was `seen`, or another sweep was first."""
REAP = Statement("UPDATE workers SET dead = true, ended = :ended WHERE id = :id")
"""Declares the process dead, in the transaction that holds REAP_LOCK. Its fenced writes change
nothing from now on."""
SET_LOCK_TIMEOUT = Statement("SET LOCAL lock_timeout = '500ms'")
"""For the rest of the transaction: how long REAP_LOCK waits for a row lock."""
SET_HEARTBEAT_TIMEOUT = Statement("SET statement_timeout = '1500ms'")
"""For the heartbeat's session: it must notice early that Postgres does not answer."""
SET_JOURNAL_COMMIT = Statement("SET synchronous_commit = off")
"""For the journal's session: the row lock of the fence would otherwise cost a disk sync with each
batch. The journal is UNLOGGED, so it does not survive a crash of Postgres in any case."""
END_SESSIONS = column(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name AND pid <> pg_backend_pid()",
    bool,
)
"""Ends the sessions of a process by its application name. A process that was stopped (SIGSTOP) with
half a transaction in its socket holds locks that no timeout ends."""
DEREGISTER = Statement(
    "UPDATE workers SET dead = true, ended = 'stopped' WHERE id = :me AND NOT dead"
)
"""Marks the row of a process that stops and has released everything."""


@dataclass(frozen=True, slots=True)
class LiveCount:
    """How many processes of a kind (`worker`, `quarantine`, `web`) have a valid lease."""

    kind: str
    live: int


LIVE_PIDS = column(
    """
    SELECT pid FROM workers
    WHERE pid = ANY(CAST(:pids AS int[])) AND started_at >= :since AND NOT dead AND expires_at > clock_timestamp()
    """,
    int,
)
"""Selects those of the process ids `pids` that registered at or after `since` and have a valid
lease."""
NOW = column("SELECT clock_timestamp() AS now", datetime)
LIVE_WORKERS = Query(
    "SELECT kind, count(*) AS live FROM workers WHERE NOT dead AND expires_at > clock_timestamp() GROUP BY kind",
    LiveCount,
)
