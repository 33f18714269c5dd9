"""Alembic's entry: uses the caller's connection, else DATABASE_URL.

`cli/database/migrate.py` holds the lock.
"""

from collections.abc import Mapping

from alembic import context
from sqlalchemy import Connection, create_engine, pool

from models.config.settings import Settings, sqlalchemy_url
from models.db.tables import RETIRED_COLUMNS, metadata


def _is_compared(name: str | None, kind: str, parents: Mapping[str, str | None]) -> bool:
    """False for the columns that `alembic check` ignores."""
    return kind != "column" or (parents["table_name"], name) not in RETIRED_COLUMNS


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
    _url = sqlalchemy_url(Settings().dsn)
    with create_engine(_url, poolclass=pool.NullPool).connect() as _own_connection:
        _run(_own_connection)
