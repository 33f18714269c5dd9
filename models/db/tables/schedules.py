"""Schedules of projects, and what became of their slots."""

from sqlalchemy import ARRAY, JSON, Boolean, Column, Index, Integer, LargeBinary, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB

from models.db.tables.base import TIMESTAMP, metadata, optional, partial_index, required

schedules = Table(
    "schedules",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("project_id", Uuid, references="projects.id", cascade=True),
    required("api_key_id", Uuid, "the key that its responses are made with"),
    required("name", Text, default="''"),
    required("metadata", JSONB, default="'{}'"),
    optional("cron", Text, "null: it runs once"),
    required("time_zone", Text, "of `cron`, as IANA names it", default="'UTC'"),
    optional("run_at", TIMESTAMP, "its only slot; null: it has `cron`"),
    required("missed", Text, "what becomes of missed slots: skip, run_once, run_all"),
    required("template", JSON, "the body of a create, without credentials of MCP servers"),
    optional("secret_key_id", Text),
    optional("secrets", LargeBinary, "these credentials, sealed; null: there are none"),
    required("created_at", TIMESTAMP, default="clock_timestamp()"),
    required("updated_at", TIMESTAMP, default="clock_timestamp()"),
    required("revision", Integer, "+1 with each change by a client or operator", default="0"),
    optional("paused_at", TIMESTAMP),
    optional("completed_at", TIMESTAMP, "it has no slot any more"),
    optional("deleted_at", TIMESTAMP, "from then on nobody sees it; the purge deletes the row"),
    required("decided_until", TIMESTAMP, "slots until then have run, or were skipped"),
    required("upcoming", ARRAY(TIMESTAMP), "its next slots behind that, five at most"),
    optional(
        "due_at",
        TIMESTAMP,
        "when a web process works on it, or may take it from another one; null: never",
    ),
    required("tries", Integer, "web processes that took it, and stored nothing", default="0"),
    optional("requested_run", Uuid, "a run that was requested, beside its slots"),
    Index("ix_schedules_project_id", "project_id", "id"),
    partial_index("ix_schedules_due_at", "due_at", where="due_at IS NOT NULL"),
    partial_index("ix_schedules_deleted", "deleted_at", where="deleted_at IS NOT NULL"),
    partial_index("ix_schedules_completed_at", "completed_at", where="completed_at IS NOT NULL"),
)

schedule_runs = Table(
    "schedule_runs",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("schedule_id", Uuid, references="schedules.id", cascade=True),
    required("slot", TIMESTAMP, "of a run that was requested: when it was made"),
    optional("skipped_after", TIMESTAMP, "skipped: so were all slots between this time and `slot`"),
    required("requested", Boolean, "it was requested, beside the slots", default="false"),
    required("status", Text, "created, skipped, failed"),
    optional("response_id", Uuid, "no foreign key: the response may be deleted"),
    optional("error", JSON, "why there is no response, as the API shows errors"),
    required("created_at", TIMESTAMP, default="clock_timestamp()"),
    Index("ix_schedule_runs_schedule_id", "schedule_id", "id"),
    Index("ix_schedule_runs_created_at", "created_at"),
    partial_index(
        "uq_schedule_runs_slot", "schedule_id", "slot", where="NOT requested", unique=True
    ),
)
