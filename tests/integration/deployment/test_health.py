"""`backburner health`: the health check of a container."""

import socket
from datetime import timedelta

import psycopg
import pytest
from typer.testing import CliRunner

from cli.database.health import live_kind
from cli.errors import CommandFailed
from cli.main import app
from models.db.queries import leases
from models.ids import new_uuid
from tests.support.stack import Databases

HERE = socket.gethostname()


@pytest.fixture
async def dsn(database_server: Databases) -> str:
    return await database_server.create_copy()


def _register(
    dsn: str,
    *,
    kind: str = "worker",
    host: str = HERE,
    lease: timedelta = timedelta(minutes=10),
    dead: bool = False,
) -> None:
    """Registers a process, as the process itself would."""
    me = new_uuid()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            leases.REGISTER.sql,
            {
                "me": me,
                "kind": kind,
                "host": host,
                "pid": 1,
                "lease": lease,
                "slots": None,
                "version": "1",
            },
        )
        if dead:
            connection.execute(leases.DEREGISTER.sql, {"me": me})


@pytest.mark.parametrize("kind", ["web", "worker", "quarantine"])
def test_a_process_with_a_valid_lease_is_healthy(dsn: str, kind: str) -> None:
    _register(dsn, kind=kind)
    assert live_kind(dsn) == kind


def test_a_host_without_a_process_is_unhealthy(dsn: str) -> None:
    with pytest.raises(CommandFailed, match="holds a lease"):
        live_kind(dsn)


def test_a_process_with_an_expired_lease_is_unhealthy(dsn: str) -> None:
    _register(dsn, lease=timedelta(seconds=-1))
    with pytest.raises(CommandFailed, match="holds a lease"):
        live_kind(dsn)


def test_a_stopped_process_is_unhealthy(dsn: str) -> None:
    _register(dsn, dead=True)
    with pytest.raises(CommandFailed, match="holds a lease"):
        live_kind(dsn)


def test_a_process_of_another_host_does_not_make_this_host_healthy(dsn: str) -> None:
    _register(dsn, host="elsewhere")
    with pytest.raises(CommandFailed, match="holds a lease"):
        live_kind(dsn)


def test_a_restarted_process_is_healthy_although_the_old_one_is_dead(dsn: str) -> None:
    _register(dsn, dead=True)
    _register(dsn)
    assert live_kind(dsn) == "worker"


def test_an_unreachable_database_is_one_sentence_without_its_password() -> None:
    with pytest.raises(CommandFailed, match="the database did not answer: ") as failed:
        live_kind("postgresql://nobody:secret-word@127.0.0.1:1/none")
    assert "secret-word" not in str(failed.value)
    assert "\n" not in str(failed.value)


def test_the_container_platform_gets_the_health_as_exit_status(dsn: str) -> None:
    runner = CliRunner()
    before = runner.invoke(app, ["health"], env={"DATABASE_URL": dsn})
    assert before.exit_code == 1
    assert before.stderr.startswith("backburner: no process on ")
    _register(dsn)
    after = runner.invoke(app, ["health"], env={"DATABASE_URL": dsn})
    assert (after.exit_code, after.stdout) == (0, "worker\n")
