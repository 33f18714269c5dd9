"""Files of projects, and the stored objects that are their content (docs/files.md)."""

from sqlalchemy import (
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

files = Table(
    "files",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("project_id", Uuid, ForeignKey("projects.id"), nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column(
        "bytes",
        BigInteger,
        nullable=False,
        doc="until it is complete: as many as are reserved for it",
    ),
    Column("media_type", Text, doc="what its bytes were found to be"),
    Column("created_at", TIMESTAMP, nullable=False, server_default=func.clock_timestamp()),
    Column("completed_at", TIMESTAMP, doc="null: it is still being written"),
    Column("lifetime", Interval, doc="after its creation, once it is complete"),
    Column(
        "expires_at",
        TIMESTAMP,
        doc="null: it is kept until it is deleted; until it is complete: the end of its upload",
    ),
    Column("delete_requested_at", TIMESTAMP, doc="from then on nobody sees it"),
    Index("ix_files_project_id", "project_id", "id"),
    Index(
        "ix_files_expires_at",
        "expires_at",
        postgresql_where=text("expires_at IS NOT NULL AND delete_requested_at IS NULL"),
    ),
    Index(
        "ix_files_deleted",
        "delete_requested_at",
        postgresql_where=text("delete_requested_at IS NOT NULL"),
    ),
)

file_parts = Table(
    "file_parts",
    metadata,
    Column("id", Uuid, primary_key=True, doc="names the stored object"),
    Column("file_id", Uuid, ForeignKey("files.id"), nullable=False),
    Column("number", Integer, doc="its place in the content; null: not part of it yet"),
    Column("bytes", BigInteger, doc="null: it is still being written"),
    Column("created_at", TIMESTAMP, nullable=False, server_default=func.clock_timestamp()),
    Column(
        "abandoned",
        Boolean,
        nullable=False,
        server_default=text("false"),
        doc="its object is to be deleted",
    ),
    Index("ix_file_parts_number", "file_id", "number", unique=True),
    Index("ix_file_parts_unused", "created_at", postgresql_where=text("number IS NULL")),
)
