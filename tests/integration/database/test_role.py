"""The role that docker-compose.yml makes is enough, and no superuser; a superuser is reported."""

import asyncio
import secrets

import psycopg
from psycopg import sql

from cli.configuration.deployment_warnings import database_warnings
from cli.database.migrate import migrate
from models.config.configuration import build
from models.db.queries.leases import LIVE_WORKERS, TIMELINE
from models.db.sync import connect_sync, fetch_sync
from tests.support.deployment_files import ROOT
from tests.support.stack import Databases

SCRIPT = ROOT / "deploy" / "postgres" / "role.sql"


async def test_the_role_of_compose_is_enough_and_is_no_superuser(
    database_server: Databases,
) -> None:
    dsn = await database_server.create_copy()
    name, password = f"app_{secrets.token_hex(4)}", secrets.token_hex(8)
    statements = [
        line.replace("backburner", name).replace("ROLE postgres", f"ROLE {name}_super")
        for line in SCRIPT.read_text().splitlines()
        if not line.startswith(("--", "\\"))
    ]
    assert len(statements) == 4
    *statements, extension = statements
    assert extension.startswith("SELECT 'CREATE EXTENSION vector' FROM")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} SUPERUSER").format(sql.Identifier(f"{name}_super"))
        )
        for statement in statements:
            connection.execute(statement.replace(":'password'", f"'{password}'").encode())
    own = psycopg.conninfo.conninfo_to_dict(dsn)
    own_dsn = f"postgresql://{name}:{password}@{own['host']}:{own['port']}/{name}"
    settings = build(database_url=own_dsn, redis_url="redis://unused")
    await asyncio.to_thread(migrate, own_dsn)
    [warning] = database_warnings(settings)
    assert "vector stores are refused" in warning
    as_superuser = psycopg.conninfo.make_conninfo(dsn, dbname=name)
    with psycopg.connect(as_superuser, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
    await asyncio.to_thread(migrate, own_dsn)
    with connect_sync(settings, "role") as connection:
        assert fetch_sync(connection, TIMELINE, {}) == [1]
        fetch_sync(connection, LIVE_WORKERS, {})
    assert database_warnings(settings) == []
    [warning] = database_warnings(build(database_url=dsn, redis_url="redis://unused"))
    assert "is a superuser" in warning
