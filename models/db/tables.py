"""The rows (design §3). The migrations make them; `alembic check` in the tests holds the two together."""

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

from models.lifecycle import Status

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

ONE_OPEN_PER_CONVERSATION = "uq_responses_conversation_running"
"""The index that lets one response of a conversation be open."""

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
    Column("ended", Text, comment="how it ended: stopped, or reaped by which worker"),
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
        comment="an operator wants it to hand over and go; its heartbeat sees that",
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
        comment="+1 with everything said or begun in it",
    ),
    Column(
        "unanswered_calls",
        ARRAY(Text),
        nullable=False,
        server_default=text("'{}'"),
        comment="call ids that must be answered next",
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
    Column("streamed", Boolean, nullable=False),
    Column("model", Text, nullable=False),
    Column(
        "parameters",
        JSON,
        nullable=False,
        comment="what the client set, without input and secrets; json, not jsonb: key order matters (ADR 0004)",
    ),
    Column("previous_response_id", Uuid),
    Column(
        "conversation_id",
        Uuid,
        comment="no foreign key: a response goes on saying where it was said",
    ),
    Column("usage", JSONB),
    Column("upstream", Text, comment="which answered the last turn, by its configured name"),
    Column("service_tier", Text, comment="the tier that the upstream says it used"),
    Column("error", JSONB, comment="{code, message} as the API shows it"),
    Column("reason", Text, comment="why it is incomplete, or our own finer word for a failure"),
    Column(
        "failure",
        JSONB,
        comment="{status, type, code, param, retry_after} for a foreground client that got no output",
    ),
    Column("created_at", _timestamp, nullable=False),
    Column("started_at", _timestamp),
    Column("completed_at", _timestamp, comment="when it reached a terminal status"),
    Column("expires_at", _timestamp, nullable=False),
    Column("deadline", _timestamp, nullable=False),
    Column("worker", Uuid, ForeignKey("workers.id"), comment="the owner; null when nobody runs it"),
    Column(
        "web",
        Uuid,
        comment="the web process a foreground client waits at; no foreign key, so that forgetting a process scans nothing",
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
        comment="owners that died since the last checkpoint",
    ),
    Column("enqueued_at", _timestamp, nullable=False, comment="when its bell was rung last"),
    Column("rings", SmallInteger, nullable=False, server_default=text("0")),
    Column(
        "resume_at", _timestamp, comment="put off: nobody is to take it before, unless to end it"
    ),
    Column("cancel_requested_at", _timestamp),
    Column(
        "delete_requested_at", _timestamp, comment="gone from the API; purged once it has ended"
    ),
    Column(
        "requeue_requested_at",
        _timestamp,
        comment="an operator wants another worker to go on with it; null again once it was given up",
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
        comment="under which its answer is remembered, where the request asked for that",
    ),
    Column(
        "cache_ttl",
        Integer,
        comment="for how many seconds; null: the answer was itself a remembered one",
    ),
    CheckConstraint(f"status IN ({_statuses})", name="status"),
    Index(
        "ix_responses_open",
        "enqueued_at",
        postgresql_where=text("status IN ('queued', 'in_progress')"),
    ),
    Index("ix_responses_worker", "worker", postgresql_where=text("worker IS NOT NULL")),
    Index(
        ONE_OPEN_PER_CONVERSATION,
        "conversation_id",
        unique=True,
        postgresql_where=text(
            "conversation_id IS NOT NULL AND status IN ('queued', 'in_progress')"
        ),
    ),
    Index(
        "ix_responses_previous_response_id",
        "previous_response_id",
        postgresql_where=text("previous_response_id IS NOT NULL"),
    ),
    Index("ix_responses_expires_at", "expires_at"),
    # A running row is updated in place: room on its page keeps those updates off the indexes.
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
        comment="set when it becomes part of it: added directly, or with the end of its response",
    ),
    Column("direction", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("item_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    Column("turn", Integer, comment="of tool_calls, once its response is gone"),
    Column("answer", JSONB, comment="of tool_calls, once its response is gone"),
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
    # An item reference asks for the newest item of its id; clients choose ids, so there may be very many of one.
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
        comment="in which the model asked for it; 0: before the first",
    ),
    Column(
        "started_attempt",
        Integer,
        comment="the attempt that began to run it last; not finished besides: its outcome is unknown",
    ),
    Column("finished", Boolean, nullable=False),
    Column(
        "answer",
        JSONB,
        comment="what the model was told, where the item does not say it: a text, or parts",
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
        "frames", LargeBinary, nullable=False, comment="the SSE bytes as every reader gets them"
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
        comment="no foreign key: this outlives the worker's row, and so names its process as well",
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
        "ended_at", _timestamp, comment="with an outcome; of one that died: when its lease ran out"
    ),
    CheckConstraint(
        "outcome IN ('handed_over', 'requeued', 'returned', 'put_off', 'died')", name="outcome"
    ),
)

journal = Table(
    "journal",
    metadata,
    Column("worker", Uuid, primary_key=True),
    Column(
        "batch", BigInteger, primary_key=True, comment="0 is the marker written at registration"
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
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE"), nullable=False),
    Column("expires_at", _timestamp, nullable=False),
)
