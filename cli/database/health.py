"""`backburner health`: whether a process of this host has a valid lease. A container's health
check.

A lease shows more than an open port: it is renewed only while the event loop of the process runs
and the process has not been reaped. A container runs one process and has its own host name, so the
host name identifies the process.
"""

import socket

import psycopg

from cli.errors import CommandFailed, database_failure
from models.config.addresses import DEFAULT_SCHEMA
from models.db.queries.leases import LIVE_KIND
from models.db.sync import fetch_sync, set_search_path

TIMEOUT = 3
"""Seconds for the connection, and again for the reply."""


def live_kind(dsn: str, host: str | None = None, schema: str = DEFAULT_SCHEMA) -> str:
    """The kind of the newest live process of `host` (default: this host). `schema`: the setting
    `database_schema`.

    `web`, `worker` or `quarantine`. Raises CommandFailed if there is none.
    """
    name = host or socket.gethostname()
    try:
        with psycopg.connect(
            dsn, autocommit=True, connect_timeout=TIMEOUT, application_name="health"
        ) as connection:
            connection.execute(f"SET statement_timeout = '{TIMEOUT}s'".encode())
            connection.execute(set_search_path(schema))
            kinds = fetch_sync(connection, LIVE_KIND, {"host": name})
    except psycopg.Error as error:
        raise database_failure(error) from error
    if not kinds:
        raise CommandFailed(f"no process on {name} holds a lease")
    return kinds[0]
