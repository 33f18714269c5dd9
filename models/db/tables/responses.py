"""Conversations and responses, what belongs to a request, and what its attempts produce."""

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
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from models.db.tables.base import TIMESTAMP, count, metadata, optional, partial_index, required
from models.lifecycle import (
    BACKLOG,
    IN_LINE,
    ONE_OPEN_PER_CONVERSATION,
    PLACE_IN_LINE,
    TRANSITIONS,
    Lane,
    Status,
)

_statuses = ", ".join(f"'{status}'" for status in Status)

_is_open = "status IN ({})".format(", ".join(f"'{status}'" for status in TRANSITIONS))

conversations = Table(
    "conversations",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("project_id", Uuid, references="projects.id", cascade=True),
    required("created_at", TIMESTAMP, default="now()"),
    required("metadata", JSONB, default="'{}'"),
    count("revision", "+1 with every item added and every response started"),
    required(
        "unanswered_calls",
        ARRAY(Text),
        "ids of the calls that must be answered next",
        default="'{}'",
    ),
    count("size", "the sizes of its items"),
)

responses = Table(
    "responses",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("project_id", Uuid, references="projects.id", cascade=True),
    required("status", Text),
    required("background", Boolean),
    required("store", Boolean),
    required("model", Text),
    required(
        "parameters",
        JSON,
        "what the client set, without input and secrets; json: key order matters",
    ),
    optional("previous_response_id", Uuid),
    optional("conversation_id", Uuid, "no foreign key: kept after the conversation is deleted"),
    optional("usage", JSONB),
    optional(
        "cost",
        BigInteger,
        "set at the end, in billionths of the currency (models/prices.py); null: not known",
    ),
    optional("upstream", Text, "the configured name of the upstream that answered the last turn"),
    optional("service_tier", Text, "the tier that the upstream reported"),
    optional(
        "upstream_fields",
        JSON,
        "fields of a native upstream's Response object that this server does not make",
    ),
    optional("error", JSONB, "{code, message} as the API shows it"),
    optional(
        "reason",
        Text,
        "why it is incomplete, or a finer code for a failure; if deferred: its upstream's failure",
    ),
    optional(
        "failure",
        JSONB,
        "{status, type, code, param, retry_after} for a foreground client that got no output",
    ),
    required("created_at", TIMESTAMP),
    optional("started_at", TIMESTAMP),
    optional("completed_at", TIMESTAMP, "when it reached a terminal status"),
    required("expires_at", TIMESTAMP),
    required("deadline", TIMESTAMP),
    optional("worker", Uuid, "the owner, of `workers`; null if no process owns it"),
    optional(
        "web",
        Uuid,
        "the web process where its client waits: the one that stored it, or the last one that a"
        " repeated request joined it on; no foreign key, so that deleting a process scans nothing",
    ),
    optional(
        "waiter", Uuid, "the connection whose client waits for the answer; null: it ended before"
    ),
    required("attempt", Integer, "+1 at every claim, never lowered or reused", default="0"),
    required("crashes", SmallInteger, "owners that crashed since the last checkpoint", default="0"),
    required("enqueued_at", TIMESTAMP, "when it was last put into the Celery queue"),
    required(
        "enqueue_count",
        SmallInteger,
        "how often it was put into the Celery queue again since it was last released",
        default="0",
    ),
    optional(
        "resume_at",
        TIMESTAMP,
        "deferred: not claimed before this time, except to end it; of a follow-up that was never"
        " claimed: its place in line, before it came (ADR 0072)",
    ),
    optional(
        "failed_upstream",
        Text,
        "of an open response: the upstream that has failed, until one answers (`retrying`);"
        " of a failed one: the upstream that it used last",
    ),
    optional("retrying_since", TIMESTAMP, "the first of these failures"),
    required("failed_tries", Integer, "tries that have failed since then", default="0"),
    required(
        "lane",
        SmallInteger,
        "0 priority, 1 default, 2 flex, 3 batch, 4 the window 2h, 5 the window 8h: which responses"
        " go first (ADR 0041, ADR 0072)",
        default=str(Lane.DEFAULT.value),
    ),
    required(
        "confirmed",
        Boolean,
        "a worker has received its id, so its create was answered (ADR 0041)",
        default="false",
    ),
    optional("cancel_requested_at", TIMESTAMP),
    optional("delete_requested_at", TIMESTAMP, "hidden from the API; deleted once it has ended"),
    optional(
        "requeue_requested_at",
        TIMESTAMP,
        "an operator wants another worker to run it; null again once it was released",
    ),
    optional("fail_requested_at", TIMESTAMP, "an operator wants it to end as failed"),
    required("turns", Integer, default="0"),
    required(
        "checkpoint_number", Integer, "the log up to here belongs to finished turns", default="-1"
    ),
    required("next_output_index", Integer, "as of the checkpoint", default="0"),
    required(
        "unanswered_calls", ARRAY(Text), "call ids a continuation must answer", default="'{}'"
    ),
    optional(
        "history_size",
        BigInteger,
        "the sizes of all items that a continuation begins with; set at its end",
    ),
    optional("traceparent", Text),
    optional("request_id", Text, "x-request-id of the request that made it, as in the logs"),
    optional(
        "cache_key", LargeBinary, "the cache key of its answer, if the request asked for that"
    ),
    optional(
        "cache_ttl",
        Integer,
        "for how many seconds the answer is cached; null: it came from the cache",
    ),
    optional("api_key_id", Uuid, "the key of the request that made it"),
    optional(
        "kept_for",
        Interval,
        "how long it is kept after its end; null: until expires_at, or as unstored ones",
    ),
    optional("waits", Boolean, "it waits for the end of its previous response (ADR 0073)"),
    optional("awaited", Boolean, "a response waits for its end, or did"),
    optional("retried_by", Uuid, "the last response that runs it again; no foreign key"),
    optional("window_ends_at", TIMESTAMP, "the end of its completion window; null: it has none"),
    optional(
        "urgent_at",
        TIMESTAMP,
        "from then on it waits as `default` does; null: after BACKBURNER_LINE__FLEX_WAIT",
    ),
    optional("continuation_id", Text, "what the client calls the thread that it belongs to"),
    required(
        "steers",
        Integer,
        "how many inputs were accepted while it ran; they are queued until its end (ADR 0075)",
        default="0",
    ),
    CheckConstraint(f"status IN ({_statuses})", name="status"),
    partial_index("ix_responses_deadline", "deadline", where=_is_open),
    partial_index(
        "ix_responses_line",
        "background",
        "lane",
        "project_id",
        text(f"({PLACE_IN_LINE})"),
        where=IN_LINE,
    ),
    partial_index(
        "ix_responses_no_backlog",
        "enqueued_at",
        where=f"worker IS NULL AND {_is_open} AND NOT {BACKLOG}",
    ),
    partial_index(
        "ix_responses_deleted", "delete_requested_at", where="delete_requested_at IS NOT NULL"
    ),
    partial_index("ix_responses_worker", "worker", where="worker IS NOT NULL"),
    partial_index(
        ONE_OPEN_PER_CONVERSATION,
        "conversation_id",
        where=f"conversation_id IS NOT NULL AND {_is_open}",
        unique=True,
    ),
    partial_index(
        "ix_responses_previous_response_id",
        "previous_response_id",
        where="previous_response_id IS NOT NULL",
    ),
    partial_index(
        "ix_responses_continuation",
        "project_id",
        "continuation_id",
        "started_at",
        where="continuation_id IS NOT NULL",
    ),
    partial_index(
        "ix_responses_retrying",
        "failed_upstream",
        "id",
        where=f"failed_upstream IS NOT NULL AND {_is_open}",
    ),
    partial_index(
        "ix_responses_failed_upstream",
        "failed_upstream",
        "id",
        where="failed_upstream IS NOT NULL AND status = 'failed'",
    ),
    Index("ix_responses_expires_at", "expires_at"),
    partial_index("ix_responses_request_id", "request_id", where="request_id IS NOT NULL"),
    # The row of a running response is updated often. Free space on its page lets Postgres do that
    # without changing the indexes.
    postgresql_with={"fillfactor": "70"},
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("project_id", Uuid, ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True),
    Column("key", Text, primary_key=True),
    required("body_hash", LargeBinary),
    optional("response_id", Uuid, references="responses.id", cascade=True, index=True),
    required("expires_at", TIMESTAMP, index=True),
    # Of a create that makes something else than a response (models/db/queries/repeats.py):
    optional("claim", Uuid),
    optional("web", Uuid),
    optional("made", Text),
    optional("sealed", LargeBinary),
    required("lost", Boolean, default="false"),
    partial_index(
        "ix_idempotency_keys_body_hash", "project_id", "body_hash", where="key LIKE 'sdk:%'"
    ),
)

