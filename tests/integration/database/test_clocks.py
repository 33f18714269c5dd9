"""The machines' clocks are hours off: all times of a response are those of the database. And the
database's own clock is set back: nothing waits for that."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from cli.embedded.process import Process, free_port
from models.db.database import fetch
from models.db.queries import leases, line
from models.ids import new_uuid
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.sql import run_sql
from tests.support.stack import Databases, Service, Stack
from tests.support.worker_rows import (
    SeededDatabase,
    line_values,
    open_seeded_database,
    run_purge,
    settings_for,
)

_HOURS = 5


def _start(own_stack: Stack, shift: int, module: str, *arguments: str, port: int = 0) -> Service:
    """Starts a process whose clock is `shift` seconds off."""
    service = Service(
        f"shifted-{module}",
        own_stack.folder / f"shifted-{module}.log",
        "tests.support.shifted_clock",
        *(f"{shift}", module, *arguments),
        environment=own_stack.environment(),
        port=port,
    )
    Process.launch(service)
    own_stack.started.append(service)
    return service


async def test_a_response_neither_expires_early_nor_lives_long_with_wrong_clocks(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {"BACKBURNER_LIMITS__QUEUE_WAIT": "3600", "BACKBURNER_RETENTION": "7200"}
    async with private_stack(webs=0, workers=0, settings=settings) as own_stack:
        port = free_port()
        arguments = ("--host", "127.0.0.1", "--port", str(port))
        web = _start(own_stack, -_HOURS * 3600, "web", *arguments, port=port)
        own_stack.webs.append(web)
        worker = _start(own_stack, _HOURS * 3600, "worker", "--streams", "20")
        own_stack.workers.append(worker)
        await until(lambda: web.is_healthy(own_stack.session), 60)
        await own_stack.wait_until_claiming(worker)
        api, model = own_stack.api(), fake.script(reply("x"), reply("y"))
        started = await own_stack.value("SELECT extract(epoch FROM clock_timestamp())::float")
        stored = await api.wait_for_end(await api.create_background(model))
        unstored = await api.create(model, store=False)
        ended = await own_stack.value("SELECT extract(epoch FROM clock_timestamp())::float")
        for response in (stored, unstored):
            assert response["status"] == "completed"
            assert started - 2 <= response["created_at"] <= response["completed_at"] <= ended
        lifetime = (
            "SELECT extract(epoch FROM expires_at - clock_timestamp())::float"
            " FROM responses WHERE store"
        )
        assert 7100 < await own_stack.value(lifetime) <= 7202  # created_at: whole seconds
        assert 500 < await own_stack.value(lifetime.replace("WHERE", "WHERE NOT")) <= 600


@pytest.fixture
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 2) as database:
        yield database


_AHEAD = "statement_timestamp() + interval '10 minutes'"
"""A time that was set before the clock was set back by ten minutes."""
_COLUMNS = {
    "batches": "collector_until",
    "vector_store_files": "next_attempt_at",
    "webhook_deliveries": "next_attempt_at",
    "webhook_endpoints": "paused_until",
}
_ROWS = [
    "INSERT INTO api_keys (id, project_id, prefix, hash) VALUES (%(id)s, %(project)s, 'bb', '')",
    f"""
    INSERT INTO batches (id, project_id, api_key_id, endpoint, input_file_id, completion_window,
                         expires_at, collector_until)
    VALUES (%(id)s, %(project)s, %(id)s, '/v1/responses', %(id)s, '24h', {_AHEAD}, {_AHEAD})
    """,
    """
    INSERT INTO vector_stores (id, project_id, name, metadata, language)
    VALUES (%(id)s, %(project)s, '', '{}', 'english')
    """,
    f"""
    INSERT INTO vector_store_files (id, project_id, store_id, file_id, attributes,
                                    max_chunk_tokens, chunk_overlap_tokens, next_attempt_at)
    VALUES (%(id)s, %(project)s, %(id)s, %(id)s, '{{}}', 800, 400, {_AHEAD})
    """,
    f"""
    INSERT INTO webhook_endpoints (id, project_id, url, types, secret_key_id, secrets, paused_until)
    VALUES (%(id)s, %(project)s, '', '{{}}', '', '', {_AHEAD})
    """,
    f"""
    INSERT INTO webhook_deliveries (id, endpoint_id, event_id, type, object_id, next_attempt_at)
    VALUES (%(id)s, %(id)s, %(id)s, '', '', {_AHEAD})
    """,
]


async def test_nothing_waits_because_the_clock_of_the_database_was_set_back(
    database: SeededDatabase,
) -> None:
    values = {"id": str(new_uuid()), "project": str(database.project)}
    for statement in _ROWS:
        await run_sql(database.pool, statement, values)
    await run_purge(settings_for(database.dsn))
    for table, column in _COLUMNS.items():
        waits = f"SELECT coalesce({column} > clock_timestamp(), false) AS waits FROM {table}"
        assert await run_sql(database.pool, waits) == [{"waits": False}], table


@pytest.mark.parametrize(("deferred", "is_due"), [(None, True), ("1 minute", False)])
async def test_a_response_in_line_keeps_its_place_and_its_pause(
    database: SeededDatabase, deferred: str | None, is_due: bool
) -> None:
    worker = await database.create_worker()
    response = await database.create_response()
    ahead = (
        f"UPDATE responses SET confirmed = true, enqueued_at = {_AHEAD},"
        f" resume_at = {_AHEAD} + CAST(%(deferred)s AS interval),"
        f" urgent_at = {_AHEAD} + interval '4 hours',"
        f" window_ends_at = {_AHEAD} + interval '8 hours'"
    )
    await run_sql(database.pool, ahead, {"deferred": deferred})
    values = line_values(worker)
    assert not await fetch(database.pool, line.CLAIM_NEXT, values)
    await run_purge(settings_for(database.dsn))
    row = await database.response_row(response)
    if row["resume_at"] is not None:
        assert row["resume_at"] - row["enqueued_at"] == timedelta(minutes=1)
    assert row["urgent_at"] - row["enqueued_at"] == timedelta(hours=4)
    assert row["window_ends_at"] - row["enqueued_at"] == timedelta(hours=8)
    assert bool(await fetch(database.pool, line.CLAIM_NEXT, values)) is is_due


async def test_a_lease_beyond_its_length_has_expired(database: SeededDatabase) -> None:
    """A frozen process whose lease was renewed before the clock was set back by ten minutes."""
    frozen, lives = await database.create_worker(lease=610), await database.create_worker(lease=9)
    watched = await database.watched()
    assert {row.id: row.expired for row in watched} == {frozen.id: True, lives.id: False}
    seen = next(row.expires_at for row in watched if row.id == frozen.id)
    values = {"lease": timedelta(seconds=10), "id": frozen.id, "seen": seen}
    assert await fetch(database.pool, leases.REAP_LOCK_EXPIRED, values) == [frozen.id]
