"""Every statement fits the schema and its row type, and the migrations make the declared tables."""

import inspect

import psycopg
import pytest
from alembic import command
from psycopg.pq import ExecStatus
from sqlalchemy import create_engine

from models.config.settings import sqlalchemy_url
from models.db.schema import migrations_config
from models.db.statement import Statement
from tests.support.stack import Databases
from tests.support.statements import STATEMENTS, server_form


@pytest.fixture(scope="module")
async def dsn(database_server: Databases) -> str:
    return await database_server.create_copy()


def test_all_statements_are_found_by_these_tests() -> None:
    assert len(STATEMENTS) > 70
    assert {"end.END[completed]", "read.INPUT_ITEMS[asc]", "read.LOG_PAGE"} <= STATEMENTS.keys()


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_fits_the_schema_and_its_columns_have_the_names_of_its_row(
    name: str, dsn: str
) -> None:
    statement = STATEMENTS[name]
    with psycopg.connect(dsn, autocommit=True) as connection:
        prepared = connection.pgconn.prepare(b"fits", server_form(statement).encode())
        assert prepared.status == ExecStatus.COMMAND_OK, prepared.error_message
        described = connection.pgconn.describe_prepared(b"fits")
        columns = [described.fname(index) for index in range(described.nfields)]
    if isinstance(statement, Statement):
        assert columns == []
        return
    fields = list(inspect.signature(statement.from_row).parameters)
    if fields == ["value"]:
        assert len(columns) == 1
    else:
        assert [column and column.decode() for column in columns] == fields


def test_the_migrations_make_the_declared_tables(dsn: str) -> None:
    engine = create_engine(sqlalchemy_url(dsn))
    with engine.connect() as connection:
        config = migrations_config()
        config.attributes["connection"] = connection
        command.check(config)
    engine.dispose()
