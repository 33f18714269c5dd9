"""Faults that PostgreSQL itself can be put into: it refuses writes, has no space, hangs at commit.

Each is a context manager; the fault ends with it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg import sql

_TABLES = ("responses", "items", "event_log", "journal", "tool_calls")
_REFUSE = """
    CREATE FUNCTION refuse_insert() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$
"""


@asynccontextmanager
async def changed_setting(dsn: str, name: str, value: str) -> AsyncIterator[None]:
    """Changes a setting of the whole server, and sets it back.

    With `default_transaction_read_only` every session refuses writes with SQLSTATE 25006, as after
    a demotion. With the name of a standby that does not exist in `synchronous_standby_names` each
    commit of a write waits without end, while reads are answered.
    """
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        change = sql.SQL("ALTER SYSTEM SET {} = {}")
        await connection.execute(change.format(sql.Identifier(name), sql.Literal(value)))
        await connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            reset = sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name))
            await connection.execute(reset)
            await connection.execute("SELECT pg_reload_conf()")


@asynccontextmanager
async def full_disk(dsn: str) -> AsyncIterator[None]:
    """Nothing can be inserted: a trigger with the SQLSTATE of a full disk (53100) takes its place.

    Rows can be updated, as long as they fit into their page.
    """
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(_REFUSE)
        try:
            for table in _TABLES:
                create = sql.SQL(
                    "CREATE TRIGGER refuse_insert BEFORE INSERT ON {}"
                    " FOR EACH STATEMENT EXECUTE FUNCTION refuse_insert()"
                )
                await connection.execute(create.format(sql.Identifier(table)))
            yield
        finally:
            for table in _TABLES:  # one lock at a time, so that no other session has to deadlock
                drop = sql.SQL("DROP TRIGGER IF EXISTS refuse_insert ON {}")
                await connection.execute(drop.format(sql.Identifier(table)))
            await connection.execute("DROP FUNCTION refuse_insert")
