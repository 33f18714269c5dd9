"""The tables, as Alembic compares them with the database. The migrations create them.

A test (tests/integration/database/test_statements.py) runs `alembic check`: it fails if the
migrations and these files differ. No statement is built from these objects; the statements are text
(models/db/statement.py).
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

RETIRED_COLUMNS = frozenset((("responses", "rings"), ("responses", "streamed")))
"""(table, column) of columns that no code uses any more. They stay in the database for processes of
the previous release, which may run during an update; `alembic check` ignores them
(migrations/env.py). The migration of the next release drops them."""

OPTIONAL_COLUMNS = frozenset((("vector_store_chunks", "embedding"),))
"""(table, column) of columns that are there only where an extension is (migration 0024)."""
MADE_BY_NEED = "ix_vector_store_chunks_hnsw_"
"""What the names of indexes begin with that workers make and drop
(models/db/queries/vector_index.py)."""

__all__ = [
    "MADE_BY_NEED",
    "ONE_OPEN_PER_CONVERSATION",
    "OPTIONAL_COLUMNS",
    "RETIRED_COLUMNS",
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
