"""A backup of the whole server and the archived log restore a moment, as docs/deploy.md says."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from cli.embedded.postgres import Postgres, find_binaries
from cli.embedded.process import free_port
from tests.support.api import until
from tests.support.chaos.tracebacks import SERVER_TRACEBACKS
from tests.support.fake_upstream import FakeUpstream, reply, text, wait_for
from tests.support.stack import Databases, SuiteSettings, databases, stack

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("embedded_postgres", "embedded_redis")]


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that the user of PostgreSQL may write to."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def _run(server: Postgres, *statements: LiteralString) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


class Restored(Postgres):
    """A base backup of `primary`, which starts at the restore point `moment`."""

    def __init__(self, folder: Path, primary: Postgres) -> None:
        data = folder / "restored" / "data"
        super().__init__(data, folder / "logs", port=free_port(), password=primary.password)
        self._folder, self._primary = folder, primary
        data.parent.mkdir()
        data.parent.chmod(0o777)

    def take_backup(self) -> None:
        """Copies the running primary."""
        self._as_postgres(
            *(str(find_binaries(self.user) / "pg_basebackup"), "--dbname", self._primary.url),
            *("--pgdata", str(self.home), "--checkpoint=fast"),
        )

    def recover_to(self, moment: str) -> None:
        """Lets the next start replay the archive up to this restore point."""
        settings = (
            f"restore_command = 'cp {self._folder}/archive/%f %p'\n"
            f"recovery_target_name = '{moment}'\nrecovery_target_action = 'promote'\n"
        )
        (self.home / "postgresql.auto.conf").write_text(settings)
        self._as_postgres("touch", str(self.home / "recovery.signal"))

    def _as_postgres(self, *command: str) -> None:
        subprocess.run(
            command,
            cwd="/",
            env=self.environment,
            check=True,
            capture_output=True,
            user=self.user.uid if self.user else None,
            group=self.user.gid if self.user else None,
            extra_groups=[] if self.user else None,
        )


class RestoredDatabases(Databases):
    """The restored server: a deployment there uses the database of before."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, None)

    async def create_copy(self) -> str:
        return self.admin_url


async def test_a_moment_before_the_last_backup_log_is_restored(
    tmp_path: Path, public_folder: Path, suite_settings: SuiteSettings, fake: FakeUpstream
) -> None:
    archive = public_folder / "archive"
    archive.mkdir()
    archive.chmod(0o777)
    async with databases(tmp_path / "pg", suite_settings) as own_databases:
        primary = own_databases.server
        assert primary is not None
        _run(
            primary,
            "ALTER SYSTEM SET archive_mode = on",
            f"ALTER SYSTEM SET archive_command = 'cp %p {archive}/%f'",
        )
        await asyncio.to_thread(primary.stop)
        await asyncio.to_thread(primary.start)
        restored = Restored(public_folder, primary)
        async with stack(tmp_path / "first", own_databases, suite_settings, fake) as first:
            await asyncio.to_thread(restored.take_backup)
            api, key = first.api(), first.key
            kept = await api.create(fake.script(reply("kept")))
            released = asyncio.Event()
            model = fake.script([text("first "), wait_for(released), *reply("end")], reply("again"))
            running = await api.create_background(model)
            await until(lambda: fake.requests_for(model))
            _run(primary, "SELECT pg_create_restore_point('moment')")
            lost = await api.create(fake.script(reply("lost")))
            released.set()
            assert (await api.wait_for_end(running))["output_text"] == "first end"
            segment = _value(primary, "SELECT pg_walfile_name(pg_switch_wal())")
            archived = "SELECT last_archived_wal FROM pg_stat_archiver"
            await until(lambda: str(_value(primary, archived) or "") >= str(segment))
            database = first.dsn.rpartition("/")[2]
    restored.recover_to("moment")
    await asyncio.to_thread(restored.start)
    try:
        await until(lambda: _value(restored, "SELECT pg_is_in_recovery()") is False)
        dsn = f"{restored.url.rpartition('/')[0]}/{database}"
        async with stack(
            tmp_path / "second",
            RestoredDatabases(dsn),
            suite_settings,
            fake,
            allowed_tracebacks=SERVER_TRACEBACKS,
        ) as second:
            second.key = key
            api = second.api()
            assert await api.get(kept["id"]) == kept
            assert (await api.call("GET", f"/responses/{lost['id']}")).status == 404
            ended = await api.wait_for_end(running)
            assert ended["output_text"].endswith("again"), "it ran again"
    finally:
        await asyncio.to_thread(restored.stop)


def _value(server: Postgres, query: LiteralString) -> object:
    with psycopg.connect(server.url, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return None if row is None else row[0]
