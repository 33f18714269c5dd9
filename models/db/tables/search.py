"""What operators find responses by, and the filters that they have saved."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import TSVECTOR

from models.db.tables.base import TIMESTAMP, metadata, optional, required

search_documents = Table(
    "search_documents",
    metadata,
    Column("response_id", Uuid, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    required("has_text", Boolean, "the words of its input and output are in the document"),
    required("document", TSVECTOR, "words and marks (models/db/queries/search_documents.py)"),
    # A search reads the whole pending list, so it is short.
    Index(
        "ix_search_documents_document",
        "document",
        postgresql_using="gin",
        postgresql_with={"gin_pending_list_limit": "512"},
    ),
)

search_walk = Table(
    "search_walk",
    metadata,
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    required(
        "position",
        Uuid,
        "the walk looks next at the responses with smaller ids",
        default="'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    ),
    required("next_at", TIMESTAMP, "when the next step may begin", default="'-infinity'"),
    optional("completed_at", TIMESTAMP, "when it reached the oldest response last"),
    required("index_size", BigInteger, "bytes of the index when it was made last", default="0"),
    CheckConstraint("single", name="single"),
)

console_filters = Table(
    "console_filters",
    metadata,
    Column("login", Text, primary_key=True, doc="the name of the session, as in the audit log"),
    Column("name", Text, primary_key=True),
    required("query", Text, "the parameters of the page of responses, as in its address"),
    required("created_at", TIMESTAMP, default="clock_timestamp()"),
)
