"""Brings a database to this version's schema."""

import time
from collections.abc import Callable

import psycopg
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import create_engine, pool
from sqlalchemy.exc import DBAPIError

from cli.embedded.process import StartFailed
from cli.settings import ROOT

LOCK = 0x6261636B6275726E  # "backburn" in ASCII: any fixed number would do, and nobody else takes this one


def migrate(dsn: str, pause: Callable[[float], None] = time.sleep) -> None:
    """Run what is missing, at most one process at a time; the others wait and find nothing left to do.

    `dsn` is a libpq URL (`postgresql://…`); `pause(seconds)` is called between two looks at the lock and may raise to give up. Raises StartFailed when the database does not answer or refuses, or is of a newer version.
    """
    try:
        # a connection of its own, idle and outside any transaction, so the lock hinders no index being built
        with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as lock:
            while lock.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,)).fetchone() != (True,):
                pause(0.1)
            _upgrade(dsn)
    except psycopg.OperationalError as error:
        raise StartFailed(f"the database did not answer: {' '.join(str(error).split())}") from error
    except (CommandError, DBAPIError) as error:
        raise StartFailed(
            f"the database could not be brought to this version's schema: {str(error).splitlines()[0]}"
        ) from error


def _upgrade(dsn: str) -> None:
    engine = create_engine(
        dsn.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=pool.NullPool
    )
    with engine.connect() as connection:
        config = Config(ROOT / "alembic.ini", attributes={"connection": connection})
        command.upgrade(config, "head")
        connection.commit()
