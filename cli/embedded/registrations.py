"""Reads which workers have registered in the database; a worker registers when it can claim."""

from collections.abc import Sequence

import psycopg

from models.config.addresses import DEFAULT_SCHEMA
from models.db.database import fetch_sync
from models.db.queries.leases import LIVE_PIDS, NOW
from models.db.search_path import set_search_path


class RegisteredWorkers:
    """The workers that registered since this object was made.

    Older rows are ignored: a killed worker has a valid lease until it expires.
    """

    def __init__(self, dsn: str, schema: str = DEFAULT_SCHEMA) -> None:
        """`dsn` is the libpq URL (`postgresql://…`) of a migrated database, `schema` the setting
        `database_schema`."""
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(set_search_path(schema))
        self._opened_at = fetch_sync(self._connection, NOW, {})[0]

    def has_all(self, pids: Sequence[int]) -> bool:
        """Whether all these processes are registered and have a valid lease."""
        wanted = {"pids": list(pids), "since": self._opened_at}
        return set(fetch_sync(self._connection, LIVE_PIDS, wanted)) == set(pids)

    def close(self) -> None:
        self._connection.close()
