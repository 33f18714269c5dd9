"""Schedules of projects, and their runs.

Three things keep each slot to one run (docs/adr/0074). A web process takes a due schedule for a
lease, which only saves work. What it decides is one transaction, whose first statement moves
`decided_until` from where this process has read it, on condition that nobody has changed the
schedule since. And a slot has one row in `schedule_runs`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from models.db.queries.common import LATEST, pages_of
from models.db.statement import Query, Statement, column

LEASE: Final = timedelta(seconds=20)
"""So long a schedule is that of the web process that has taken it."""
LONGEST_LEASE: Final = LEASE * 2**8
"""The same after many crashes."""
NOW = column("SELECT clock_timestamp()", datetime)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule as clients and operators see it."""

    id: UUID
    project_id: UUID
    project: str
    name: str
    metadata: dict[str, str]
    cron: str | None
    time_zone: str
    run_at: datetime | None
    missed: str
    template: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    paused_at: datetime | None
    completed_at: datetime | None
    decided_until: datetime
    upcoming: list[datetime]
    last_status: str | None
    """of its newest run"""
    last_slot: datetime | None
    last_response_id: UUID | None

    @property
    def status(self) -> str:
        """`active`, `paused` or `completed`."""
        if self.completed_at is not None:
            return "completed"
        return "active" if self.paused_at is None else "paused"


@dataclass(frozen=True, slots=True)
class PagedSchedule(ScheduleRow):
    """A schedule of a page."""

    found: int
    """schedules that the page would have if it were not bounded in bytes"""


_SCHEDULES = """
    SELECT s.id, s.project_id, p.name AS project, s.name, s.metadata, s.cron, s.time_zone, s.run_at, s.missed,
           s.template, s.created_at, s.updated_at, s.paused_at, s.completed_at, s.decided_until, s.upcoming,
           r.status AS last_status, r.slot AS last_slot, r.response_id AS last_response_id
    FROM schedules s JOIN projects p ON p.id = s.project_id
    LEFT JOIN LATERAL (SELECT r.status, r.slot, r.response_id FROM schedule_runs r
                       WHERE r.schedule_id = s.id ORDER BY r.id DESC LIMIT 1) r ON true
    WHERE s.deleted_at IS NULL"""
FIND_SCHEDULE = Query(f"{_SCHEDULES} AND s.id = :id AND s.project_id = :project", ScheduleRow)
"""No row: the project has no such schedule."""
ANY_SCHEDULE = Query(f"{_SCHEDULES} AND s.id = :id", ScheduleRow)
"""The schedule of any project. No row: there is none."""
SCHEDULES_PAGE = pages_of(
    f"{_SCHEDULES} AND s.project_id = :project",
    "s.id",
    PagedSchedule,
    limit="max_rows",
    is_bounded=True,
)
"""By order: schedules of a project behind the one with the id `after`; null: from the start."""
_WITHOUT_INPUT = _SCHEDULES.replace(
    "s.template,", "json_build_object('model', s.template->'model') AS template,"
)
NEWEST_SCHEDULES = Query(
    f"""{_WITHOUT_INPUT} AND (CAST(:project AS text) IS NULL OR p.name = :project)
        AND (CAST(:status AS text) IS NULL
             OR :status = CASE WHEN s.completed_at IS NOT NULL THEN 'completed'
                               WHEN s.paused_at IS NULL THEN 'active' ELSE 'paused' END)
        AND s.id < :before ORDER BY s.id DESC LIMIT :max_rows""",
    ScheduleRow,
)
"""Schedules of a project, or of all, the newest first; null: any status. Of their templates only the
model."""
COUNT_SCHEDULES = column(
    "SELECT count(*)::int FROM schedules WHERE project_id = :project AND deleted_at IS NULL", int
)
INSERT_SCHEDULE = column(
    """
    INSERT INTO schedules (id, project_id, api_key_id, name, metadata, cron, time_zone, run_at, missed, template,
                           secret_key_id, secrets, decided_until, upcoming, due_at)
    SELECT :id, p.id, :api_key, :name, :metadata, :cron, :time_zone, :run_at, :missed, CAST(:template AS json),
           :secret_key_id, :secrets, :decided_until, CAST(:upcoming AS timestamptz[]), CAST(:next AS timestamptz)
    FROM projects p WHERE p.id = :project AND p.archived_at IS NULL
    RETURNING id
    """,
    UUID,
)
"""No row: the project is archived."""
_NEXT = """CASE WHEN s.requested_run IS NOT NULL THEN clock_timestamp()
        WHEN s.paused_at IS NULL THEN CAST(:next AS timestamptz) END"""
