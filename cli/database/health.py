"""`backburner health`: whether a process of this host has a valid lease. A container's health
check.

A lease shows more than an open port: it is renewed only while the event loop of the process runs
and the process has not been reaped. A container runs one process and has its own host name, so the
host name identifies the process.
"""

import socket

import psycopg

from cli.errors import CommandFailed, database_failure

TIMEOUT = 3
"""Seconds for the connection, and again for the reply."""
# Not one of models/db/queries: a health check runs every few seconds, and importing SQLAlchemy
# would take most of its time.
LIVE_PROCESS = """
    SELECT kind FROM workers WHERE host = %s AND NOT dead AND expires_at > clock_timestamp()
    ORDER BY started_at DESC LIMIT 1
"""


def live_kind(dsn: str, host: str | None = None) -> str:
    """The kind of the newest live process of `host` (default: this host).

    `web`, `worker` or `quarantine`. Raises CommandFailed if there is none.
    """
    name = host or socket.gethostname()
    try:
        with psycopg.connect(
            dsn,
            autocommit=True,
            connect_timeout=TIMEOUT,
            application_name="health",
        ) as connection:
            connection.execute(f"SET statement_timeout = '{TIMEOUT}s'".encode())
            row = connection.execute(LIVE_PROCESS, (name,)).fetchone()
    except psycopg.Error as error:
        raise database_failure(error) from error
    if row is None:
        raise CommandFailed(f"no process on {name} holds a lease")
    return str(row[0])
