"""Conversations, responses, and what belongs to a request."""

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    Interval,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from models.db.tables.base import TIMESTAMP, metadata
from models.lifecycle import BACKLOG, IN_LINE, PLACE_IN_LINE, TRANSITIONS, Lane, Status

ONE_OPEN_PER_CONVERSATION = "uq_responses_conversation_running"
"""The unique index that allows one open response in a conversation."""

_statuses = ", ".join(f"'{status}'" for status in Status)

_is_open = "status IN ({})".format(", ".join(f"'{status}'" for status in TRANSITIONS))

conversations = Table(
    "conversations",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("project_id", Uuid, ForeignKey("projects.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", TIMESTAMP, nullable=False, server_default=func.now()),
    Column("metadata", JSONB, nullable=False, server_default=text("'{}'")),
    Column(
        "revision",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        doc="+1 with every item added and every response started",
    ),
    Column(
        "unanswered_calls",
        ARRAY(Text),
        nullable=False,
        server_default=text("'{}'"),
        doc="ids of the calls that must be answered next",
    ),
    Column(
        "size",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        doc="the sizes of its items",
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
        doc=(
            "what the client set, without input and secrets; json, not jsonb: key order "
            "matters (ADR 0004)"
        ),
    ),
    Column("previous_response_id", Uuid),
    Column(
        "conversation_id",
        Uuid,
        doc="no foreign key: kept after the conversation is deleted",
    ),
    Column("usage", JSONB),
    Column("upstream", Text, doc="the configured name of the upstream that answered the last turn"),
    Column("service_tier", Text, doc="the tier that the upstream reported"),
    Column(
        "upstream_fields",
        JSON,
        doc="fields of a native upstream's Response object that this server does not make",
    ),
    Column("error", JSONB, doc="{code, message} as the API shows it"),
    Column(
        "reason",
        Text,
        doc=(
            "why it is incomplete, or a finer code for a failure; of a deferred one: the failure "
            "of its upstream"
        ),
    ),
    Column(
        "failure",
        JSONB,
        doc=("{status, type, code, param, retry_after} for a foreground client that got no output"),
    ),
    Column("created_at", TIMESTAMP, nullable=False),
    Column("started_at", TIMESTAMP),
    Column("completed_at", TIMESTAMP, doc="when it reached a terminal status"),
    Column("expires_at", TIMESTAMP, nullable=False),
    Column("deadline", TIMESTAMP, nullable=False),
    Column("worker", Uuid, ForeignKey("workers.id"), doc="the owner; null if no process owns it"),
    Column(
        "web",
        Uuid,
        doc=(
            "the web process where its client waits: the one that stored it, or the last one that "
            "a repeated request joined it on; no foreign key, so that deleting a process scans "
            "nothing"
        ),
    ),
    Column(
        "waiter",
        Uuid,
        doc="the connection whose client waits for the answer; null: it ended before",
    ),
    Column(
        "attempt",
        Integer,
        nullable=False,
        server_default=text("0"),
        doc="+1 at every claim, never lowered or reused",
    ),
    Column(
        "crashes",
        SmallInteger,
        nullable=False,
        server_default=text("0"),
        doc="owners that crashed since the last checkpoint",
    ),
    Column(
        "enqueued_at",
        TIMESTAMP,
        nullable=False,
        doc="when it was last put into the Celery queue",
    ),
    Column(
        "enqueue_count",
        SmallInteger,
        nullable=False,
        server_default=text("0"),
        doc="how often it was put into the Celery queue again since it was last released",
    ),
    Column("resume_at", TIMESTAMP, doc="deferred: not claimed before this time, except to end it"),
    Column(
        "lane",
        SmallInteger,
        nullable=False,
        server_default=text(str(Lane.DEFAULT.value)),
        doc="0 priority, 1 default, 2 flex, 3 batch: which responses go first (ADR 0041)",
    ),
    Column(
        "confirmed",
        Boolean,
        nullable=False,
        server_default=text("false"),
        doc="a worker has received its id, so its create was answered (ADR 0041)",
    ),
    Column("cancel_requested_at", TIMESTAMP),
    Column("delete_requested_at", TIMESTAMP, doc="hidden from the API; deleted once it has ended"),
    Column(
        "requeue_requested_at",
        TIMESTAMP,
        doc="an operator wants another worker to run it; null again once it was released",
    ),
    Column("fail_requested_at", TIMESTAMP, doc="an operator wants it to end as failed"),
    Column("turns", Integer, nullable=False, server_default=text("0")),
    Column(
        "checkpoint_number",
        Integer,
        nullable=False,
        server_default=text("-1"),
        doc="the log up to here belongs to finished turns",
    ),
    Column(
        "next_output_index",
        Integer,
        nullable=False,
        server_default=text("0"),
        doc="as of the checkpoint",
    ),
    Column(
        "unanswered_calls",
        ARRAY(Text),
        nullable=False,
        server_default=text("'{}'"),
        doc="call ids a continuation must answer",
    ),
    Column(
        "history_size",
        BigInteger,
        doc="the sizes of all items that a continuation begins with; set at its end",
    ),
    Column("traceparent", Text),
    Column(
        "request_id",
        Text,
        doc="x-request-id of the request that made it, as in the logs",
    ),
    Column(
        "cache_key",
        LargeBinary,
        doc="the cache key of its answer, if the request asked for that",
    ),
    Column(
        "cache_ttl",
        Integer,
        doc="for how many seconds the answer is cached; null: it came from the cache",
    ),
    Column("api_key_id", Uuid, doc="the key of the request that made it"),
    Column(
        "kept_for",
        Interval,
        doc="how long it is kept after its end; null: until expires_at, or as unstored ones",
    ),
    CheckConstraint(f"status IN ({_statuses})", name="status"),
    Index(
        "ix_responses_deadline",
        "deadline",
        postgresql_where=text(_is_open),
    ),
    Index(
        "ix_responses_line",
        "background",
        "lane",
        "project_id",
        text(f"({PLACE_IN_LINE})"),
        postgresql_where=text(IN_LINE),
    ),
    Index(
        "ix_responses_no_backlog",
        "enqueued_at",
        postgresql_where=text(f"worker IS NULL AND {_is_open} AND NOT {BACKLOG}"),
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
    Index(
        "ix_responses_request_id",
        "request_id",
        postgresql_where=text("request_id IS NOT NULL"),
    ),
    # The row of a running response is updated often. Free space on its page lets Postgres do that
    # without changing the indexes.
    postgresql_with={"fillfactor": "70"},
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
        index=True,
    ),
    Column("expires_at", TIMESTAMP, nullable=False, index=True),
    # Of a create that makes something else than a response (models/db/queries/repeats.py):
    Column("claim", Uuid),
    Column("web", Uuid),
    Column("made", Text),
    Column("sealed", LargeBinary),
    Column("lost", Boolean, nullable=False, server_default=text("false")),
    Index(
        "ix_idempotency_keys_body_hash",
        "project_id",
        "body_hash",
        postgresql_where=text("key LIKE 'sdk:%'"),
    ),
)

job_secrets = Table(
    "job_secrets",
    metadata,
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
)
