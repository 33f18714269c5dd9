"""Vector stores, their files, and the chunks of these (ADR 0054).

`vector_store_chunks` has one more column where pgvector is installed: `embedding`, a `halfvec`
(migrations/functions.sql). `alembic check` ignores it (migrations/env.py).
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TSVECTOR

from models.db.tables.base import TIMESTAMP, metadata


def _created_at() -> Column[object]:
    return Column("created_at", TIMESTAMP, nullable=False, server_default=func.clock_timestamp())


vector_stores = Table(
    "vector_stores",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("project_id", Uuid, ForeignKey("projects.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("description", Text),
    Column("metadata", JSON, nullable=False),
    _created_at(),
    Column("last_active_at", TIMESTAMP, nullable=False, server_default=func.clock_timestamp()),
    Column("expires_after_days", Integer, doc="of no use; null: it does not expire"),
    Column("expires_at", TIMESTAMP, doc="`last_active_at` and `expires_after_days` later"),
    Column("embedding_model", Text, doc="of all of its chunks; null: they have no embeddings"),
    Column(
        "requested_dimensions",
        Integer,
        doc="as requests to the model say; null: they say nothing",
    ),
    Column("dimensions", Integer, doc="of its embeddings; null: it has none yet"),
    Column("language", Text, nullable=False, doc="the text search configuration"),
    Column(
        "has_index",
        Boolean,
        nullable=False,
        server_default=text("false"),
        doc="there is an HNSW index of its embeddings",
    ),
    Column("delete_requested_at", TIMESTAMP, doc="from then on nobody sees it"),
    Index("ix_vector_stores_project_id", "project_id", "id"),
    Index(
        "ix_vector_stores_expires_at",
        "expires_at",
        postgresql_where=text("expires_at IS NOT NULL AND delete_requested_at IS NULL"),
    ),
    Index(
        "ix_vector_stores_deleted",
        "delete_requested_at",
        postgresql_where=text("delete_requested_at IS NOT NULL"),
    ),
)

vector_store_file_batches = Table(
    "vector_store_file_batches",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("store_id", Uuid, ForeignKey("vector_stores.id", ondelete="CASCADE"), nullable=False),
    _created_at(),
    Column("cancelled_at", TIMESTAMP),
    Index("ix_vector_store_file_batches_store_id", "store_id"),
)

vector_store_files = Table(
    "vector_store_files",
    metadata,
    Column("id", Uuid, primary_key=True, doc="of the entry; the order of a store's files"),
    Column("project_id", Uuid, nullable=False),
    Column("store_id", Uuid, ForeignKey("vector_stores.id"), nullable=False),
    Column("file_id", Uuid, nullable=False),
    Column("batch_id", Uuid, doc="null: it came alone"),
    Column("attributes", JSONB, nullable=False),
    Column("max_chunk_tokens", Integer, nullable=False),
    Column("chunk_overlap_tokens", Integer, nullable=False),
    Column("status", Text, nullable=False, server_default="in_progress"),
    Column("error_code", Text),
    Column("error_message", Text),
    Column(
        "chunks",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        doc="stored ones; the number of the next one",
    ),
    Column(
        "usage_bytes",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        doc="of the texts and embeddings of its chunks",
    ),
    _created_at(),
    Column(
        "next_attempt_at",
        TIMESTAMP,
        nullable=False,
        server_default=func.clock_timestamp(),
        doc="before that no other worker ingests it",
    ),
    Column(
        "attempts",
        Integer,
        nullable=False,
        server_default=text("0"),
        doc="how often a worker has begun; fences the writes of that worker",
    ),
    Column(
        "failures",
        Integer,
        nullable=False,
        server_default=text("0"),
        doc="attempts in a row that ended without a new chunk",
    ),
    Column(
        "crashes",
        Integer,
        nullable=False,
        server_default=text("0"),
        doc="those of them whose worker died, or works on it now",
    ),
    Column("delete_requested_at", TIMESTAMP, doc="from then on nobody sees it"),
    Index(
        "ix_vector_store_files_file_id",
        "file_id",
        "store_id",
        unique=True,
        postgresql_where=text("delete_requested_at IS NULL"),
    ),
    Index("ix_vector_store_files_store_id", "store_id", "id"),
    Index(
        "ix_vector_store_files_batch_id",
        "batch_id",
        "id",
        postgresql_where=text("batch_id IS NOT NULL"),
    ),
    Index("ix_vector_store_files_project_id", "project_id"),
    Index(
        "ix_vector_store_files_waiting",
        "project_id",
        "next_attempt_at",
        postgresql_where=text("status = 'in_progress' AND delete_requested_at IS NULL"),
    ),
    Index(
        "ix_vector_store_files_useless_chunks",
        "id",
        postgresql_where=text(
            "status IN ('failed', 'cancelled') AND chunks > 0 AND delete_requested_at IS NULL"
        ),
    ),
    Index(
        "ix_vector_store_files_deleted",
        "delete_requested_at",
        postgresql_where=text("delete_requested_at IS NOT NULL"),
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
    Column("project_id", Uuid, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column(
        "words",
        TSVECTOR,
        nullable=False,
        doc="of its text, and the id of the store as one more word",
    ),
    Index("ix_vector_store_chunks_entry_id", "entry_id"),
    Index("ix_vector_store_chunks_words", "words", postgresql_using="gin"),
)
