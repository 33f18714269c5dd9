"""A process that PostgreSQL does not serve logs one line and exits."""

import asyncio
import json
import subprocess
import sys
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from cli.embedded.process import free_port
from tests.support.stack import ROOT, Databases


@pytest.mark.parametrize("side", ["web", "worker"])
def test_without_postgres_a_process_logs_one_line_and_exits_with_1(side: str) -> None:
    line = _last_line(side, f"postgresql://127.0.0.1:{free_port()}/none")
    assert line["event"] == "database_unavailable"


@pytest.mark.parametrize("side", ["web", pytest.param("worker", marks=pytest.mark.long)])
async def test_without_enough_connections_a_process_logs_why_and_exits_with_1(
    side: str, database_server: Databases
) -> None:
    dsn = await database_server.create_copy()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(
            "DO $$ BEGIN CREATE ROLE limited LOGIN PASSWORD 'limited' CONNECTION LIMIT 3;"
            " EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
    parts = urlsplit(dsn)
    address = parts.netloc.rpartition("@")[2]
    limited = urlunsplit(parts._replace(netloc=f"limited:limited@{address}"))
    line = await asyncio.to_thread(_last_line, side, limited)
    assert line["event"] == "database_unavailable"
    assert 'too many connections for role "limited"' in line["error"]


def _last_line(side: str, database_url: str) -> dict[str, str]:
    """Starts a process that does not wait for PostgreSQL; returns the only line of its log."""
    impatient = (
        f"import {side}.__main__ as m, functools; m.wait_until_available = "
        "functools.partial(m.wait_until_available, timeout=0); m.main()"
    )
    started = subprocess.run(
        [sys.executable, "-c", impatient],
        cwd=ROOT,
        env={
            "DATABASE_URL": database_url,
            "REDIS_URL": "redis://127.0.0.1:1",
            "BACKBURNER_UPSTREAM__BASE_URL": "http://127.0.0.1:1/v1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 1
    output = started.stdout + started.stderr
    assert "Traceback" not in output
    line: dict[str, str] = json.loads(output.splitlines()[-1])
    return line
