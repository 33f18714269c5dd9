"""A deployment behind PgBouncer, which pools sessions: its processes and PgBouncer itself fail."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cli.embedded.process import free_port
from tests.chaos.matrix.checks import assert_no_process_died
from tests.chaos.matrix.worker import (
    is_frozen_inside_a_transaction,
    is_killed_between_journal_and_publish,
)
from tests.support.chaos.lab import Lab
from tests.support.chaos.tracebacks import SERVER_TRACEBACKS
from tests.support.fake_upstream import FakeUpstream
from tests.support.pgbouncer import PgBouncer, PooledDatabases
from tests.support.stack import SHORT_LEASES, Databases, SuiteSettings, stack

pytestmark = pytest.mark.usefixtures("embedded_postgres", "embedded_redis")


@pytest.fixture(scope="module")
async def pgbouncer(
    tmp_path_factory: pytest.TempPathFactory, database_server: Databases
) -> AsyncIterator[PgBouncer]:
    """PgBouncer before the PostgreSQL of the session."""
    folder = tmp_path_factory.mktemp("pgbouncer")
    with PgBouncer(folder, database_server.admin_url, port=free_port(), mode="session") as running:
        yield running


@pytest.fixture
async def lab(
    tmp_path: Path,
    pgbouncer: PgBouncer,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Lab]:
    """A deployment of a web process and three workers; all of them use PgBouncer."""
    pooled = PooledDatabases(database_server, pgbouncer)
    async with stack(
        tmp_path,
        pooled,
        suite_settings,
        fake,
        workers=3,
        settings=SHORT_LEASES,
        proxied=True,
        signed=True,
        allowed_tracebacks=SERVER_TRACEBACKS,
    ) as running:
        yield Lab(running, fake, database_server, webs=1, workers=3)


@pytest.mark.long
async def test_a_worker_that_is_frozen_in_a_transaction_loses_its_sessions(lab: Lab) -> None:
    """Its sessions are ended by their name, although PgBouncer holds them."""
    await is_frozen_inside_a_transaction(lab)


@pytest.mark.long
async def test_a_killed_worker_is_replaced(lab: Lab) -> None:
    await is_killed_between_journal_and_publish(lab)


@pytest.mark.long
async def test_pgbouncer_restarts(lab: Lab, pgbouncer: PgBouncer) -> None:
    """As a restart of PostgreSQL: attempts are kept."""
    load = await lab.start_load()
    await asyncio.to_thread(pgbouncer.kill)
    load.release_second_word()
    await asyncio.to_thread(pgbouncer.start)
    await load.wait_for_words(2)
    await assert_no_process_died(lab, load)
