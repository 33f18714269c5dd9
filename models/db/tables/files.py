"""Files, batches, vector stores, and webhooks of projects."""

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    Interval,
    LargeBinary,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import JSONB, TSVECTOR

from models.db.tables.base import TIMESTAMP, count, metadata, optional, partial_index, required

# Files of projects, and the stored objects that are their content (docs/files.md).

files = Table(
    "files",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("project_id", Uuid, references="projects.id"),
    required("filename", Text),
    required("purpose", Text),
    required("bytes", BigInteger, "until it is complete: as many as are reserved for it"),
    optional("media_type", Text, "what its bytes were found to be"),
    required("created_at", TIMESTAMP, default="clock_timestamp()"),
    optional("completed_at", TIMESTAMP, "null: it is still being written"),
    optional("lifetime", Interval, "after its creation, once it is complete"),
    optional(
        "expires_at",
        TIMESTAMP,
        "null: it is kept until it is deleted; until it is complete: the end of its upload",
    ),
    optional("delete_requested_at", TIMESTAMP, "from then on nobody sees it"),
    Index("ix_files_project_id", "project_id", "id"),
    partial_index(
        "ix_files_expires_at",
        "expires_at",
        where="expires_at IS NOT NULL AND delete_requested_at IS NULL",
    ),
    partial_index(
        "ix_files_deleted", "delete_requested_at", where="delete_requested_at IS NOT NULL"
    ),
)

file_parts = Table(
    "file_parts",
    metadata,
    Column("id", Uuid, primary_key=True, doc="names the stored object"),
    required("file_id", Uuid, references="files.id"),
    optional("number", Integer, "its place in the content; null: not part of it yet"),
    optional("bytes", BigInteger, "null: it is still being written"),
    required("created_at", TIMESTAMP, default="clock_timestamp()"),
    required("abandoned", Boolean, "its object is to be deleted", default="false"),
    Index("ix_file_parts_number", "file_id", "number", unique=True),
    partial_index("ix_file_parts_unused", "created_at", where="number IS NULL"),
)

# Batches, and the lines of their input that are not in an output file yet (docs/batches.md).


batches = Table(
    "batches",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("project_id", Uuid, references="projects.id"),
    required("api_key_id", Uuid, "the key of the request that made it"),
    required("endpoint", Text),
    required("input_file_id", Uuid),
    required("completion_window", Text),
    optional("metadata", JSON, "null: the client sent none"),
    optional("output_lifetime", Interval, "of its output files, after its end"),
    required("status", Text, default="'validating'"),
    optional(
        "ending", Text, "the terminal status that it will have; null: none but `completed` is known"
    ),
    optional("model", Text, "of its first request"),
    optional("models", ARRAY(Text), "of its requests, the first ten"),
    optional("retry_of", Uuid, "the batch whose failed requests it runs again"),
    optional("retried_by", Uuid, "the batch that runs its failed requests again"),
    optional("errors", JSON, "of its input file"),
    required("created_at", TIMESTAMP, default="now()"),
    required("expires_at", TIMESTAMP, "end of completion_window"),
    optional("in_progress_at", TIMESTAMP),
    optional("finalizing_at", TIMESTAMP),
    optional("cancelling_at", TIMESTAMP),
    optional("ended_at", TIMESTAMP),
    count("validated_lines", "lines of the input that were checked"),
    count("validated_bytes", "where the next one begins"),
    count("expanded_lines", "lines of the input that were made responses or errors"),
    count("expanded_bytes", "where the next one begins"),
    count("expanded", "requests that were made responses or errors"),
    count("total", "requests"),
    count("completed", "requests that are in the output file"),
    count("failed", "requests that are in the error file"),
    count("input_tokens"),
    count("cached_tokens"),
    count("output_tokens"),
    count("reasoning_tokens"),
    optional("output_file_id", Uuid, "null: nothing was written to it"),
    count("output_parts", "parts of the output file"),
    optional("error_file_id", Uuid, "null: nothing was written to it"),
    count("error_parts", "parts of the error file"),
    required(
        "expander_until",
        TIMESTAMP,
        "before that, no other web process makes responses of its lines",
        default="now()",
    ),
    count("expander_crashes", "web processes that took it, in a row, and did not give it back"),
    required(
        "collector_until",
        TIMESTAMP,
        "before that, no other worker does what there is to do",
        default="now()",
    ),
    count("collector_crashes", "workers that took it, in a row, and did not give it back"),
    Index("ix_batches_project_id", "project_id", "id"),
    partial_index(
        "ix_batches_turns",
        "project_id",
        "collector_until",
        where="status IN ('validating', 'in_progress', 'finalizing', 'cancelling')",
    ),
    partial_index("ix_batches_ended_at", "ended_at", where="ended_at IS NOT NULL"),
)

