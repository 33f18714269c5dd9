"""Alembic's entry: uses the caller's connection, else DATABASE_URL.

`cli/database/migrate.py` holds the lock.
"""

from alembic import context
from sqlalchemy import Connection, create_engine, pool

from models.config.settings import Settings, sqlalchemy_url
from models.db.tables import metadata


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection, target_metadata=metadata, transaction_per_migration=True
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    with create_engine(sqlalchemy_url(Settings().dsn), poolclass=pool.NullPool).connect() as own:
        _run(own)
