"""`backburner migrate`: brings a database to this version's schema."""

import time
from collections.abc import Callable

import psycopg
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import create_engine, pool
from sqlalchemy.exc import DBAPIError

from cli.errors import CommandFailed, database_failure
from cli.settings import ROOT
from models.config.settings import sqlalchemy_url

LOCK = 0x6261636B6275726E
"""The advisory lock of a migration: "backburn" in ASCII."""


def migrate(dsn: str, pause: Callable[[float], None] = time.sleep) -> None:
    """Runs the missing migrations. Only one process migrates at a time; others wait for it.

    `dsn` is a libpq URL (`postgresql://…`). `pause(seconds)` is called between two tries to get the
    lock, and may raise to give up. Raises CommandFailed if the database does not answer, refuses a
    statement, or has the schema of a newer version.
    """
    try:
        # a separate connection outside any transaction, so that the lock does not block index
        # builds
        with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as lock:
            while lock.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,)).fetchone() != (True,):
                pause(0.1)
            _upgrade(dsn)
    except psycopg.OperationalError as error:
        raise database_failure(error) from error
    except (CommandError, DBAPIError) as error:
        raise CommandFailed(
            f"the database could not be brought to this version's schema: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _upgrade(dsn: str) -> None:
    engine = create_engine(sqlalchemy_url(dsn), poolclass=pool.NullPool)
    with engine.connect() as connection:
        config = Config(ROOT / "alembic.ini", attributes={"connection": connection})
        command.upgrade(config, "head")
        connection.commit()