"""When a web process works on schedule `s` next, whose next slot is `next`."""
LOCK_SCHEDULE = Query(f"{_SCHEDULES} AND s.id = :id FOR NO KEY UPDATE OF s", ScheduleRow)
UPDATE_SCHEDULE = column(
    f"""
    UPDATE schedules s
    SET api_key_id = :api_key, name = :name, metadata = :metadata, missed = :missed,
        template = coalesce(CAST(:template AS json), s.template),
        secret_key_id = CASE WHEN CAST(:template AS json) IS NULL THEN s.secret_key_id ELSE :secret_key_id END,
        secrets = CASE WHEN CAST(:template AS json) IS NULL THEN s.secrets ELSE :secrets END,
        cron = :cron, time_zone = :time_zone, run_at = :run_at, decided_until = :decided_until,
        upcoming = CAST(:upcoming AS timestamptz[]), due_at = {_NEXT},
        completed_at = CASE WHEN CAST(:next AS timestamptz) IS NULL THEN s.completed_at END,
        updated_at = clock_timestamp(), revision = s.revision + 1, tries = 0
    WHERE s.id = :id AND s.deleted_at IS NULL RETURNING s.id
    """,
    UUID,
)
"""Changes a schedule; `template` null: it stays, with its credentials."""
PAUSE_SCHEDULE = column(
    """
    UPDATE schedules s
    SET paused_at = clock_timestamp(), due_at = CASE WHEN s.requested_run IS NOT NULL THEN clock_timestamp() END,
        updated_at = clock_timestamp(), revision = s.revision + 1
    WHERE s.id = :id AND s.deleted_at IS NULL AND s.paused_at IS NULL AND s.completed_at IS NULL RETURNING s.id
    """,
    UUID,
)
"""No row: it is paused or completed."""
RESUME_SCHEDULE = column(
    """
    UPDATE schedules s
    SET paused_at = NULL, due_at = CASE WHEN s.requested_run IS NOT NULL THEN clock_timestamp() ELSE s.upcoming[1] END,
        updated_at = clock_timestamp(), revision = s.revision + 1
    WHERE s.id = :id AND s.deleted_at IS NULL AND s.paused_at IS NOT NULL AND s.completed_at IS NULL RETURNING s.id
    """,
    UUID,
)
"""No row: it is not paused. Slots that have passed are decided as missed ones are."""
REQUEST_RUN = column(
    """
    UPDATE schedules s
    SET requested_run = coalesce(s.requested_run, CAST(:run AS uuid)), due_at = clock_timestamp()
    WHERE s.id = :id AND s.deleted_at IS NULL RETURNING s.requested_run
    """,
    UUID,
)
"""Requests a run beside the slots; returns its id: that of one that was requested and is not made
yet."""
_DELETED = """
    UPDATE schedules
    SET deleted_at = clock_timestamp(), due_at = NULL, requested_run = NULL, template = '{}', metadata = '{}',
        secret_key_id = NULL, secrets = NULL, revision = revision + 1"""
DELETE_SCHEDULE = column(f"{_DELETED} WHERE id = :id AND deleted_at IS NULL RETURNING id", UUID)
"""Forgets its request and its secrets. The purge deletes it with its runs, which may be many."""
DELETE_SCHEDULES_OF_PROJECT = Statement(f"{_DELETED} WHERE project_id = :id AND deleted_at IS NULL")
"""The same for the schedules of a project that is archived."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run, or slots that were skipped."""

    id: UUID
    schedule_id: UUID
    slot: datetime
    skipped_after: datetime | None
    requested: bool
    status: str
    response_id: UUID | None
    error: dict[str, Any] | None
    created_at: datetime


_RUN = """r.id, r.schedule_id, r.slot, r.skipped_after, r.requested, r.status, r.response_id, r.error,
    r.created_at"""
RUNS_PAGE = pages_of(
    f"SELECT {_RUN} FROM schedule_runs r WHERE r.schedule_id = :schedule",
    "r.id",
    RunRow,
    limit="max_rows",
)
"""By order: runs of a schedule behind the one with the id `after`; null: from the start."""
FIND_RUN = Query(
    f"SELECT {_RUN} FROM schedule_runs r WHERE r.id = :id AND r.schedule_id = :schedule", RunRow
)


# --- the work of web processes ---


@dataclass(frozen=True, slots=True)
class TakenSchedule:
    """A schedule that this process works on now."""

    id: UUID
    project_id: UUID
    api_key_id: UUID
    cron: str | None
    time_zone: str
    run_at: datetime | None
    missed: str
    template: dict[str, Any]
    secret_key_id: str | None
    secrets: bytes | None
    is_paused: bool
    decided_until: datetime
    revision: int
    requested_run: UUID | None
    crashes: int
    """of web processes that had it, in a row, with nothing stored"""
    now: datetime


