"""Projects and their keys, what they used and who did what; the sessions and plots of the console;
the processes."""

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    Double,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from models.db.tables.base import TIMESTAMP, count, metadata, optional, partial_index, required

# Projects, their API keys and service accounts.

projects = Table(
    "projects",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("name", Text, unique=True),
    required("created_at", TIMESTAMP, default="now()"),
    required(
        "policy",
        JSONB,
        "models/projects/policy.py; what it does not name is as the settings say",
        default="'{}'",
    ),
    required(
        "weight", Integer, "its share of the slots while projects compete for them", default="1"
    ),
    optional("archived_at", TIMESTAMP, "from then on none of its keys is valid, for ever"),
    required(
        "cancelled",
        Boolean,
        "of one that was archived: all that was open was cancelled",
        default="false",
    ),
    CheckConstraint("weight > 0", name="weight"),
    Index("ix_projects_lower_name", text("lower(name)"), "id"),
)

service_accounts = Table(
    "service_accounts",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("project_id", Uuid, references="projects.id", cascade=True, index=True),
    required("name", Text),
    required("created_at", TIMESTAMP, default="now()"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("project_id", Uuid, references="projects.id", cascade=True, index=True),
    required("prefix", Text, "the first characters, to recognise a key by"),
    required("hash", LargeBinary, "SHA-256 of the whole key", unique=True),
    required("created_at", TIMESTAMP, default="now()"),
    optional("last_used_at", TIMESTAMP),
    optional("revoked_at", TIMESTAMP),
    optional("name", Text, "what the operator calls it"),
    required(
        "scopes",
        ARRAY(Text),
        "what requests with it may do: models/projects/policy.py",
        default="'{responses}'",
    ),
    optional("allowed_models", ARRAY(Text), "names and patterns; null: all models"),
    optional("expires_at", TIMESTAMP),
    optional("created_by", Uuid, "the key of the request that made it"),
    optional("service_account_id", Uuid),
)

access_revision = Table(
    "access_revision",
    metadata,
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    required(
        "number",
        BigInteger,
        "+1 with each change of a project or key that all processes must notice",
    ),
    CheckConstraint("single", name="single"),
)

# What responses have used. Nothing here refers to them: usage is kept when they are deleted.


def _labels() -> list[Column[Any]]:
    return [
        optional("api_key_id", Uuid),
        required("model", Text),
        optional("upstream", Text),
        optional("service_tier", Text),
        optional("kind", Text, "of a proxied request, or of code; null: completions"),
        optional("batch", Boolean, "of a request in a batch; null: it is not"),
        optional("completion_window", Text, "2h or 8h; null: none, or that of a batch"),
    ]


def _counts() -> list[Column[int]]:
    names = ("requests", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    return [
        *(Column(name, BigInteger, nullable=False) for name in names),
        optional(
            "units",
            BigInteger,
            "images, characters of speech, seconds of audio, or milliseconds of CPU of code",
        ),
        optional("cost", BigInteger, "in billionths of the currency (models/prices.py)"),
    ]


def _sums() -> list[Column[int]]:
    """Of a sum. Its `cost` is that of the requests whose cost is known."""
    return [
        *_counts(),
        optional("unpriced", BigInteger, "requests without a cost; null: all, if `cost` is null"),
    ]


usage_entries = Table(
    "usage_entries",
    metadata,
    required("project_id", Uuid, "no foreign key: it is kept"),
    required("ended_at", TIMESTAMP, default="clock_timestamp()"),
    *_labels(),
    *_counts(),
    optional("entry_id", Uuid, "of a proxied request: it is inserted once"),
    Index("ix_usage_entries_project_id", "project_id", "ended_at"),
    partial_index(
        "uq_usage_entries_entry_id", "entry_id", where="entry_id IS NOT NULL", unique=True
    ),
    Index("ix_usage_entries_ended_at", "ended_at", postgresql_using="brin"),
)

usage_days = Table(
    "usage_days",
    metadata,
    required("project_id", Uuid),
    required("day", Date, "in UTC"),
    *_labels(),
    *_sums(),
    Index("ix_usage_days_project_id", "project_id", "day"),
    Index("ix_usage_days_day", "day"),
)

usage_hours = Table(
    "usage_hours",
    metadata,
    required("project_id", Uuid),
    required("hour", TIMESTAMP, "its begin; deleted when the day is in usage_days"),
    *_labels(),
    *_sums(),
    Index("ix_usage_hours_hour", "hour"),
)

usage_rollup = Table(
    "usage_rollup",
    metadata,
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    required(
        "rolled_until",
        Date,
        "days before this one are in usage_days, all others in usage_entries",
    ),
    optional("hours_until", TIMESTAMP, "of other days, the time before this is in usage_hours"),
    CheckConstraint("single", name="single"),
)

cell = Table(
    "cell",
    metadata,
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    required("name", Text, "the setting `cell` of the web process that started last"),
    CheckConstraint("single", name="single"),
)

# The audit log: who did what (docs/operations.md, "Audit log").

audit = Table(
    "audit",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("at", TIMESTAMP, default="clock_timestamp()"),
    required("actor", Text, "key, operator, server or unknown"),
    optional("key_id", Uuid, "no foreign key: entries outlive keys"),
    optional("key_prefix", Text),
    optional("os_user", Text, "the operator who ran a command"),
    optional("project", Text, "the name that the project had"),
    optional("address", Text, "of the client, or the host on which a command ran"),
    required("action", Text),
    optional("object", Text, "the public id or the name of what it was done to"),
    required("outcome", Text),
    optional("request_id", Text),
    required("details", JSONB, default="'{}'"),
    Index("ix_audit_at", "at", "id"),
)

# The sessions of the console (docs/console.md).

console_sessions = Table(
    "console_sessions",
    metadata,
    Column("hash", LargeBinary, primary_key=True, doc="SHA-256 of the token in the cookie"),
    required("role", Text, "operator, read_only or project"),
    required("name", Text, "who it is, for the audit log"),
    required("created_at", TIMESTAMP, default="clock_timestamp()"),
    required("expires_at", TIMESTAMP),
    optional("api_key_id", Uuid, "of a project: the key of the login"),
)

console_links = Table(
    "console_links",
    metadata,
    Column("hash", LargeBinary, primary_key=True, doc="SHA-256 of the token in the link"),
    required("expires_at", TIMESTAMP),
)

# What happened by minute, for the plots of the console (docs/console.md).


activity = Table(
    "activity",
    metadata,
    Column(
        "width",
        SmallInteger,
        primary_key=True,
        autoincrement=False,
        doc="seconds that the row is about: 60, or 600",
    ),
    Column("begins_at", TIMESTAMP, primary_key=True),
    required(
        "sampled", Boolean, "a worker has begun to count what waits and runs", default="false"
    ),
    optional("waiting", Integer, "responses that waited; of ten minutes the most"),
    optional("oldest_seconds", Double, "the age of the oldest of them"),
    optional("running", Integer, "responses that ran; of ten minutes the most"),
    count("completed"),
    count("failed"),
    count("input_tokens"),
    count("output_tokens"),
    count("cost", "in billionths of the currency"),
    required(
        "first_token_counts",
        ARRAY(Integer),
        "responses by the time until their first output (models/db/queries/activity.py)",
        default="'{}'",
    ),
    required(
        "total_counts", ARRAY(Integer), "responses by the time until their end", default="'{}'"
    ),
)

activity_parts = Table(
    "activity_parts",
    metadata,
    Column("width", SmallInteger, primary_key=True, autoincrement=False, doc="as in activity"),
    Column("kind", Text, primary_key=True, doc="model, project or upstream"),
    Column("begins_at", TIMESTAMP, primary_key=True),
    Column("name", Text, primary_key=True, doc="of it; of a project the id; empty: all others"),
    count("completed"),
    count("failed"),
    count("input_tokens"),
    count("output_tokens"),
    count("cost", "in billionths of the currency"),
)

# The processes, and the releases that run on these tables.

workers = Table(
    "workers",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("kind", Text),
    required("host", Text),
    required("pid", Integer),
    required("started_at", TIMESTAMP, default="now()"),
    required("expires_at", TIMESTAMP),
    required("dead", Boolean, default="false"),
    optional("ended", Text, "how it ended: stopped, or reaped by which process"),
    count("flushed_batch", "journal batches up to here are in event_log"),
    optional(
        "drain_requested_at", TIMESTAMP, "an operator wants it to hand over its responses and stop"
    ),
    optional(
        "settled_at", TIMESTAMP, "a web process: creates sent before this time have a known outcome"
    ),
    required(
        "tied",
        Boolean,
        "it has held the lock of its tie: the lock is free only if its session ended",
        default="false",
    ),
    optional("slots", Integer, "of a worker: the most responses that it runs at a time"),
    optional("version", Text, "the release that it runs"),
    CheckConstraint("kind IN ('worker', 'quarantine', 'web')", name="kind"),
)

schema_compatibility = Table(
    "schema_compatibility",
    metadata,
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    required("oldest_revision", Text, "the oldest migration whose release runs on this schema"),
    CheckConstraint("single", name="single"),
)
