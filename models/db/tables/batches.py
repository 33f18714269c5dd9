"""Batches, and the lines of their input that are not in an output file yet (ADR 0049)."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    Interval,
    Table,
    Text,
    Uuid,
    func,
    text,
)

from models.db.tables.base import TIMESTAMP, metadata


def _count(name: str, doc: str | None = None) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"), doc=doc)


batches = Table(
    "batches",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("project_id", Uuid, ForeignKey("projects.id"), nullable=False),
    Column("api_key_id", Uuid, nullable=False, doc="the key of the request that made it"),
    Column("endpoint", Text, nullable=False),
    Column("input_file_id", Uuid, nullable=False),
    Column("completion_window", Text, nullable=False),
    Column("metadata", JSON, doc="null: the client sent none"),
    Column("output_lifetime", Interval, doc="of its output files, after its end"),
    Column("status", Text, nullable=False, server_default="validating"),
    Column(
        "ending",
        Text,
        doc="the terminal status that it will have; null: none but `completed` is known",
    ),
    Column("model", Text, doc="of its first request"),
    Column("errors", JSON, doc="of its input file"),
    Column("created_at", TIMESTAMP, nullable=False, server_default=func.now()),
    Column("expires_at", TIMESTAMP, nullable=False, doc="end of completion_window"),
    Column("in_progress_at", TIMESTAMP),
    Column("finalizing_at", TIMESTAMP),
    Column("cancelling_at", TIMESTAMP),
    Column("ended_at", TIMESTAMP),
    _count("validated_lines", "lines of the input that were checked"),
    _count("validated_bytes", "where the next one begins"),
    _count("expanded_lines", "lines of the input that were made responses or errors"),
    _count("expanded_bytes", "where the next one begins"),
    _count("expanded", "requests that were made responses or errors"),
    _count("total", "requests"),
    _count("completed", "requests that are in the output file"),
    _count("failed", "requests that are in the error file"),
    _count("input_tokens"),
    _count("cached_tokens"),
    _count("output_tokens"),
    _count("reasoning_tokens"),
    Column("output_file_id", Uuid, doc="null: nothing was written to it"),
    _count("output_parts", "parts of the output file"),
    Column("error_file_id", Uuid, doc="null: nothing was written to it"),
    _count("error_parts", "parts of the error file"),
    Column(
        "expander_until",
        TIMESTAMP,
        nullable=False,
        server_default=func.now(),
        doc="before that, no other web process makes responses of its lines",
    ),
    _count("expander_crashes", "web processes that took it, in a row, and did not give it back"),
    Column(
        "collector_until",
        TIMESTAMP,
        nullable=False,
        server_default=func.now(),
        doc="before that, no other worker does what there is to do",
    ),
    _count("collector_crashes", "workers that took it, in a row, and did not give it back"),
    Index("ix_batches_project_id", "project_id", "id"),
    Index(
        "ix_batches_turns",
        "project_id",
        "collector_until",
        postgresql_where=text(
            "status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
        ),
    ),
    Index("ix_batches_ended_at", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
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
    Column("custom_id", Text, nullable=False),
    Column(
        "expanded",
        Boolean,
        nullable=False,
        server_default=text("false"),
        doc="it was made a response or an error",
    ),
    Column("response_id", Uuid, doc="null: it was refused, or is not expanded"),
    Column("error", JSON, doc="{status, body}, if it was refused"),
    Index("ix_batch_lines_custom_id", "batch_id", "custom_id", unique=True),
    Index("ix_batch_lines_expanded", "batch_id", "line", postgresql_where=text("expanded")),
    Index(
        "ix_batch_lines_response_id",
        "response_id",
        postgresql_where=text("response_id IS NOT NULL"),
    ),
)