batch_lines = Table(
    "batch_lines",
    metadata,
    Column("batch_id", Uuid, ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column(
        "line",
        Integer,
        primary_key=True,
        autoincrement=False,
        doc="its number in the input, from 1",
    ),
    required("custom_id", Text),
    required("expanded", Boolean, "it was made a response or an error", default="false"),
    optional("response_id", Uuid, "null: it was refused, or is not expanded"),
    optional("error", JSON, "{status, body}, if it was refused"),
    Index("ix_batch_lines_custom_id", "batch_id", "custom_id", unique=True),
    partial_index("ix_batch_lines_expanded", "batch_id", "line", where="expanded"),
    partial_index("ix_batch_lines_response_id", "response_id", where="response_id IS NOT NULL"),
)

# Vector stores, their files, and the chunks of these (docs/vector-stores.md).
#
# `vector_store_chunks` has one more column where pgvector is installed: `embedding`, a `halfvec`
# (migrations/functions.sql). `alembic check` ignores it (migrations/env.py).


def _created_at() -> Column[object]:
    return required("created_at", TIMESTAMP, default="clock_timestamp()")


vector_stores = Table(
    "vector_stores",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("project_id", Uuid, references="projects.id"),
    required("name", Text),
    optional("description", Text),
    required("metadata", JSON),
    _created_at(),
    required("last_active_at", TIMESTAMP, default="clock_timestamp()"),
    optional("expires_after_days", Integer, "of no use; null: it does not expire"),
    optional("expires_at", TIMESTAMP, "`last_active_at` and `expires_after_days` later"),
    optional("embedding_model", Text, "of all of its chunks; null: they have no embeddings"),
    optional(
        "requested_dimensions", Integer, "as requests to the model say; null: they say nothing"
    ),
    optional("dimensions", Integer, "of its embeddings; null: it has none yet"),
    required("language", Text, "the text search configuration"),
    required("has_index", Boolean, "there is an HNSW index of its embeddings", default="false"),
    optional("delete_requested_at", TIMESTAMP, "from then on nobody sees it"),
    Index("ix_vector_stores_project_id", "project_id", "id"),
    partial_index(
        "ix_vector_stores_expires_at",
        "expires_at",
        where="expires_at IS NOT NULL AND delete_requested_at IS NULL",
    ),
    partial_index(
        "ix_vector_stores_deleted", "delete_requested_at", where="delete_requested_at IS NOT NULL"
    ),
)

vector_store_file_batches = Table(
    "vector_store_file_batches",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("store_id", Uuid, references="vector_stores.id", cascade=True),
    _created_at(),
    optional("cancelled_at", TIMESTAMP),
    Index("ix_vector_store_file_batches_store_id", "store_id"),
)

vector_store_files = Table(
    "vector_store_files",
    metadata,
    Column("id", Uuid, primary_key=True, doc="of the entry; the order of a store's files"),
    required("project_id", Uuid),
    required("store_id", Uuid, references="vector_stores.id"),
    required("file_id", Uuid),
    optional("batch_id", Uuid, "null: it came alone"),
    required("attributes", JSONB),
    required("max_chunk_tokens", Integer),
    required("chunk_overlap_tokens", Integer),
    required("status", Text, default="'in_progress'"),
    optional("error_code", Text),
    optional("error_message", Text),
    count("chunks", "stored ones; the number of the next one"),
    count("usage_bytes", "of the texts and embeddings of its chunks"),
    _created_at(),
    required(
        "next_attempt_at",
        TIMESTAMP,
        "before that no other worker ingests it",
        default="clock_timestamp()",
    ),
    required(
        "attempts",
        Integer,
        "how often a worker has begun; fences the writes of that worker",
        default="0",
    ),
    required("failures", Integer, "attempts in a row that ended without a new chunk", default="0"),
    required(
        "crashes", Integer, "those of them whose worker died, or works on it now", default="0"
    ),
    optional("delete_requested_at", TIMESTAMP, "from then on nobody sees it"),
    partial_index(
        "ix_vector_store_files_file_id",
        "file_id",
        "store_id",
        where="delete_requested_at IS NULL",
        unique=True,
    ),
    Index("ix_vector_store_files_store_id", "store_id", "id"),
    partial_index("ix_vector_store_files_batch_id", "batch_id", "id", where="batch_id IS NOT NULL"),
    Index("ix_vector_store_files_project_id", "project_id"),
    partial_index(
        "ix_vector_store_files_waiting",
        "project_id",
        "next_attempt_at",
        where="status = 'in_progress' AND delete_requested_at IS NULL",
    ),
    partial_index(
        "ix_vector_store_files_useless_chunks",
        "id",
        where="status IN ('failed', 'cancelled') AND chunks > 0 AND delete_requested_at IS NULL",
    ),
    partial_index(
        "ix_vector_store_files_deleted",
        "delete_requested_at",
        where="delete_requested_at IS NOT NULL",
    ),
)

vector_store_chunks = Table(
    "vector_store_chunks",
    metadata,
    Column("store_id", Uuid, primary_key=True),
    Column(
        "entry_id",
        Uuid,
        ForeignKey("vector_store_files.id"),
        primary_key=True,
        doc="vector_store_files.id",
    ),
    Column("number", Integer, primary_key=True, autoincrement=False, doc="in its file, from 0"),
    required("project_id", Uuid),
    required("tokens", Integer),
    required("text", Text),
    required("words", TSVECTOR, "of its text, and the id of the store as one more word"),
    Index("ix_vector_store_chunks_entry_id", "entry_id"),
    Index("ix_vector_store_chunks_words", "words", postgresql_using="gin"),
)

# Endpoints of webhooks, and what was and is to be delivered to them.

webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("project_id", Uuid, references="projects.id", cascade=True, index=True),
    required("name", Text, default="''"),
    required("url", Text),
    required("types", ARRAY(Text), "of events; empty: all"),
    required("created_at", TIMESTAMP, default="now()"),
    optional("updated_at", TIMESTAMP),
    optional("deleted_at", TIMESTAMP, "hidden since then; the purge deletes it"),
    required("secret_key_id", Text, "the key that sealed the secrets"),
    required("secrets", LargeBinary, "sealed: the newest one first"),
    optional("old_secret_until", TIMESTAMP, "end of a rotation: the second one signs too"),
    optional("disabled_at", TIMESTAMP),
    optional("disabled_reason", Text),
    required("failures", Integer, "tries in a row that failed", default="0"),
    optional("failing_since", TIMESTAMP),
    optional("paused_until", TIMESTAMP, "nothing is tried before that"),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", Uuid, primary_key=True),
    required("endpoint_id", Uuid, references="webhook_endpoints.id", cascade=True),
    required("event_id", Uuid),
    required("type", Text),
    required("object_id", Text, "the public id of the response"),
    required("created_at", TIMESTAMP, default="clock_timestamp()"),
    optional("resent_at", TIMESTAMP, "tries begin again from then on"),
    required("attempts", Integer, default="0"),
    optional(
        "next_attempt_at",
        TIMESTAMP,
        "while a worker tries it, when another one may; null: it has ended",
        default="clock_timestamp()",
    ),
    optional("delivered_at", TIMESTAMP),
    optional("last_status", Integer, "the HTTP status of the last try"),
    optional("last_error", Text, "why the last try failed, if there was no status"),
    partial_index(
        "ix_webhook_deliveries_waiting",
        "endpoint_id",
        "next_attempt_at",
        where="next_attempt_at IS NOT NULL",
    ),
    Index("ix_webhook_deliveries_created_at", "created_at"),
    Index("ix_webhook_deliveries_endpoint_id", "endpoint_id", "created_at"),
    Index("ix_webhook_deliveries_event_id", "event_id"),
)
