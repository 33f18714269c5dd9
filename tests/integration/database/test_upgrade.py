"""An upgrade from 0.1.0 to this release, while processes of 0.1.0 serve (docs/deploy.md).

`backburner migrate` runs first. Processes of the release before go on, on the new schema, until
they are replaced. So each migration after the first one is additive.
"""

import asyncio
import subprocess
import tarfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import psycopg
import pytest
from alembic import command
from sqlalchemy import create_engine

from cli.database.migrate import migrate
from cli.embedded.process import Process, free_port
from models.db.schema import migrations_config, newest_revision
from models.ids import new_uuid
from tests.support.api import Api, until
from tests.support.fake_upstream import FakeUpstream, reply, text, wait_for
from tests.support.stack import (
    ROOT,
    SHORT_LEASES,
    Databases,
    Service,
    Stack,
    SuiteSettings,
    stack,
)

FIRST = "0001_first"
"""The migration of 0.1.0."""


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of 0.1.0: this checkout, until a release has another schema."""
    if newest_revision() == FIRST:
        return ROOT
    parts = ["features", "models", "web", "worker", "migrations"]
    git = ["git", "archive", _last_commit_with_the_first_schema(), *parts]
    done = subprocess.run(git, cwd=ROOT, capture_output=True, check=True)
    folder = tmp_path_factory.mktemp("released")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as files:
        files.extractall(folder, filter="data")
    tables = f"migrations/versions/{FIRST}.sql"
    assert (folder / tables).read_bytes() == (ROOT / tables).read_bytes(), "it must not change"
    return folder


def _last_commit_with_the_first_schema() -> str:
    """Every clone has it, also one without tags. Skips the test in one without history."""
    versions = "migrations/versions/"
    added = ["git", "log", "--no-renames", "--diff-filter=A", "--format=%H"]

    def commits(*what: str) -> list[str]:
        done = subprocess.run(
            [*added, *what], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.split()

    if not (first := commits("--", f"{versions}{FIRST}.py")):
        pytest.skip("the clone has no history")
    others = commits(f"{first[0]}..HEAD", "--", versions, f":!{versions}0001*")
    return f"{others[-1]}^"


class ReleasedDatabases(Databases):
    """Databases as `backburner migrate` of 0.1.0 makes them."""

    def __init__(self, server_databases: Databases, released: Path) -> None:
        super().__init__(server_databases.admin_url, None)
        self._databases = server_databases
        self._functions = (released / "migrations/functions.sql").read_bytes()

    async def create_copy(self) -> str:
        """Returns the URL of a new database."""
        dsn = await self._databases.create_copy()
        await asyncio.to_thread(self._make_anew, dsn)
        return dsn

    def _make_anew(self, dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("DROP SCHEMA backburner CASCADE; CREATE SCHEMA backburner")
            engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1))
            with engine.connect() as migrating:
                config = migrations_config()
                config.attributes["connection"] = migrating
                command.upgrade(config, FIRST)
                migrating.commit()
            engine.dispose()
            connection.execute(self._functions)


@pytest.fixture
def released_databases(database_server: Databases, released: Path) -> ReleasedDatabases:
    return ReleasedDatabases(database_server, released)


class Column(NamedTuple):
    """A column as processes of another release depend on it."""

    type: str
    is_nullable: bool
    has_default: bool


_COLUMNS = """
    SELECT a.attrelid::regclass::text, a.attname, format_type(a.atttypid, a.atttypmod),
           NOT a.attnotnull, a.atthasdef OR a.attidentity <> ''
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE c.relnamespace = 'backburner'::regnamespace AND c.relkind IN ('r', 'p')
      AND a.attnum > 0 AND NOT a.attisdropped
