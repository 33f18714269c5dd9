"""The tables, as Alembic compares them with the database. The migrations create them;
migrations/functions.sql adds functions and triggers.

A test (tests/integration/database/test_statements.py) runs `alembic check`: it fails if the
migrations and these files differ. No statement is built from these objects; the statements are text
(models/db/statement.py).
"""

# Each module adds its tables to the metadata.
from models.db.tables import cells, containers, files, organization, responses, schedules, search
from models.db.tables.base import metadata

OPTIONAL_COLUMNS = frozenset((("vector_store_chunks", "embedding"),))
"""(table, column) of columns that are there only where an extension is
(migrations/functions.sql)."""
MADE_BY_NEED = "ix_vector_store_chunks_hnsw_"
"""What the names of indexes begin with that workers make and drop
(features/retrieval/worker_queries.py)."""
LOG_PARTITIONS = "event_log_"
"""What the names of the partitions of the event log begin with."""

__all__ = [
    "LOG_PARTITIONS",
    "MADE_BY_NEED",
    "OPTIONAL_COLUMNS",
    "cells",
    "containers",
    "files",
    "metadata",
    "organization",
    "responses",
    "schedules",
    "search",
]
