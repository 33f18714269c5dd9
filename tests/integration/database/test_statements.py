"""Every statement fits the schema and its row type, and the migrations make the declared tables."""

import inspect
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from psycopg.pq import ExecStatus
from sqlalchemy import create_engine

from models.db.statement import Statement
from tests.support.stack import Databases
from tests.support.statements import STATEMENTS, server_form

ROOT = Path(__file__).parents[3]


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


def test_the_migrations_make_the_declared_tables_and_run_down_and_up_again(dsn: str) -> None:
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.connect() as connection:
        config = Config(ROOT / "alembic.ini", attributes={"connection": connection})
        command.check(config)
        # Commands run outside a transaction: an index cannot be built concurrently inside one.
        connection.commit()
        command.downgrade(config, "base")
        connection.commit()
        command.upgrade(config, "head")
        command.check(config)
        connection.commit()
    engine.dispose()
