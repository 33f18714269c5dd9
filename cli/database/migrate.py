"""`backburner migrate`: brings a database to this version's schema."""

import time
from collections.abc import Callable

import psycopg
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from psycopg.rows import TupleRow
from sqlalchemy import create_engine, pool
from sqlalchemy.exc import DBAPIError

from cli.errors import CommandFailed, database_failure
from cli.settings import ROOT
from models.db.queries.operations import OLDEST_COMPATIBLE_REVISION, SCHEMA_REVISION
from models.db.schema import SchemaState, newest_revision, schema_state

LOCK = 0x6261636B6275726E
"""The advisory lock of a migration: "backburn" in ASCII."""


def migrate(dsn: str, pause: Callable[[float], None] = time.sleep) -> None:
    """Runs the missing migrations. Only one process migrates at a time; others wait for it.

    `dsn` is a libpq URL (`postgresql://…`). `pause(seconds)` is called between two tries to get the
    lock, and may raise to give up. Does nothing on the schema of a newer version on which this one
    still runs. Raises CommandFailed if it does not run on it, or if the database does not answer or
    refuses a statement.
    """
    try:
        # a separate connection outside any transaction, so that the lock does not block index
        # builds
        with psycopg.connect(
            dsn, autocommit=True, connect_timeout=10, target_session_attrs="primary"
        ) as lock:
            while lock.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,)).fetchone() != (True,):
                pause(0.1)
            if not _is_newer(lock):
                _upgrade(dsn)
    except psycopg.OperationalError as error:
        raise database_failure(error) from error
    except (CommandError, DBAPIError) as error:
        raise CommandFailed(
            f"the database could not be brought to this version's schema: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _is_newer(connection: psycopg.Connection[TupleRow]) -> bool:
    """Whether the database has the schema of a newer version, on which this one runs. Raises
    CommandFailed if this one does not."""
    if connection.execute("SELECT to_regclass('alembic_version')").fetchone() == (None,):
        return False
    row = connection.execute(SCHEMA_REVISION.sql).fetchone()
    if row is None or row[0] <= newest_revision():
        return False
    oldest = connection.execute(OLDEST_COMPATIBLE_REVISION.sql).fetchone()
    if schema_state(row[0], oldest[0] if oldest else None) is not SchemaState.OK:
        raise CommandFailed(f"the schema of the database ({row[0]}) is {SchemaState.TOO_NEW}")
    return True


def _upgrade(dsn: str) -> None:
    # psycopg reads the URL, because SQLAlchemy accepts no list of hosts
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(dsn, target_session_attrs="primary"),
        poolclass=pool.NullPool,
    )
    with engine.connect() as connection:
        config = Config(ROOT / "alembic.ini", attributes={"connection": connection})
        command.upgrade(config, "head")
        connection.commit()
