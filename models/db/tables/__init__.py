"""The tables, as Alembic compares them with the database. The migrations create them;
migrations/functions.sql adds functions and triggers.

A test (tests/integration/database/test_statements.py) runs `alembic check`: it fails if the
migrations and these files differ. What `doc` says of a column is not in the database. No statement
is built from these objects; the statements are text (models/db/statement.py).
"""

# Each module adds its tables to the metadata.
from models.db.tables import (
    activity,
    audit,
    batches,
    console,
    files,
    output,
    processes,
    projects,
    retrieval,
    usage,
    webhooks,
)
from models.db.tables.base import metadata
from models.db.tables.responses import ONE_OPEN_PER_CONVERSATION

OPTIONAL_COLUMNS = frozenset((("vector_store_chunks", "embedding"),))
"""(table, column) of columns that are there only where an extension is
(migrations/functions.sql)."""
MADE_BY_NEED = "ix_vector_store_chunks_hnsw_"
"""What the names of indexes begin with that workers make and drop
(features/retrieval/worker_queries.py)."""

__all__ = [
    "MADE_BY_NEED",
    "ONE_OPEN_PER_CONVERSATION",
    "OPTIONAL_COLUMNS",
    "activity",
    "audit",
    "batches",
    "console",
    "files",
    "metadata",
    "output",
    "processes",
    "projects",
    "retrieval",
    "usage",
    "webhooks",
]
