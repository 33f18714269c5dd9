"""The tables have a schema of their own, beside those of other applications in the database."""

import asyncio
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cli.database.health import live_kind
from cli.database.migrate import migrate
from cli.errors import CommandFailed
from models.db.queries.operations import SCHEMA_REVISION
from models.db.schema import newest_revision
from models.db.sync import set_search_path
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Databases, SuiteSettings, stack

FOREIGN_TABLES = """
    CREATE TABLE public.alembic_version (version_num varchar(32) PRIMARY KEY);
    INSERT INTO public.alembic_version VALUES ('ffffffffffff');
    CREATE TABLE public.responses (answer text);
    CREATE TABLE public.workers (name text);
    CREATE TABLE public.projects (title text);
"""
FOREIGN_APPLICATION = f"""
    DROP SCHEMA backburner CASCADE;
    CREATE SCHEMA "Odd; schema";
    {FOREIGN_TABLES}
    DO $$ BEGIN
        EXECUTE format(
            'ALTER DATABASE %I SET search_path = "Odd; schema", public', current_database()
        );
    END $$;
"""
TABLES = """
    SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND n.nspname NOT LIKE 'pg\\_%'
      AND n.nspname <> 'information_schema'
"""


class ForeignDatabases(Databases):
    """The databases of a server, each with the tables of another application and without ours."""

    def __init__(self, server_databases: Databases) -> None:
        super().__init__(server_databases.admin_url, None)
        self._databases = server_databases

    async def create_copy(self) -> str:
        """Returns the URL of a new database."""
        dsn = await self._databases.create_copy()
        _execute(dsn, FOREIGN_APPLICATION)
        return dsn


def _tables(dsn: str) -> dict[str, set[str]]:
    """The tables of each schema."""
    tables: dict[str, set[str]] = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for schema, table in connection.execute(TABLES).fetchall():
            tables.setdefault(schema, set()).add(table)
    return tables


def _execute(dsn: str, statement: Any) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)


def _revision(dsn: str, schema: str) -> str:
    """What a process with this setting reads as the revision of the database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(set_search_path(schema))
        row = connection.execute(SCHEMA_REVISION.sql).fetchone()
    assert row is not None
    return str(row[0])


async def test_another_applications_tables_of_the_same_names_are_neither_used_nor_changed(
    tmp_path: Path, database_server: Databases, suite_settings: SuiteSettings, fake: FakeUpstream
) -> None:
    """All connections of all processes, and the commands, with a search path of the database that
    leads to the other application's tables."""

    class Migrated(ForeignDatabases):
        async def create_copy(self) -> str:
            dsn = await super().create_copy()
            await asyncio.to_thread(migrate, dsn)
            return dsn

    prepared = Migrated(database_server)
    async with stack(tmp_path, prepared, suite_settings, fake, workers=1) as own_stack:
        assert live_kind(own_stack.dsn) in ("web", "worker")
        api = own_stack.api()
        response_id = await api.create_background(fake.script(reply("kept apart")))
        assert (await api.wait_for_end(response_id))["output_text"] == "kept apart"
        async with own_stack.session.get(
            f"http://127.0.0.1:{own_stack.webs[0].port}/readyz"
        ) as readiness:
            assert (await readiness.json())["schema"] == newest_revision()
        tables = _tables(own_stack.dsn)
        assert tables["public"] == {"alembic_version", "responses", "workers", "projects"}
        assert {"alembic_version", "responses", "event_log"} < tables["backburner"]
        with psycopg.connect(own_stack.dsn) as connection:
            foreign = connection.execute("SELECT version_num FROM public.alembic_version")
            assert foreign.fetchall() == [("ffffffffffff",)]


async def test_two_installations_share_a_database_in_two_schemas(
    database_server: Databases,
) -> None:
    dsn = await database_server.create_copy()
    await asyncio.gather(
        *(asyncio.to_thread(migrate, dsn, schema=name) for name in ("one", "select"))
    )
    tables = _tables(dsn)
    assert tables["one"] == tables["select"] == tables["backburner"]
    _execute(dsn, "UPDATE one.alembic_version SET version_num = '0000'")
    assert [_revision(dsn, name) for name in ("one", "select", "backburner")] == [
        "0000",
        newest_revision(),
        newest_revision(),
    ]


@contextmanager
def _role_without_rights(admin: str) -> Iterator[str]:
    """The URL of the database for a role that may only connect."""
    role, password = f"role_{secrets.token_hex(4)}", secrets.token_hex(8)
    name = sql.Identifier(role)
    _execute(admin, sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, password))
    try:
        yield psycopg.conninfo.make_conninfo(admin, user=role, password=password)
    finally:
        _execute(admin, sql.SQL("DROP OWNED BY {}").format(name))
        _execute(admin, sql.SQL("DROP ROLE {}").format(name))


async def test_migrate_says_in_one_line_why_it_cannot_use_a_schema(
    database_server: Databases,
) -> None:
    dsn = await ForeignDatabases(database_server).create_copy()
    before = _tables(dsn)
    with pytest.raises(CommandFailed, match="alembic_version of another application: set BACKBURN"):
        migrate(dsn, schema="public")
    with _role_without_rights(dsn) as restricted:
        with pytest.raises(CommandFailed) as refused:
            migrate(restricted)
        [command] = re.findall(r"CREATE SCHEMA backburner AUTHORIZATION \w+", str(refused.value))
        assert "\n" not in str(refused.value)
        assert _tables(dsn) == before
        _execute(dsn, command.encode())
        migrate(restricted)
        assert "event_log" in _tables(dsn)["backburner"]
