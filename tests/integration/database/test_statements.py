"""Every statement fits the schema, and the schema is what the tables say."""

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
    found = [
        (f"{module.__name__}.{name}", value)
        for module in (statements, operations, conversations)
        for name, value in vars(module).items()
    ]
    for named, value in found:
        name = named.rpartition(".")[2]
        if name.isupper() and not name.startswith("_"):
            if isinstance(value, str):
                yield named, value
            elif name in {"END", "INPUT_ITEMS", "PAGE"}:
                yield from ((f"{named}[{key}]", sql) for key, sql in value.items())


STATEMENTS = dict(_all())


@pytest.fixture(scope="module")
async def dsn(database_server: Databases) -> str:
    return await database_server.create_copy()


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_fits_the_schema(name: str, dsn: str) -> None:
    named: list[str] = []

    def place(found: re.Match[str]) -> str:
        if found[1] not in named:
            named.append(found[1])
        return f"${named.index(found[1]) + 1}"

    sql = re.sub(r"%\((\w+)\)s", place, STATEMENTS[name]).replace("%%", "%")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"PREPARE fits AS {sql}".encode())


def test_the_migrations_make_what_the_tables_say_and_go_down_and_up_again(dsn: str) -> None:
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.connect() as connection:
        config = Config(ROOT / "alembic.ini", attributes={"connection": connection})
        command.check(config)
        connection.commit()  # as each command finds it in the field: what builds an index concurrently cannot run inside a transaction
        command.downgrade(config, "base")
        connection.commit()
        command.upgrade(config, "head")
        command.check(config)
        connection.commit()
    engine.dispose()
