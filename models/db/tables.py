"""The tables, as Alembic compares them with the database. The migrations create them.

A test (tests/integration/database/test_statements.py) runs `alembic check`: it fails if the
migrations and this file differ. No statement is built from these objects; the statements are text
(models/db/statement.py).
"""

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from models.lifecycle import TRANSITIONS, Status

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

_timestamp = DateTime(timezone=True)
_statuses = ", ".join(f"'{status}'" for status in Status)
_is_open = "status IN ({})".format(", ".join(f"'{status}'" for status in TRANSITIONS))

RETIRED_COLUMNS = frozenset((("responses", "rings"), ("responses", "streamed")))
"""(table, column) of columns that no code uses any more. They stay in the database for processes of
the previous release, which may run during an update; `alembic check` ignores them
(migrations/env.py). The migration of the next release drops them."""

ONE_OPEN_PER_CONVERSATION = "uq_responses_conversation_running"
"""The unique index that allows one open response in a conversation."""

projects = Table(
    "projects",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("created_at", _timestamp, nullable=False, server_default=func.now()),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("project_id", Uuid, ForeignKey("projects.id", ondelete="CASCADE"), nullable=False),
    Column("prefix", Text, nullable=False, comment="the first characters, to recognise a key by"),
    Column("hash", LargeBinary, nullable=False, unique=True, comment="SHA-256 of the whole key"),
    Column("created_at", _timestamp, nullable=False, server_default=func.now()),
    Column("last_used_at", _timestamp),
    Column("revoked_at", _timestamp),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", _timestamp, nullable=False, server_default=func.now()),
    Column("expires_at", _timestamp, nullable=False),
    Column("dead", Boolean, nullable=False, server_default=text("false")),
    Column("ended", Text, comment="how it ended: stopped, or reaped by which process"),
    Column(
        "flushed_batch",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="journal batches up to here are in event_log",
    ),
    Column(
        "drain_requested_at",
        _timestamp,
        comment="an operator wants it to hand over its responses and stop",
    ),
    Column(
        "settled_at",
        _timestamp,
        comment=(
            "a web process: creates sent before this time have a known outcome; null: a "
            "process of a release that did not record it"
        ),
    ),
    Column(
        "tied",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="it has held the lock of its tie: the lock is free only if its session ended",
    ),
    CheckConstraint("kind IN ('worker', 'quarantine', 'web')", name="kind"),
)

