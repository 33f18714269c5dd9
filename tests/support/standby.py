"""An asynchronous standby of a PostgreSQL server, made of its binaries."""

import subprocess
from pathlib import Path

import psycopg

from cli.embedded.postgres import Postgres
from tests.support.api import until


class Standby(Postgres):
    """A copy of `primary` that follows it until `lose_contact`; `promote` makes it the primary."""

    def __init__(self, data: Path, logs: Path, primary: Postgres, *, port: int) -> None:
        super().__init__(data, logs, port=port, password=primary.password)
        self.log = logs.resolve() / "standby.log"
        self._primary = primary

    def _make_cluster(self, binaries: Path) -> None:
        self.home.parent.mkdir(parents=True, exist_ok=True)
        self.home.parent.chmod(0o777)
        subprocess.run(
            [
                *(str(binaries / "pg_basebackup"), "--dbname", self._primary.url),
                *("--pgdata", str(self.home), "--write-recovery-conf"),
                *("--checkpoint=fast", "--no-sync"),
            ],
            cwd="/",
            env=self.environment,
            check=True,
            capture_output=True,
            user=self.user.uid if self.user else None,
            group=self.user.gid if self.user else None,
            extra_groups=[] if self.user else None,
        )

    async def wait_until_equal(self) -> None:
        """Waits until it has everything that the primary has committed by now."""
        written = await _value(self._primary.url, "SELECT pg_current_wal_lsn()")
        await until(lambda: self._has_replayed(written))

    async def _has_replayed(self, written: object) -> bool:
        query = f"SELECT pg_last_wal_replay_lsn() >= '{written}'::pg_lsn"
        return bool(await _value(self.url, query))

    async def make_synchronous(self) -> None:
        """From now on the primary answers no commit that is missing here."""
        await _value(self._primary.url, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        await _value(self._primary.url, "SELECT pg_reload_conf()")
        await until(self._is_synchronous)

    async def _is_synchronous(self) -> bool:
        query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        return await _value(self._primary.url, query) == 1

    async def lose_contact(self) -> None:
        """Everything that the primary commits from now on is missing here."""
        await _value(self.url, "ALTER SYSTEM SET primary_conninfo = ''")
        await _value(self.url, "SELECT pg_reload_conf()")
        await until(self._is_alone)

    async def _is_alone(self) -> bool:
        return await _value(self._primary.url, "SELECT count(*) FROM pg_stat_replication") == 0

    async def promote(self) -> None:
        """Makes it a primary."""
        assert await _value(self.url, "SELECT pg_promote()")


async def _value(url: str, query: str) -> object:
    """Runs a statement; returns the first column of its first row, if it has rows."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(query.encode())
        row = await cursor.fetchone() if cursor.description else None
        return row[0] if row else None
