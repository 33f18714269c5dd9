"""Alembic's entry: uses the caller's connection, whose `search_path` names the schema of the tables
and of `alembic_version`; else DATABASE_URL.

`cli/database/migrate.py` holds the lock, and makes the schema.
"""

from collections.abc import Mapping

from alembic import context
from sqlalchemy import Connection, Text, create_engine, pool
from sqlalchemy.dialects.postgresql.base import ischema_names

from models.config.settings import Settings, sqlalchemy_url
from models.db.search_path import set_search_path
from models.db.tables import MADE_BY_NEED, OPTIONAL_COLUMNS, RETIRED_COLUMNS, metadata


def _is_compared(name: str | None, kind: str, parents: Mapping[str, str | None]) -> bool:
    """False for the columns and indexes that `alembic check` ignores."""
    if kind == "index":
        return name is None or not name.startswith(MADE_BY_NEED)
    ignored = RETIRED_COLUMNS | OPTIONAL_COLUMNS
    return kind != "column" or (parents["table_name"], name) not in ignored


ischema_names["halfvec"] = Text
"""pgvector's type, which SQLAlchemy would warn of. Its column is not compared."""


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transaction_per_migration=True,
        include_name=_is_compared,
    )
    with context.begin_transaction():
        context.run_migrations()


_connection = context.config.attributes.get("connection")
if _connection is not None:
    _run(_connection)
else:
    _settings = Settings()
    _engine = create_engine(sqlalchemy_url(_settings.dsn), poolclass=pool.NullPool)
    with _engine.connect() as _own_connection:
        _own_connection.exec_driver_sql(set_search_path(_settings.database_schema).decode())
        _own_connection.commit()
        _run(_own_connection)