SECONDS_UNTIL_DUE = column(
    """
    SELECT extract(epoch FROM s.due_at - clock_timestamp())::float FROM schedules s
    WHERE s.due_at IS NOT NULL ORDER BY s.due_at LIMIT 1
    """,
    float,
)
"""Until a web process has to work on the next schedule. No row: on none."""
TAKE_SCHEDULES = Query(
    """
    WITH waiting AS (
             SELECT d.id, d.due_at, row_number() OVER (PARTITION BY d.project_id ORDER BY d.due_at) AS place
             FROM (SELECT s.id, s.project_id, s.due_at FROM schedules s WHERE s.due_at <= statement_timestamp()
                   ORDER BY s.due_at LIMIT 1000) d),
         due AS (
             SELECT s.id FROM (SELECT w.id FROM waiting w ORDER BY w.place, w.due_at) w
             CROSS JOIN LATERAL (SELECT s.id FROM schedules s WHERE s.id = w.id AND s.due_at <= statement_timestamp()
                                 OFFSET 0 FOR UPDATE SKIP LOCKED) s
             LIMIT CAST(:free AS int))
    UPDATE schedules s
    SET due_at = clock_timestamp() + CAST(:lease AS interval) * power(2, least(s.tries, 8)), tries = s.tries + 1
    FROM due WHERE s.id = due.id
    RETURNING s.id, s.project_id, s.api_key_id, s.cron, s.time_zone, s.run_at, s.missed, s.template, s.secret_key_id,
              s.secrets, s.paused_at IS NOT NULL AS is_paused, s.decided_until, s.revision, s.requested_run,
              s.tries - 1 AS crashes, clock_timestamp() AS now
    """,
    TakenSchedule,
)
"""Takes due schedules for the lease, doubled with each crash of those that had it. Projects take
turns, the first schedule of each before the second of any."""
MOVE_SCHEDULE = column(
    f"""
    UPDATE schedules s
    SET decided_until = :until, upcoming = CAST(:upcoming AS timestamptz[]), due_at = {_NEXT}, tries = 0,
        completed_at = CASE WHEN CAST(:next AS timestamptz) IS NULL THEN clock_timestamp() END
    WHERE s.id = :id AND s.revision = :revision AND s.decided_until = :decided_until AND s.deleted_at IS NULL
    RETURNING s.id
    """,
    UUID,
)
"""A slot is decided, in the transaction that stores its run. No row: another process has done it, or
the schedule was changed since it was taken, so the transaction must store nothing."""
END_REQUEST = column(
    """
    UPDATE schedules s
    SET requested_run = NULL, tries = 0, due_at = CASE WHEN s.paused_at IS NULL THEN s.upcoming[1] END
    WHERE s.id = :id AND s.revision = :revision AND s.requested_run = :run AND s.deleted_at IS NULL RETURNING s.id
    """,
    UUID,
)
"""The same for a run that was requested."""
INSERT_RUN = column(
    """
    INSERT INTO schedule_runs (id, schedule_id, slot, skipped_after, requested, status, response_id, error)
    VALUES (:id, :schedule, :slot, :skipped_after, :requested, :status, :response, CAST(:error AS json))
    ON CONFLICT (schedule_id, slot) WHERE NOT requested DO NOTHING RETURNING id
    """,
    UUID,
)
"""No row: the slot has a run already, from before the clock of the database was set back."""
RELEASE_SCHEDULE = Statement("""
    UPDATE schedules SET due_at = clock_timestamp() + CAST(:pause AS interval), tries = 0
    WHERE id = :id AND revision = :revision AND due_at IS NOT NULL
""")
"""It cannot be worked on now: another try is made after the pause."""


# --- the purge ---

REPAIR_SCHEDULES = column(
    f"""
    UPDATE schedules SET decided_until = least(decided_until, clock_timestamp()), due_at = clock_timestamp()
    WHERE id = ANY(ARRAY(
        SELECT s.id FROM schedules s
        WHERE s.due_at > {LATEST} AND s.deleted_at IS NULL
          AND (s.decided_until > {LATEST}
               OR s.due_at > greatest(s.upcoming[1], statement_timestamp() + CAST(:longest_lease AS interval)))
        LIMIT :rows))
    RETURNING id
    """,
    UUID,
)
"""Schedules that would wait because the clock of the database was set back: their slots are found
again, from now on. Those that have run are known by their rows."""
DELETE_OLD_RUNS = column(
    """
    DELETE FROM schedule_runs WHERE id = ANY(ARRAY(
        SELECT r.id FROM schedule_runs r WHERE r.created_at < statement_timestamp() - CAST(:retention AS interval)
        ORDER BY r.created_at LIMIT :rows)) RETURNING id
    """,
    UUID,
)
HIDE_COMPLETED = column(
    f"""{_DELETED} WHERE id = ANY(ARRAY(
        SELECT s.id FROM schedules s
        WHERE s.completed_at < statement_timestamp() - CAST(:retention AS interval) AND s.deleted_at IS NULL
        ORDER BY s.completed_at LIMIT :rows)) RETURNING id
    """,
    UUID,
)
"""Schedules whose last slot is long ago."""
DELETE_RUNS_OF_DELETED = column(
    """
    DELETE FROM schedule_runs WHERE id = ANY(ARRAY(
        SELECT r.id FROM schedules s
        CROSS JOIN LATERAL (SELECT r.id FROM schedule_runs r WHERE r.schedule_id = s.id LIMIT :rows) r
        WHERE s.deleted_at IS NOT NULL LIMIT :rows)) RETURNING id
    """,
    UUID,
)
DELETE_DELETED = column(
    """
    DELETE FROM schedules WHERE id = ANY(ARRAY(
        SELECT s.id FROM schedules s WHERE s.deleted_at IS NOT NULL
          AND NOT EXISTS (SELECT FROM schedule_runs r WHERE r.schedule_id = s.id) LIMIT :rows)) RETURNING id
    """,
    UUID,
)
