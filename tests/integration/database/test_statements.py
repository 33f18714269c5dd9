"""Every statement fits the schema, and the migrations make the schema that the tables declare."""

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from models.db.queries import conversations, operations, statements
from tests.support.stack import Databases

ROOT = Path(__file__).parents[3]


def _all() -> Iterator[tuple[str, str]]:
    constants = [
        (f"{module.__name__}.{name}", value)
        for module in (statements, operations, conversations)
        for name, value in vars(module).items()
    ]
    for qualified, value in constants:
        name = qualified.rpartition(".")[2]
        if name.isupper() and not name.startswith("_"):
            if isinstance(value, str):
                yield qualified, value
            elif name in {"END", "INPUT_ITEMS", "PAGE"}:
                yield from ((f"{qualified}[{key}]", sql) for key, sql in value.items())


STATEMENTS = dict(_all())


@pytest.fixture(scope="module")
async def dsn(database_server: Databases) -> str:
    return await database_server.create_copy()


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_fits_the_schema(name: str, dsn: str) -> None:
    parameters: list[str] = []

    def number_parameter(match: re.Match[str]) -> str:
        if match[1] not in parameters:
            parameters.append(match[1])
        return f"${parameters.index(match[1]) + 1}"

    sql = re.sub(r"%\((\w+)\)s", number_parameter, STATEMENTS[name]).replace("%%", "%")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"PREPARE fits AS {sql}".encode())


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
