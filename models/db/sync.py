"""Connections to Postgres for threads without an event loop: the heartbeat and the command line.

It imports little, because each command of an operator imports it. `models/db/database.py` is for
everything else, and sets up its sessions in the same way.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import orjson
import psycopg
from psycopg.rows import TupleRow, tuple_row
from psycopg.types.json import set_json_dumps, set_json_loads

from models.config.addresses import DEFAULT_SCHEMA
from models.db.statement import Query, RowT, Statement

set_json_loads(orjson.loads)
set_json_dumps(orjson.dumps)

SyncConnection = psycopg.Connection[TupleRow]
Parameters = Mapping[str, object]


class DatabaseSettings(Protocol):
    """What a connection needs of the settings; commands have nothing else (cli/addresses.py)."""

    @property
    def dsn(self) -> str:
        """The libpq URL."""

    @property
    def database_schema(self) -> str:
        """The setting of this name."""


SET_SESSION = Statement(
    "SET statement_timeout = '15s'; SET idle_in_transaction_session_timeout = '3s';"
    " SET default_transaction_isolation = 'read committed'"
)
"""The first statement of every session, before that of `set_search_path`."""


def connection_arguments(settings: DatabaseSettings, name: str) -> dict[str, Any]:
    """psycopg's connection arguments. `name`: the session's `application_name`."""
    return {
        "conninfo": settings.dsn,
        "application_name": name,
        "autocommit": True,
        "connect_timeout": 3,
        # A standby must not be used before it is promoted: what it shows is older.
        "target_session_attrs": "primary",
        "keepalives_idle": 3,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": 8000,
        "row_factory": tuple_row,
    }


def session_setup(settings: DatabaseSettings) -> bytes:
    """The statements with which every session begins, as one message."""
    return b"%b; %b" % (SET_SESSION.sql.encode(), set_search_path(settings.database_schema))


def connect_sync(settings: DatabaseSettings, name: str, connect_timeout: int = 3) -> SyncConnection:
    """A connection for a thread without an event loop. `connect_timeout` in seconds. Raises
    `psycopg.OperationalError` if Postgres is unavailable."""
    connection = SyncConnection.connect(
        **connection_arguments(settings, name) | {"connect_timeout": connect_timeout}
    )
    try:
        connection.execute(session_setup(settings))
    except psycopg.Error:
        connection.close()
        raise
    return connection


def fetch_sync(
    connection: SyncConnection, query: Query[RowT], parameters: Parameters
) -> list[RowT]:
    """All rows of one statement on this connection. Blocks."""
    return query.rows(connection.execute(query.sql, parameters, binary=True).fetchall())


def execute_sync(
    connection: SyncConnection, statement: Statement | Query[Any], parameters: Parameters
) -> None:
    """Runs a statement on this connection. Blocks. Its rows are not read."""
    connection.execute(statement.sql, parameters, binary=True)


def set_search_path(schema: str = DEFAULT_SCHEMA) -> bytes:
    """The statement after which a session finds the tables by their names, and nothing else beside
    what Postgres itself has. `schema`: the setting `database_schema` (docs/deploy.md).

    Every session begins with it. PgBouncer refuses or drops `options` of a connection, and a
    `search_path` of the role or of the database belongs to the operator."""
    return f"""SET search_path = "{schema}\"""".encode()
