"""DATABASE_URL with TLS: connections are encrypted, and the certificate is checked. The server is
the system's PostgreSQL, without pgvector."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cli.embedded import postgres
from cli.embedded.postgres import Postgres
from cli.embedded.process import free_port
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.certificates import self_signed
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Databases

pytestmark = pytest.mark.long

NOT_ENCRYPTED = """
    SELECT count(*) FILTER (WHERE NOT ssl)
    FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE usename = 'backburner'
"""


class TlsPostgres(Postgres):
    """A server that refuses connections without TLS. `data`: its cluster, which is made."""

    def __init__(self, data: Path, logs: Path) -> None:
        super().__init__(data, logs, port=free_port(), password="secret")
        self.authority = logs / "certificate" / "certificate.pem"

    def _url(self, database: str) -> str:
        return f"{super()._url(database)}?sslmode=verify-full&sslrootcert={self.authority}"

    def _make_cluster(self, binaries: Path) -> None:
        super()._make_cluster(binaries)
        certificate = self_signed(self.authority.parent)
        for file, name in ((certificate.file, "server.crt"), (certificate.key, "server.key")):
            copy = self.home / name
            copy.touch(mode=0o600)
            copy.write_bytes(file.read_bytes())
            if self.user:
                os.chown(copy, self.user.uid, self.user.gid)
        with (self.home / "postgresql.conf").open("a") as configuration:
            configuration.write("\nssl = on\n")
        (self.home / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")


def installed_binaries() -> Path:
    """The folder of the system's PostgreSQL. Skips the test if there is none."""
    installed = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    initdb = max(installed, key=lambda path: float(path.parts[-3]), default=None)
    if initdb is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    return initdb.parent


@pytest.fixture
async def database_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Databases]:
    """Takes the place of the suite's server for the stacks of this file."""
    binaries = installed_binaries()
    monkeypatch.setattr(postgres, "find_binaries", lambda _user: binaries)
    with TlsPostgres(tmp_path / "postgres", tmp_path) as server:
        databases = Databases(server.url, server)
        await databases.prepare()
        yield databases


async def test_all_connections_go_through_tls(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack() as own_stack:
        api = own_stack.api()
        created = await api.create_background(fake.script(reply("stored")))
        assert (await api.wait_for_end(created))["output_text"] == "stored"
        assert await own_stack.value(NOT_ENCRYPTED) == 0

        tool = {"type": "file_search", "vector_store_ids": ["vs_" + "0" * 32]}
        for path, body in (
            ("/vector_stores", {}),
            ("/responses", {"model": "m", "input": "x", "tools": [tool]}),
        ):
            refused = await api.call("POST", path, body)
            assert (refused.status, refused.error["code"]) == (400, "vector_stores_not_available")


@pytest.mark.parametrize("module", ["web", "worker"])
async def test_a_server_with_another_certificate_is_refused(
    tmp_path: Path, private_stack: PrivateStack, module: str
) -> None:
    other = self_signed(tmp_path / "other").file
    async with private_stack(webs=0, workers=0) as own_stack:
        trusted = own_stack.dsn.partition("sslrootcert=")[0]
        own_stack.settings["DATABASE_URL"] = f"{trusted}sslrootcert={other}"
        process = own_stack.spawn_web() if module == "web" else own_stack.spawn_worker()
        await until(lambda: not process.running(), 60)
        own_stack.forget(process)
        line = json.loads(process.tail().splitlines()[-1])
        assert process.exit_code() == 1
        assert "certificate verify failed" in line["error"]