job_secrets = Table(
    "job_secrets",
    metadata,
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    required("key_id", Text),
    required("sealed", LargeBinary),
)

steers = Table(
    "steers",
    metadata,
    Column("id", Uuid, primary_key=True),
    required(
        "response_id", Uuid, "the response that is steered", references="responses.id", cascade=True
    ),
    required("number", Integer, "1 for the first steer of its response"),
    required("state", Text, default="'queued'"),
    optional("input", JSON, "as the client sent it; null once the ending has committed it"),
    optional("items", JSONB, "the same as items; null likewise"),
    required("size", BigInteger, "bytes of `items`"),
    required("created_at", TIMESTAMP, default="clock_timestamp()"),
    optional("settled_at", TIMESTAMP, "when it was committed, or failed"),
    optional("successor_id", Uuid, "the response that has it as input; no foreign key"),
    optional("required_input", JSONB, "pending: what the client has to send first"),
    optional("error_code", Text, "failed: why"),
    CheckConstraint("state IN ('queued', 'pending', 'committed', 'failed')", name="state"),
    UniqueConstraint("response_id", "number"),
    partial_index("ix_steers_successor_id", "successor_id", where="successor_id IS NOT NULL"),
)

# What the attempts of a response produce.

items = Table(
    "items",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    optional("response_id", Uuid, references="responses.id", cascade=True),
    optional(
        "conversation_id",
        Uuid,
        "set when the item becomes part of it: added directly, or with the end of its response",
        references="conversations.id",
        cascade=True,
    ),
    required("direction", Text),
    required("position", Integer),
    required("item_id", Text),
    required("type", Text),
    required("payload", JSONB),
    optional("turn", Integer, "copied from tool_calls when its response is deleted"),
    optional("answer", JSONB, "copied from tool_calls when its response is deleted"),
    required(
        "size",
        BigInteger,
        "bytes of the payload and of its call's answer, and some for each value in them",
    ),
    optional(
        "origin",
        Text,
        "of a tool call: what its upstream wants back with it, sealed; null: nothing",
    ),
    optional(
        "call_key",
        Text,
        "set with an origin: a digest of the project and of the id that clients send back",
    ),
    CheckConstraint("direction IN ('input', 'output')", name="direction"),
    CheckConstraint("response_id IS NOT NULL OR conversation_id IS NOT NULL", name="owned"),
    UniqueConstraint("response_id", "direction", "position"),
    partial_index(
        "ix_items_conversation_id", "conversation_id", "id", where="conversation_id IS NOT NULL"
    ),
    partial_index(
        "ix_items_conversation_item",
        "conversation_id",
        "item_id",
        where="conversation_id IS NOT NULL",
    ),
    partial_index("ix_items_call_key", "call_key", "id", where="call_key IS NOT NULL"),
    # An item reference selects the newest item with its id. Clients choose ids, so very many items
    # may have the same one.
    Index("ix_items_item_id", "item_id", "id"),
    # A request may name a container of an upstream only if an output of its project did.
    partial_index(
        "ix_items_container",
        text("coalesce(payload ->> 'container_id', payload #>> '{environment,container_id}')"),
        where="direction = 'output' AND type IN ('code_interpreter_call', 'shell_call')",
    ),
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
        doc="of its item in the output",
    ),
    required("output_index", Integer, "of its item in the stream"),
    required("turn", Integer, "the turn in which the model asked for it; 0: before the first"),
    optional(
        "started_attempt",
        Integer,
        "the attempt that began to run it last; if it is not finished, its outcome is unknown",
    ),
    required("finished", Boolean),
    optional(
        "answer",
        JSONB,
        "what the model received, where the item does not contain it: a text, or parts",
    ),
)

