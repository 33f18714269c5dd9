"""Reads which workers have registered in the database; a worker registers when it can claim."""

from collections.abc import Sequence

import psycopg

from models.db.database import fetch_sync
from models.db.queries.leases import LIVE_PIDS, NOW


class RegisteredWorkers:
    """The workers that registered since this object was made.

    Older rows are ignored: a killed worker has a valid lease until it expires.
    """

    def __init__(self, dsn: str) -> None:
        """`dsn` is the libpq URL (`postgresql://…`) of a migrated database."""
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._opened_at = fetch_sync(self._connection, NOW, {})[0]

    def has_all(self, pids: Sequence[int]) -> bool:
        """Whether all these processes are registered and have a valid lease."""
        wanted = {"pids": list(pids), "since": self._opened_at}
        return set(fetch_sync(self._connection, LIVE_PIDS, wanted)) == set(pids)

    def close(self) -> None:
        self._connection.close()
