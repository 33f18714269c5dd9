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


def _announce(
    dsn: str,
    *,
    kind: str = "worker",
    host: str = HERE,
    lease: timedelta = timedelta(minutes=10),
    dead: bool = False,
) -> None:
    """A process, as it would announce itself."""
    me = new_uuid()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            leases.REGISTER.sql, {"me": me, "kind": kind, "host": host, "pid": 1, "lease": lease}
        )
        if dead:
            connection.execute(leases.DEREGISTER.sql, {"me": me})


@pytest.mark.parametrize("kind", ["web", "worker", "quarantine"])
def test_a_process_with_a_lease_is_well(dsn: str, kind: str) -> None:
    _announce(dsn, kind=kind)
    assert live_kind(dsn) == kind


def test_nobody_is_not_well(dsn: str) -> None:
    with pytest.raises(CommandFailed, match="holds a lease"):
        live_kind(dsn)


def test_one_whose_lease_ran_out_is_not_well(dsn: str) -> None:
    _announce(dsn, lease=timedelta(seconds=-1))
    with pytest.raises(CommandFailed, match="holds a lease"):
        live_kind(dsn)


def test_one_that_has_stopped_is_not_well(dsn: str) -> None:
    _announce(dsn, dead=True)
    with pytest.raises(CommandFailed, match="holds a lease"):
        live_kind(dsn)


def test_another_hosts_process_says_nothing_of_ours(dsn: str) -> None:
    _announce(dsn, host="elsewhere")
    with pytest.raises(CommandFailed, match="holds a lease"):
        live_kind(dsn)


def test_a_successor_counts_beside_its_dead_predecessor(dsn: str) -> None:
    _announce(dsn, dead=True)
    _announce(dsn)
    assert live_kind(dsn) == "worker"


def test_a_database_that_is_away_is_one_sentence() -> None:
    with pytest.raises(CommandFailed, match="the database did not answer: ") as failed:
        live_kind("postgresql://nobody:secret-word@127.0.0.1:1/none")
    assert "secret-word" not in str(failed.value)
    assert "\n" not in str(failed.value)


def test_the_command_answers_by_its_exit_status(dsn: str) -> None:
    runner = CliRunner()
    before = runner.invoke(app, ["health"], env={"DATABASE_URL": dsn})
    assert before.exit_code == 1
    assert before.stderr.startswith("backburner: no process on ")
    _announce(dsn)
    after = runner.invoke(app, ["health"], env={"DATABASE_URL": dsn})
    assert (after.exit_code, after.stdout) == (0, "worker\n")
