"""Migration 0008 keeps what the previous release has stored under the old names."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from models.config.settings import sqlalchemy_url
from models.db.database import SyncConnection
from tests.support.stack import Databases

ROOT = Path(__file__).parents[3]
RESPONSE = """
    INSERT INTO responses (id, project_id, status, background, store, streamed, model, parameters,
                           created_at, expires_at, deadline, enqueued_at, rings)
    SELECT %(id)s, id, %(status)s, true, true, true, 'm', '{}', now(), now(), now(), now(), 3
    FROM projects
"""


@pytest.fixture
async def dsn(database_server: Databases) -> str:
    return await database_server.create_copy()


@pytest.fixture
def connection(dsn: str) -> Iterator[SyncConnection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO projects (id, name) VALUES (%s, 'p')", (uuid4(),))
        yield connection


def _migrate(dsn: str, revision: str) -> None:
    engine = create_engine(sqlalchemy_url(dsn))
    with engine.connect() as migrating:
        config = Config(ROOT / "alembic.ini", attributes={"connection": migrating})
        step = command.downgrade if revision == "0007" else command.upgrade
        step(config, revision)
        migrating.commit()
    engine.dispose()


def test_an_open_response_keeps_its_count_of_enqueues(dsn: str, connection: SyncConnection) -> None:
    _migrate(dsn, "0007")
    response_id = {"id": uuid4()}
    connection.execute(RESPONSE, {**response_id, "status": "in_progress"})
    _migrate(dsn, "0008")
    assert connection.execute("SELECT enqueue_count FROM responses").fetchone() == (3,)


def test_the_way_back_keeps_the_count(dsn: str, connection: SyncConnection) -> None:
    response_id = {"id": uuid4()}
    connection.execute(RESPONSE, {**response_id, "status": "queued"})
    connection.execute("UPDATE responses SET enqueue_count = 5")
    _migrate(dsn, "0007")
    assert connection.execute("SELECT rings FROM responses").fetchone() == (5,)
