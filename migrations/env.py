"""Alembic's entry: the caller hands a connection over, else DATABASE_URL is used (cli/migrate.py holds the lock)."""

from alembic import context
from sqlalchemy import Connection, create_engine, pool

from models.config.settings import Settings
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
    url = Settings().dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    with create_engine(url, poolclass=pool.NullPool).connect() as own:
        _run(own)
