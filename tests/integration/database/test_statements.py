"""Every statement fits the schema and its row type, and the migrations make the declared tables."""

import inspect
from typing import Any

import psycopg
import pytest
from alembic import command
from psycopg.pq import ExecStatus
from sqlalchemy import create_engine

from cli.database.statements import all_statements
from models.db.schema import migrations_config
from models.db.statement import NumberedQuery, Query, Statement
from tests.support.stack import Databases


@pytest.fixture(scope="module")
async def dsn(database_server: Databases) -> str:
    return await database_server.create_copy()


def _columns(connection: psycopg.Connection, statement: Statement | Query[Any]) -> list[str]:
    """The names of the columns that it returns."""
    prepared = connection.pgconn.prepare(b"", NumberedQuery(statement.sql).sql)
    assert prepared.status == ExecStatus.COMMAND_OK, prepared.error_message
    described = connection.pgconn.describe_prepared(b"")
    return [(described.fname(index) or b"").decode() for index in range(described.nfields)]


def _fits(statement: Statement | Query[Any], columns: list[str]) -> bool:
    if isinstance(statement, Statement):
        return columns == []
    fields = list(inspect.signature(statement.from_row).parameters)
    return len(columns) == 1 if fields == ["value"] else columns == fields


def test_each_statement_fits_the_schema_and_its_columns_have_the_names_of_its_row(
    dsn: str,
) -> None:
    statements = all_statements()
    assert {"end.END[completed]", "read.INPUT_ITEMS[asc]", "read.LOG_PAGE"} <= statements.keys()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name, statement in statements.items():
            columns = _columns(connection, statement)
            assert _fits(statement, columns), (name, columns)


def test_the_migrations_make_the_declared_tables(dsn: str) -> None:
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.connect() as connection:
        config = migrations_config()
        config.attributes["connection"] = connection
        command.check(config)
    engine.dispose()
