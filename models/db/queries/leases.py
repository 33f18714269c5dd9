"""Which processes are alive: the rows of `workers`, and who declares them dead."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from models.db.queries.common import ABANDONED, FENCE, OPEN, STOPPED
from models.db.statement import Query, Statement, column

REGISTER = column(
    """
    INSERT INTO workers (id, kind, host, pid, slots, version, expires_at, settled_at)
    VALUES (:me, :kind, :host, :pid, :slots, :version, clock_timestamp() + CAST(:lease AS interval),
            CASE WHEN CAST(:kind AS text) = 'web' THEN clock_timestamp() END)
    RETURNING clock_timestamp() AS now
    """,
    datetime,
)
"""Inserts the row of a process that starts, and returns the database's time. The id is new at every
start. A web process has sent no create yet, so all that were dated before now have a known
outcome."""

MARK_JOURNAL = Statement(f"""
    WITH {FENCE}
    INSERT INTO journal (worker, batch, response_ids, attempts, first_numbers, last_numbers, frames)
    SELECT id, 0, '{{}}', '{{}}', '{{}}', '{{}}', '{{}}' FROM me ON CONFLICT DO NOTHING
""")
"""Inserts batch 0 of this worker's journal. The table is UNLOGGED: a crash of Postgres empties it.
While batch 0 exists, that has not happened."""


TIMELINE = column(
    "SELECT ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int AS timeline",
    int,
)
"""The timeline on which this server writes. An error on a standby that is not promoted."""


def _tie_key(process: str) -> str:
    """The key of the advisory lock that a process holds. `process`: an expression for its id."""
    return f"hashtextextended(CAST({process} AS text), 0)"


@dataclass(frozen=True, slots=True)
class WatchedProcess:
    """A process that is not declared dead, as another process sees it."""

    id: UUID
    kind: str
    expires_at: datetime
    expired: bool
    """its lease has run out"""
    untied: bool
    """it was tied, and the session that held the lock has ended"""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "WatchedProcess":
        """Of an object of WATCHED."""
        return cls(
            UUID(values["id"]),
            values["kind"],
            datetime.fromisoformat(values["expires_at"]),
            values["expired"],
            values["untied"],
        )


class Look(StrEnum):
    """Which other processes a heartbeat looks at."""

    NONE = "none"
    NEIGHBOURS = "neighbours"
    """the next few, and the first ones, which are next to the last ones"""
    ALL = "all"


NO_LOOK = {"takes_seat": False, "look": Look.NONE.value}
"""The values of a heartbeat that does not look."""
_HAS_EXPIRED = "(expires_at < clock_timestamp() OR expires_at > clock_timestamp() + 2 * CAST(:lease AS interval))"
"""The lease has run out, or was not renewed since the clock of the database was set back."""
_NEIGHBOURS = 3
_SEATS = 3
WATCHED = f"""
    (SELECT coalesce(jsonb_agg(jsonb_build_object(
            'id', id, 'kind', kind, 'expires_at', expires_at, 'expired', {_HAS_EXPIRED},
            'untied', CASE WHEN tied THEN pg_try_advisory_xact_lock_shared({_tie_key("id")}) ELSE false END
        ) ORDER BY id), '[]')
     FROM workers WHERE NOT dead AND id <> :me AND (CAST(:look AS text) = '{Look.ALL}'
       OR id IN ((SELECT id FROM workers WHERE NOT dead AND id > :me ORDER BY id LIMIT {_NEIGHBOURS})
                 UNION ALL (SELECT id FROM workers WHERE NOT dead ORDER BY id LIMIT {_NEIGHBOURS}))))
"""
"""An expression: the other processes that are not declared dead, those of `look`, as JSON. A lock that
is free is taken shared, so that processes which look at the same time see the same, and only until
the statement ends."""


@dataclass(frozen=True, slots=True)
class RenewedLease:
    """The lease after a heartbeat."""

    draining: bool
    """an operator wants this process to hand over its responses and to stop"""
    now: datetime
    """the database's time, after the renewal was sent and before its answer was received"""
    access_revision: int
    """how many changes of projects and keys there were"""
    seat: int | None
    """of those who watch all processes, which this session has taken now and holds until it ends;
    None: it was not to take one, or all are taken"""
    watched: list[dict[str, Any]] | None
    """WATCHED; None: the heartbeat does not look"""
    has_open: bool
    """a response is open somewhere; always false for a web process"""


_HAS_OPEN = f"""(SELECT true FROM responses WHERE status IN {OPEN} AND deadline < 'infinity'
                 ORDER BY deadline LIMIT 1) IS NOT NULL"""


