"""`backburner health`: whether a process of this host is alive in the eyes of the database. A container's health check.

The lease says more than a port would: it is renewed only while the process's event loop turns and the database has not declared it
dead. A container runs one process under a host name of its own, so the host name is enough to find it.
"""

import socket

import psycopg

from cli.embedded.process import StartFailed

TIMEOUT = 3
"""Seconds for the connection, and again for the answer."""
LIVE_PROCESS = """
    SELECT kind FROM workers WHERE host = %s AND NOT dead AND expires_at > clock_timestamp()
    ORDER BY started_at DESC LIMIT 1
"""


def live_kind(dsn: str, host: str | None = None) -> str:
    """What the youngest live process of `host` (this one) is: `web`, `worker` or `quarantine`. Raises StartFailed when there is none."""
    name = host or socket.gethostname()
    try:
        with psycopg.connect(
            dsn,
            autocommit=True,
            connect_timeout=TIMEOUT,
            application_name="health",
            options=f"-c statement_timeout={TIMEOUT}s",
        ) as connection:
            found = connection.execute(LIVE_PROCESS, (name,)).fetchone()
    except psycopg.Error as error:
        raise StartFailed(f"the database did not answer: {' '.join(str(error).split())}") from error
    if found is None:
        raise StartFailed(f"no process on {name} holds a lease")
    return str(found[0])
