"""Asks the database which of our workers have registered; a worker does once it claims."""

from collections.abc import Sequence

from sqlalchemy import create_engine, func, pool, select

from models.db.tables import workers


class RegisteredWorkers:
    """Counts workers registered since it was opened: after a kill, the rows of the dead look alive until their lease runs out."""

    def __init__(self, dsn: str) -> None:
        """`dsn` is a libpq URL (`postgresql://…`) of a database that is at head."""
        url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
        self._connection = create_engine(
            url, poolclass=pool.NullPool, isolation_level="AUTOCOMMIT"
        ).connect()
        self._opened_at = self._connection.execute(select(func.now())).scalar_one()

    def has_all(self, pids: Sequence[int]) -> bool:
        """Whether these processes of this machine are all registered and alive."""
        seen = select(workers.c.pid).where(
            workers.c.pid.in_(pids),
            workers.c.started_at >= self._opened_at,
            ~workers.c.dead,
            workers.c.expires_at > func.now(),
        )
        return set(self._connection.execute(seen).scalars()) == set(pids)

    def close(self) -> None:
        self._connection.close()