def _renew(more: str, has_open: str) -> Query[RenewedLease]:
    return Query(
        f"""
        UPDATE workers SET expires_at = clock_timestamp() + CAST(:lease AS interval) {more}
        WHERE id = :me AND NOT dead AND set_config('synchronous_commit', 'off', true) IS NOT NULL
        RETURNING drain_requested_at IS NOT NULL AS draining, clock_timestamp() AS now,
            (SELECT number FROM access_revision) AS access_revision,
            CASE WHEN CAST(:takes_seat AS bool) THEN (
                SELECT seat FROM generate_series(1, {_SEATS}) AS s (seat)
                WHERE pg_try_advisory_lock(hashtextextended('watch ' || current_schema() || seat, 0)) LIMIT 1
            ) END AS seat,
            CASE WHEN CAST(:look AS text) <> '{Look.NONE}' THEN {WATCHED} END AS watched,
            {has_open} AS has_open
        """,
        RenewedLease,
    )


RENEW = _renew("", _HAS_OPEN)
"""The heartbeat: extends this process's lease, and looks at others. No row: the process was declared
dead. Its commit does not wait for the disk: after a crash of Postgres the lease is at most 0.6 s
older, and the process renews it at once. Two flushes a second of each process were most of what an
idle one costs."""
RENEW_WEB = _renew(
    ", settled_at = greatest(settled_at, CAST(:settled_at AS timestamp with time zone))", "false"
)
"""RENEW of a web process. It also stores the time before which all its creates have a known outcome
(models/ownership/creates.py)."""


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


LOCK_TIE = column(f"SELECT pg_advisory_lock({_tie_key(':me')}) IS NOT NULL AS locked", bool)
"""Takes the lock of this process's tie, which its session holds until it ends. Waits for an earlier
session of this process that the server has not ended yet."""
MARK_TIED = Statement("UPDATE workers SET tied = true WHERE id = :me AND NOT tied")
"""Records that this process has held the lock of its tie: from now on a free lock means that its
session has ended."""


REAP_LOCK_FENCE = column("SELECT lock_fence(:id) IS NOT NULL AS locked", bool)
"""Waits until no statement of this process is within its fence, and lets none in until the
transaction ends."""
REAP_LOCK_EXPIRED = column(
    f"""
    SELECT id FROM workers WHERE id = :id AND NOT dead AND expires_at = :seen AND {_HAS_EXPIRED} FOR UPDATE
    """,
    UUID,
)
"""Locks the row of a process that is to be declared dead because its lease ran out. No row: it has
renewed its lease since `expires_at` was `seen`, or another process was first."""
REAP_LOCK_UNTIED = column(
    f"""
    SELECT id FROM workers WHERE id = :id AND NOT dead AND expires_at = :seen AND tied
      AND pg_try_advisory_xact_lock_shared({_tie_key("id")}) FOR UPDATE
    """,
    UUID,
)
"""Locks the row of a process that is to be declared dead because its session ended. No row: it has
renewed its lease since `expires_at` was `seen`, it is tied again, or another process was first."""
REAP = Statement(
    "UPDATE workers SET dead = true, ended = :ended, expires_at = least(expires_at, clock_timestamp()) WHERE id = :id"
)
"""Declares the process dead, in the transaction that has locked its row. Its fenced writes change
nothing from now on."""
LISTEN_FOR_ORPHANS = Statement("LISTEN backburner_orphans")
"""For the session of the watch."""
NOTIFY_ORPHANS = Statement("NOTIFY backburner_orphans")
"""Notifies all workers that responses may have lost their owner, or that clients may have lost their
web process: a process was declared dead, or handed its responses over."""
SET_LOCK_TIMEOUT = Statement("SET LOCAL lock_timeout = '500ms'")
"""For the rest of the transaction: how long each of the REAP_LOCK_… waits."""
SET_HEARTBEAT_TIMEOUT = Statement("SET statement_timeout = '1500ms'")
"""For the heartbeat's session: it must notice early that Postgres does not answer."""
SET_JOURNAL_COMMIT = Statement("SET synchronous_commit = off")
"""For the journal's session. The journal is UNLOGGED, so it does not survive a crash of Postgres in
any case, and no batch has to wait for the disk."""
END_SESSIONS = column(
    """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE starts_with(application_name, :name) AND pid <> pg_backend_pid()
    """,
    bool,
)
"""Ends the sessions of a process by its application name, which is its id; PgBouncer may add the
client's address. A process that was stopped (SIGSTOP) with
half a transaction in its socket holds locks that no timeout ends."""
DEREGISTER = Statement(
    f"UPDATE workers SET dead = true, ended = '{STOPPED}' WHERE id = :me AND NOT dead"
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
LIVE_KIND = column(
    """
    SELECT kind FROM workers WHERE host = :host AND NOT dead AND expires_at > clock_timestamp()
    ORDER BY started_at DESC LIMIT 1
    """,
    str,
)
"""Selects the kind of the newest process of this host with a valid lease."""
LIVE_WORKERS = Query(
    "SELECT kind, count(*) AS live FROM workers WHERE NOT dead AND expires_at > clock_timestamp() GROUP BY kind",
    LiveCount,
)
