"""`backburner migrate`: brings a database to this version's schema."""

import time
from collections.abc import Callable
from typing import LiteralString

import psycopg
from alembic import command
from alembic.util import CommandError
from psycopg.rows import TupleRow
from sqlalchemy import create_engine, event, pool
from sqlalchemy.exc import DBAPIError

from cli.errors import CommandFailed, database_failure
from models.config.addresses import DEFAULT_SCHEMA
from models.db.queries.operations import OLDEST_COMPATIBLE_REVISION, SCHEMA_REVISION
from models.db.schema import (
    SchemaState,
    functions,
    migrations_config,
    newest_revision,
    schema_state,
)
from models.db.sync import set_search_path

LOCK = 0x6261636B6275726E
"""The advisory lock of a migration: "backburn" in ASCII. Installations that share a database wait
for each other."""
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '500ms'"
_SCHEMA = """
    SELECT path, to_regnamespace(path) IS NOT NULL, quote_ident(current_user)
    FROM current_setting('search_path') AS path
"""
_OWNER = "SELECT to_regclass('alembic_version') IS NOT NULL, to_regclass('event_log') IS NOT NULL"


def migrate(
    dsn: str, pause: Callable[[float], None] = time.sleep, schema: str = DEFAULT_SCHEMA
) -> None:
    """Runs the missing migrations, then migrations/functions.sql. Only one process migrates at a
    time; others wait for it.

    `dsn` is a libpq URL (`postgresql://…`). `pause(seconds)` is called between two tries to get the
    lock, and may raise to give up. `schema` is the setting `database_schema`; it is made if it does
    not exist. Does nothing on the schema of a newer version on which this one still runs. Raises
    CommandFailed if it does not run on it, if the tables of another application are in its place,
    or if the database does not answer or refuses a statement.
    """
    try:
        # a separate connection outside any transaction, so that the lock does not block index
        # builds
        with _connect(dsn, schema) as lock:
            while lock.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,)).fetchone() != (True,):
                pause(0.1)
            # again: another process may have migrated meanwhile
            lock.execute(set_search_path(schema))
            _create_schema(lock)
            if not _is_newer(lock):
                _upgrade(dsn, schema, pause)
                lock.execute(set_search_path(schema))
                # After the migrations: those are additive, so the functions of the release before
                # work on the new tables until then, and afterwards if this process ends here.
                lock.execute(functions())
    except psycopg.OperationalError as error:
        raise database_failure(error) from error
    except (CommandError, DBAPIError) as error:
        raise CommandFailed(
            f"the database could not be brought to this version's schema: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _connect(dsn: str, schema: str) -> psycopg.Connection[TupleRow]:
    """A connection in autocommit, with the tables in its search path."""
    connection = psycopg.connect(
        dsn, autocommit=True, connect_timeout=10, target_session_attrs="primary"
    )
    connection.execute(set_search_path(schema))
    return connection


def _create_schema(connection: psycopg.Connection[TupleRow]) -> None:
    """Makes the schema of the search path if it does not exist. Raises CommandFailed if the role
    must not, or if the schema has the version table of another application."""
    name, exists, role = _fetch_one(connection, _SCHEMA)
    if not exists:
        try:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        except psycopg.errors.InsufficientPrivilege as error:
            raise CommandFailed(
                f"the role {role} must not make the schema {name}: let the owner of the database"
                f" run CREATE SCHEMA {name} AUTHORIZATION {role}, then migrate again"
            ) from error
        return
    has_versions, has_tables = _fetch_one(connection, _OWNER)
    if has_versions and not has_tables and connection.execute(SCHEMA_REVISION.sql).fetchone():
        raise CommandFailed(
            f"the schema {name} has the table alembic_version of another application: set"
            " BACKBURNER_DATABASE_SCHEMA to another name"
        )


def _fetch_one(connection: psycopg.Connection[TupleRow], sql: LiteralString) -> TupleRow:
    row = connection.execute(sql).fetchone()
    assert row is not None  # none of these statements has a condition
    return row


def _is_newer(connection: psycopg.Connection[TupleRow]) -> bool:
    """Whether the database has the schema of a newer version, on which this one runs. Raises
    CommandFailed if this one does not."""
    if connection.execute("SELECT to_regclass('alembic_version')").fetchone() == (None,):
        return False
    row = connection.execute(SCHEMA_REVISION.sql).fetchone()
    if row is None or row[0] <= newest_revision():
        return False
    [oldest] = _fetch_one(connection, OLDEST_COMPATIBLE_REVISION.sql)
    if schema_state(row[0], oldest) is not SchemaState.OK:
        raise CommandFailed(f"the schema of the database ({row[0]}) is {SchemaState.TOO_NEW}")
    return True


def _upgrade(dsn: str, schema: str, pause: Callable[[float], None]) -> None:
    """Runs the missing migrations, each in a transaction. All statements wait behind one that waits
    for an exclusive lock: behind a long transaction, such as a dump, it is tried again and again.
    """

    def connect() -> psycopg.Connection[TupleRow]:
        connection = _connect(dsn, schema)
        connection.autocommit = False
        return connection

    # psycopg reads the URL, because SQLAlchemy accepts no list of hosts
    engine = create_engine("postgresql+psycopg://", creator=connect, poolclass=pool.NullPool)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(_LOCK_TIMEOUT))
    while True:
        try:
            with engine.connect() as connection:
                config = migrations_config()
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                connection.commit()
                return
        except DBAPIError as error:
            if not isinstance(error.orig, psycopg.errors.LockNotAvailable):
                raise
        pause(1)
