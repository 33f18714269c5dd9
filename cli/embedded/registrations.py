"""Reads which workers have registered in the database; a worker registers when it can claim."""

from collections.abc import Sequence

from sqlalchemy import create_engine, func, pool, select

from models.config.settings import sqlalchemy_url
from models.db.tables import workers


class RegisteredWorkers:
    """The workers that registered since this object was made.

    Older rows are ignored: a killed worker has a valid lease until it expires.
    """

    def __init__(self, dsn: str) -> None:
        """`dsn` is the libpq URL (`postgresql://…`) of a migrated database."""
        self._connection = create_engine(
            sqlalchemy_url(dsn), poolclass=pool.NullPool, isolation_level="AUTOCOMMIT"
        ).connect()
        self._opened_at = self._connection.execute(select(func.now())).scalar_one()

    def has_all(self, pids: Sequence[int]) -> bool:
        """Whether all these processes are registered and have a valid lease."""
        live = select(workers.c.pid).where(
            workers.c.pid.in_(pids),
            workers.c.started_at >= self._opened_at,
            ~workers.c.dead,
            workers.c.expires_at > func.now(),
        )
        return set(self._connection.execute(live).scalars()) == set(pids)

    def close(self) -> None:
        self._connection.close()