"""


def _columns(connection: psycopg.Connection) -> dict[tuple[str, str], Column]:
    rows = connection.execute(_COLUMNS).fetchall()
    return {(table, name): Column(*rest) for table, name, *rest in rows}


def _not_additive(
    before: dict[tuple[str, str], Column], after: dict[tuple[str, str], Column]
) -> set[tuple[str, str]]:
    """The columns that processes of the release before miss, find changed, or would have to
    write."""
    tables = {table for table, _ in before}
    demanded = {
        (table, name)
        for (table, name), column in after.items()
        if table in tables and not column.is_nullable and not column.has_default
    }
    return {key for key, column in before.items() if after.get(key) != column} | {
        key for key in demanded if key not in before
    }


_CHANGES = {
    "ADD COLUMN more text": set(),
    "ADD COLUMN more text NOT NULL": {"more"},
    "DROP COLUMN traceparent": {"traceparent"},
    "RENAME COLUMN web TO process": {"web"},
    "ALTER COLUMN turns TYPE bigint": {"turns"},
    "ALTER COLUMN web SET NOT NULL": {"web"},
}
"""Changes of `responses`, and the columns for which they are not additive."""


async def test_the_migrations_after_0_1_0_are_additive(
    released_databases: ReleasedDatabases,
) -> None:
    dsn = await released_databases.create_copy()
    with psycopg.connect(dsn, autocommit=True) as connection:
        before = _columns(connection)
        await asyncio.to_thread(migrate, dsn)
        after = _columns(connection)
        assert _not_additive(before, after) == set()
        for change, expected in _CHANGES.items():
            with connection.transaction(force_rollback=True):
                connection.execute(f"ALTER TABLE responses {change}".encode())
                found = {name for _, name in _not_additive(after, _columns(connection))}
                assert found == expected, change


_STORED = """
    WITH made AS (
        INSERT INTO responses (id, project_id, status, background, store, model, parameters,
                               created_at, expires_at, deadline, enqueued_at)
        SELECT id, (SELECT id FROM projects), 'completed', true, true, 'm', '{}', now(), now(),
               now(), now()
        FROM unnest(%s::uuid[]) id RETURNING id)
    INSERT INTO event_log (response_id, first_number, last_number, attempt, frames)
    SELECT id, 0, 1, 1, 'frame' FROM made
"""


async def test_stored_logs_become_the_first_partition(
    released_databases: ReleasedDatabases,
) -> None:
    """Also where a clock was wrong; a migration that was killed goes on. A statement of 0.1.0 that
    deletes a response still deletes its log."""
    dsn = await released_databases.create_copy()
    ahead = UUID(int=new_uuid().int + (400 * 86_400_000 << 80))
    ids = [new_uuid(), new_uuid(), ahead]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO projects (id, name) VALUES (gen_random_uuid(), 'p')")
        connection.execute(_STORED, [ids])
        connection.execute(
            "ALTER TABLE event_log ADD CONSTRAINT ck_event_log_end"
            " CHECK (response_id <> gen_random_uuid()) NOT VALID"
        )
        await asyncio.to_thread(migrate, dsn)
        stored = "SELECT tableoid::regclass::text, response_id FROM event_log ORDER BY response_id"
        assert connection.execute(stored).fetchall() == [("event_log_first", each) for each in ids]
        connection.execute("DELETE FROM responses WHERE id = %s", [ids[0]])
        assert connection.execute(stored).fetchall() == [
            ("event_log_first", each) for each in ids[1:]
        ]


async def test_a_migration_behind_a_long_transaction_lets_others_pass(
    released_databases: ReleasedDatabases,
) -> None:
    dsn = await released_databases.create_copy()
    waiting = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                 AND query LIKE '%ALTER TABLE responses%' AND wait_event_type = 'Lock'"""
    with psycopg.connect(dsn) as dump, psycopg.connect(dsn, autocommit=True) as watch:
        dump.execute("SELECT FROM responses")
        migration = asyncio.create_task(asyncio.to_thread(migrate, dsn))

        async def waits(count: int) -> bool:
            return watch.execute(waiting).fetchone() == (count,)

        await until(lambda: waits(1))
        await until(lambda: waits(0))
        watch.execute("SELECT FROM responses")
        assert not migration.done()
        dump.commit()
        await migration