event_log = Table(
    "event_log",
    metadata,
    Column(
        "response_id",
        Uuid,
        primary_key=True,
        doc="no foreign key: to drop a partition that has one locks `responses`; a trigger deletes "
        "the log of a deleted response",
    ),
    Column("first_number", Integer, primary_key=True),
    required("last_number", Integer),
    required("attempt", Integer),
    required("frames", LargeBinary, "the SSE bytes that every reader receives"),
    required("stored_at", TIMESTAMP, default="clock_timestamp()"),
    # The purge makes and drops the partitions (worker/process/log_partitions.py).
    postgresql_partition_by="RANGE (response_id)",
)

attempts = Table(
    "attempts",
    metadata,
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    required(
        "worker",
        Uuid,
        "no foreign key: this row is kept longer than the worker's, so it also names the process",
    ),
    required("kind", Text),
    required("host", Text),
    required("pid", Integer),
    required("claimed_at", TIMESTAMP, default="clock_timestamp()"),
    required(
        "turns_ended_at", ARRAY(TIMESTAMP), "of each turn that another followed", default="'{}'"
    ),
    optional("outcome", Text, "null: it runs, or has ended the response"),
    optional("ended_at", TIMESTAMP, "set with an outcome; after a crash: when the lease ran out"),
    optional(
        "failures",
        JSONB,
        "each upstream that failed, with reason and message; deferred, it waits for the last one",
    ),
    CheckConstraint(
        "outcome IN ('handed_over', 'requeued', 'returned', 'deferred', 'died', 'error', "
        "'repeated')",
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
        doc="0 is the marker that is written at registration",
    ),
    required("response_ids", ARRAY(Uuid)),
    required("attempts", ARRAY(Integer)),
    required("first_numbers", ARRAY(Integer)),
    required("last_numbers", ARRAY(Integer)),
    required("frames", ARRAY(LargeBinary)),
    prefixes=["UNLOGGED"],
    postgresql_with={
        "autovacuum_vacuum_threshold": "200",
        "autovacuum_vacuum_scale_factor": "0.0",
        "autovacuum_vacuum_cost_delay": "0",
    },
)
