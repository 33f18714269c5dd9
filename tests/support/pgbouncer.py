"""PgBouncer before PostgreSQL, from the system's package."""

import os
import shutil
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from cli.embedded.process import ServerProcess
from tests.support.stack import Databases

PoolMode = Literal["session", "transaction"]

_CONFIGURATION = """\
[databases]
* = host={server.hostname} port={server.port} user={server.username} password={server.password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 100
max_client_conn = 500
application_name_add_host = 1
{more}
"""


class PgBouncer(ServerProcess):
    """One PgBouncer. It lets every client in and connects as the user of `server_url`."""

    def __init__(
        self, folder: Path, server_url: str, *, port: int, mode: PoolMode, more: str = ""
    ) -> None:
        """`server_url`: any database of the PostgreSQL server. `more`: lines of configuration."""
        super().__init__("pgbouncer", folder / "pgbouncer.log")
        self.port = port
        self._server_url = server_url
        configuration = folder / "pgbouncer.ini"
        configuration.write_text(
            _CONFIGURATION.format(server=urlsplit(server_url), port=port, mode=mode, more=more)
        )
        # It refuses to run as root, and reads its configuration before it changes its user.
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        self.command = [find_pgbouncer(), *user, str(configuration)]

    def url(self, of: str) -> str:
        """The URL of a database of the server, with PgBouncer's address in it."""
        parts = urlsplit(of)
        credentials, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{self.port}"))

    def is_ready(self) -> bool:
        """Whether it answers a statement."""
        try:
            psycopg.connect(self.url(self._server_url), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


def find_pgbouncer() -> str:
    """The program. Skips the test if it is not installed."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if program is None:
        pytest.skip("PgBouncer is not installed (apt-get install pgbouncer)")
    return program


class PooledDatabases(Databases):
    """The databases of a server, with URLs that lead through PgBouncer."""

    def __init__(self, server_databases: Databases, pgbouncer: PgBouncer) -> None:
        super().__init__(server_databases.admin_url, None)
        self._databases = server_databases
        self._pgbouncer = pgbouncer

    async def create_copy(self) -> str:
        """Returns the URL of a new, migrated, empty database."""
        return self._pgbouncer.url(await self._databases.create_copy())