async def _start_released(own_stack: Stack, folder: Path) -> tuple[Service, Service]:
    """A web process and a worker of 0.1.0. Those of another folder are not forked from the server
    that has imported the modules of this release."""
    if folder == ROOT:
        return await own_stack.start_web(), await own_stack.start_worker()
    port = free_port()
    services = [
        Service(
            f"released-{module}",
            own_stack.folder / f"released-{module}.log",
            module,
            *arguments,
            environment={**own_stack.environment(), "PYTHONPATH": str(folder)},
            port=port if module == "web" else None,
        )
        for module, *arguments in (
            ("web", "--host", "127.0.0.1", "--port", str(port)),
            ("worker", "--streams", "20"),
        )
    ]
    for service in services:
        service.directory = folder
        Process.launch(service)
        own_stack.started.append(service)
    web, worker = services
    own_stack.webs.append(web)
    own_stack.workers.append(worker)
    await until(lambda: web.is_healthy(own_stack.session), 60)
    await own_stack.wait_until_claiming(worker)
    return web, worker


@pytest.fixture
async def own_stack(
    tmp_path: Path,
    released_databases: ReleasedDatabases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment with a database of 0.1.0 and no process."""
    async with stack(
        tmp_path,
        released_databases,
        suite_settings,
        fake,
        webs=0,
        workers=0,
        settings=SHORT_LEASES,
    ) as own_stack:
        yield own_stack


async def _input_ids(api: Api, response_id: str) -> list[str]:
    page = await api.call("GET", f"/responses/{response_id}/input_items")
    return [item["id"] for item in page.body["data"]]


async def test_responses_run_through_an_upgrade_from_0_1_0(
    own_stack: Stack, released: Path, fake: FakeUpstream
) -> None:
    old_web, old_worker = await _start_released(own_stack, released)
    old_api = own_stack.api(old_web)

    conversation = (await old_api.call("POST", "/conversations", {})).body["id"]
    released_text = asyncio.Event()
    model = fake.script([text("first "), wait_for(released_text), *reply("second")])
    async with old_api.post_stream(model, background=True, conversation=conversation) as stream:
        await stream.until("response.output_text.delta")
        response_id = stream.response_id
        await asyncio.to_thread(migrate, own_stack.dsn)
        new_api = own_stack.api(await own_stack.start_web())
        running = await new_api.get(response_id)
        assert (running["status"], running["output_text"]) == ("in_progress", "first ")
        waiting = await new_api.create_background(
            fake.script(reply("after it")), previous_response_id=response_id, wait_for_previous=True
        )
        async with new_api.follow(response_id) as new_stream:
            released_text.set()
            old_events, new_events = await asyncio.gather(stream.to_end(), new_stream.to_end())
    assert old_events[-1] == new_events[-1]
    assert old_events[-1]["type"] == "response.completed"
    assert await old_api.get(response_id) == await new_api.get(response_id)
    assert await _input_ids(old_api, response_id) == await _input_ids(new_api, response_id)
    pages = [
        (await api.call("GET", f"/conversations/{conversation}/items")).body["data"]
        for api in (old_api, new_api)
    ]
    assert pages[0] == pages[1]
    assert len(pages[0]) == 2

    # The other way round: stored by the new web process, run by the old worker, continued by both.
    created = await new_api.create_background(
        fake.script(reply("by the old worker")), background_options={"completion_window": "8h"}
    )
    assert (await old_api.wait_for_end(created))["output_text"] == "by the old worker"
    template = {"model": fake.script(reply("by a schedule")), "input": "Hello."}
    body = {"cron": "0 0 29 2 *", "template": template}
    schedule = (await new_api.call("POST", "/schedules", body)).body["id"]
    run = (await new_api.call("POST", f"/schedules/{schedule}/run")).body
    assert (await old_api.wait_for_end(run["response_id"]))["output_text"] == "by a schedule"
    await own_stack.start_worker()
    await own_stack.stop(old_worker)
    continued = await old_api.create_background(
        fake.script(reply("by the new worker")), previous_response_id=created
    )
    assert (await new_api.wait_for_end(continued))["output_text"] == "by the new worker"
    # An old worker has ended the response for which this one waited, and has not claimed it before.
    assert (await new_api.wait_for_end(waiting))["output_text"] == "after it"
