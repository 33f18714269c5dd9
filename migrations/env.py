"""Alembic's entry. The caller passes a connection whose `search_path` names the schema of the tables
and of `alembic_version`.

Only `backburner migrate` runs migrations (cli/database/migrate.py): it holds the lock, makes the
schema and applies migrations/functions.sql.
"""

from collections.abc import Mapping

from alembic import context
from sqlalchemy import Text
from sqlalchemy.dialects.postgresql.base import ischema_names

from models.db.tables import LOG_PARTITIONS, MADE_BY_NEED, OPTIONAL_COLUMNS, metadata


def _is_compared(name: str | None, kind: str, parents: Mapping[str, str | None]) -> bool:
    """False for the tables, columns and indexes that `alembic check` ignores."""
    if kind == "table":
        return name is None or not name.startswith(LOG_PARTITIONS)
    if kind == "index":
        return name is None or not name.startswith(MADE_BY_NEED)
    return kind != "column" or (parents["table_name"], name) not in OPTIONAL_COLUMNS


ischema_names["halfvec"] = Text
"""pgvector's type, which SQLAlchemy would warn of. Its column is not compared."""

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=True,
    include_name=_is_compared,
)
with context.begin_transaction():
    context.run_migrations()