conversations = Table(
    "conversations",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("project_id", Uuid, ForeignKey("projects.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", _timestamp, nullable=False, server_default=func.now()),
    Column("metadata", JSONB, nullable=False, server_default=text("'{}'")),
    Column(
        "revision",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="+1 with every item added and every response started",
    ),
    Column(
        "unanswered_calls",
        ARRAY(Text),
        nullable=False,
        server_default=text("'{}'"),
        comment="ids of the calls that must be answered next",
    ),
)

responses = Table(
    "responses",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("project_id", Uuid, ForeignKey("projects.id", ondelete="CASCADE"), nullable=False),
    Column("status", Text, nullable=False),
    Column("background", Boolean, nullable=False),
    Column("store", Boolean, nullable=False),
    Column("model", Text, nullable=False),
    Column(
        "parameters",
        JSON,
        nullable=False,
        comment=(
            "what the client set, without input and secrets; json, not jsonb: key order "
            "matters (ADR 0004)"
        ),
    ),
    Column("previous_response_id", Uuid),
    Column(
        "conversation_id",
        Uuid,
        comment="no foreign key: kept after the conversation is deleted",
    ),
    Column("usage", JSONB),
    Column(
        "upstream", Text, comment="the configured name of the upstream that answered the last turn"
    ),
    Column("service_tier", Text, comment="the tier that the upstream reported"),
    Column("error", JSONB, comment="{code, message} as the API shows it"),
    Column("reason", Text, comment="why it is incomplete, or a finer code for a failure"),
    Column(
        "failure",
        JSONB,
        comment=(
            "{status, type, code, param, retry_after} for a foreground client that got no output"
        ),
    ),
    Column("created_at", _timestamp, nullable=False),
    Column("started_at", _timestamp),
    Column("completed_at", _timestamp, comment="when it reached a terminal status"),
    Column("expires_at", _timestamp, nullable=False),
    Column("deadline", _timestamp, nullable=False),
    Column(
        "worker", Uuid, ForeignKey("workers.id"), comment="the owner; null if no process owns it"
    ),
    Column(
        "web",
        Uuid,
        comment=(
            "the web process where its client waits: the one that stored it, or the last one that "
            "a repeated request joined it on; no foreign key, so that deleting a process scans "
            "nothing"
        ),
    ),
    Column(
        "waiter",
        Uuid,
        comment="the connection whose client waits for the answer; null: it ended before",
    ),
    Column(
        "attempt",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="+1 at every claim, never lowered or reused",
    ),
    Column(
        "deaths",
        SmallInteger,
        nullable=False,
        server_default=text("0"),
        comment="owners that crashed since the last checkpoint",
    ),
    Column(
        "enqueued_at",
        _timestamp,
        nullable=False,
        comment="when it was last put into the Celery queue",
    ),
    Column(
        "enqueue_count",
        SmallInteger,
        nullable=False,
        server_default=text("0"),
        comment="how often it was put into the Celery queue again since it was last released",
    ),
    Column(
        "resume_at", _timestamp, comment="deferred: not claimed before this time, except to end it"
    ),
    Column("cancel_requested_at", _timestamp),
    Column(
        "delete_requested_at", _timestamp, comment="hidden from the API; deleted once it has ended"
    ),
    Column(
        "requeue_requested_at",
        _timestamp,
        comment="an operator wants another worker to run it; null again once it was released",
    ),
    Column("fail_requested_at", _timestamp, comment="an operator wants it to end as failed"),
    Column("turns", Integer, nullable=False, server_default=text("0")),
    Column(
        "checkpoint_number",
        Integer,
        nullable=False,
        server_default=text("-1"),
        comment="the log up to here belongs to finished turns",
    ),
    Column(
        "next_output_index",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="as of the checkpoint",
    ),
    Column(
        "unanswered_calls",
        ARRAY(Text),
        nullable=False,
        server_default=text("'{}'"),
        comment="call ids a continuation must answer",
    ),
    Column("traceparent", Text),
    Column(
        "cache_key",
        LargeBinary,
        comment="the cache key of its answer, if the request asked for that",
    ),
    Column(
        "cache_ttl",
        Integer,
        comment="for how many seconds the answer is cached; null: it came from the cache",
    ),
    CheckConstraint(f"status IN ({_statuses})", name="status"),
    Index(
        "ix_responses_open",
        "enqueued_at",
        postgresql_where=text(_is_open),
    ),
    Index(
        "ix_responses_unowned",
        "enqueued_at",
        postgresql_where=text(f"worker IS NULL AND {_is_open}"),
    ),
    Index(
        "ix_responses_deleted",
        "delete_requested_at",
        postgresql_where=text("delete_requested_at IS NOT NULL"),
    ),
    Index("ix_responses_worker", "worker", postgresql_where=text("worker IS NOT NULL")),
    Index(
        ONE_OPEN_PER_CONVERSATION,
        "conversation_id",
        unique=True,
        postgresql_where=text(f"conversation_id IS NOT NULL AND {_is_open}"),
    ),
    Index(
        "ix_responses_previous_response_id",
        "previous_response_id",
        postgresql_where=text("previous_response_id IS NOT NULL"),
    ),
    Index("ix_responses_expires_at", "expires_at"),
    # The row of a running response is updated often. Free space on its page lets Postgres do that
    # without changing the indexes.
    postgresql_with={"fillfactor": "70"},
)

items = Table(
    "items",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE")),
    Column(
        "conversation_id",
        Uuid,
        ForeignKey("conversations.id", ondelete="CASCADE"),
        comment=(
            "set when it becomes part of the conversation: added directly, or with the end "
            "of its response"
        ),
    ),
    Column("direction", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("item_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    Column("turn", Integer, comment="copied from tool_calls when its response is deleted"),
    Column("answer", JSONB, comment="copied from tool_calls when its response is deleted"),
    CheckConstraint("direction IN ('input', 'output')", name="direction"),
    CheckConstraint("response_id IS NOT NULL OR conversation_id IS NOT NULL", name="owned"),
    UniqueConstraint("response_id", "direction", "position"),
    Index(
        "ix_items_conversation_id",
        "conversation_id",
        "id",
        postgresql_where=text("conversation_id IS NOT NULL"),
    ),
    Index(
        "ix_items_conversation_item",
        "conversation_id",
        "item_id",
        postgresql_where=text("conversation_id IS NOT NULL"),
    ),
    # An item reference selects the newest item with its id. Clients choose ids, so very many items
    # may have the same one.
    Index("ix_items_item_id", "item_id", "id"),
)

tool_calls = Table(
    "tool_calls",
    metadata,
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column(
        "position",
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="of its item in the output",
    ),
    Column("output_index", Integer, nullable=False, comment="of its item in the stream"),
    Column(
        "turn",
        Integer,
        nullable=False,
        comment="the turn in which the model asked for it; 0: before the first",
    ),
    Column(
        "started_attempt",
        Integer,
        comment=(
            "the attempt that began to run it last; if it is not finished, its outcome is unknown"
        ),
    ),
    Column("finished", Boolean, nullable=False),
    Column(
        "answer",
        JSONB,
        comment="what the model received, where the item does not contain it: a text, or parts",
    ),
    Column(
        "in_order",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment=(
            "the log has no item after it until it is finished; false: a process of a release that "
            "sent the calls of a turn side by side stored it"
        ),
    ),
)

event_log = Table(
    "event_log",
    metadata,
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column("first_number", Integer, primary_key=True),
    Column("last_number", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column(
        "frames", LargeBinary, nullable=False, comment="the SSE bytes that every reader receives"
    ),
    Column("stored_at", _timestamp, server_default=text("clock_timestamp()")),
)

attempts = Table(
    "attempts",
    metadata,
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column(
        "worker",
        Uuid,
        nullable=False,
        comment=(
            "no foreign key: this row is kept longer than the worker's, so it also names "
            "the process"
        ),
    ),
    Column("kind", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("claimed_at", _timestamp, nullable=False, server_default=text("clock_timestamp()")),
    Column(
        "turns_ended_at",
        ARRAY(_timestamp),
        nullable=False,
        server_default=text("'{}'"),
        comment="of each turn that another followed",
    ),
    Column("outcome", Text, comment="null: it runs, or has ended the response"),
    Column(
        "ended_at", _timestamp, comment="set with an outcome; after a crash: when the lease ran out"
    ),
    CheckConstraint(
        "outcome IN ('handed_over', 'requeued', 'returned', 'put_off', 'died', 'error')",
        name="outcome",
    ),
)

journal = Table(
    "journal",
    metadata,
    Column("worker", Uuid, primary_key=True),
    Column(
        "batch",
        BigInteger,
        primary_key=True,
        comment="0 is the marker that is written at registration",
    ),
    Column("response_ids", ARRAY(Uuid), nullable=False),
    Column("attempts", ARRAY(Integer), nullable=False),
    Column("first_numbers", ARRAY(Integer), nullable=False),
    Column("last_numbers", ARRAY(Integer), nullable=False),
    Column("frames", ARRAY(LargeBinary), nullable=False),
    prefixes=["UNLOGGED"],
    postgresql_with={
        "autovacuum_vacuum_threshold": "200",
        "autovacuum_vacuum_scale_factor": "0.0",
        "autovacuum_vacuum_cost_delay": "0",
    },
)

job_secrets = Table(
    "job_secrets",
    metadata,
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("project_id", Uuid, ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("body_hash", LargeBinary, nullable=False),
    Column(
        "response_id",
        Uuid,
        ForeignKey("responses.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("expires_at", _timestamp, nullable=False, index=True),
    Index(
        "ix_idempotency_keys_body_hash",
        "project_id",
        "body_hash",
        postgresql_where=text("key LIKE 'sdk:%'"),
    ),
)

schema_compatibility = Table(
    "schema_compatibility",
    metadata,
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    Column(
        "oldest_revision",
        Text,
        nullable=False,
        comment="the oldest migration whose release runs on this schema",
    ),
    CheckConstraint("single", name="single"),
)
