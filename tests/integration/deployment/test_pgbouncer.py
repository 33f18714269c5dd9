"""PgBouncer between the processes and PostgreSQL: sessions may be pooled, transactions not."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.database.health import live_kind
from cli.embedded.process import free_port
from models.db.database import connect, connect_sync, open_pool
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.pgbouncer import PgBouncer, PoolMode
from tests.support.stack import Databases
from tests.support.worker_rows import settings_for

IGNORED = "ignore_startup_parameters = options"
"""Lets a client connect with `options`, which are dropped."""
LIMITS = """
    SELECT current_setting('statement_timeout'),
           current_setting('idle_in_transaction_session_timeout'),
           current_setting('default_transaction_isolation'),
           current_setting('search_path')
"""


@contextmanager
def _pgbouncer(
    folder: Path, server: Databases, mode: PoolMode, more: str = ""
) -> Iterator[PgBouncer]:
    with PgBouncer(folder, server.admin_url, port=free_port(), mode=mode, more=more) as running:
        yield running


@pytest.mark.parametrize("more", ["", IGNORED], ids=["default", "options-ignored"])
async def test_every_session_has_its_time_limits_and_finds_the_tables(
    tmp_path: Path, database_server: Databases, more: str
) -> None:
    with _pgbouncer(tmp_path, database_server, "session", more) as pgbouncer:
        settings = settings_for(pgbouncer.url(await database_server.create_copy()))
        expected = ("15s", "3s", "read committed", "backburner")
        with connect_sync(settings, "limits") as blocking:
            assert blocking.execute(LIMITS).fetchone() == expected
        async with await connect(settings, "limits") as connection:
            assert await (await connection.execute(LIMITS)).fetchone() == expected
        async with open_pool(settings, "limits", 1) as pool, pool.connection() as pooled:
            assert await (await pooled.execute(LIMITS)).fetchone() == expected


@pytest.mark.parametrize("module", ["web", "worker"])
async def test_a_process_refuses_to_start_when_transactions_are_pooled(
    tmp_path: Path, database_server: Databases, private_stack: PrivateStack, module: str
) -> None:
    with _pgbouncer(tmp_path, database_server, "transaction") as pgbouncer:
        async with private_stack(webs=0, workers=0) as own_stack:
            own_stack.settings["DATABASE_URL"] = pgbouncer.url(own_stack.dsn)
            process = own_stack.spawn_web() if module == "web" else own_stack.spawn_worker()
            await until(lambda: not process.running(), 30)
            own_stack.forget(process)
            line = json.loads(process.tail().splitlines()[-1])
            assert process.exit_code() == 1
            assert line["event"] == "transaction_pooling"
            assert line["error"] == (
                "the connection pooler pools transactions; set it to pool sessions"
            )


async def test_the_health_check_of_a_container_works_when_sessions_are_pooled(
    tmp_path: Path, database_server: Databases, private_stack: PrivateStack
) -> None:
    with _pgbouncer(tmp_path, database_server, "session") as pgbouncer:
        async with private_stack(webs=0) as own_stack:
            assert live_kind(pgbouncer.url(own_stack.dsn)) == "worker"
