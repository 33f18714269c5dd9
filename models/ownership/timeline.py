"""The timeline of Postgres: a standby that is promoted begins a new one.

An asynchronous standby may lack the last commits. So after a promotion a worker may know more than
the database: claims, flushed events and finished turns that are lost. If it went on, its logs would
get holes, and the numbers of lost attempts would be used again. Therefore:

- A worker's pool and its journal use no connection to another timeline before the heartbeat has
  compared what this worker has stored with what the database has, and has released what is
  incomplete there (models/ownership/lease.py). The next attempt continues from what is stored.
- The numbers of attempts begin at another hundred thousand on each timeline. A lost attempt and the
  one that replaces it never have the same number, so readers notice the second one.

Commits are lost from the end: if the last write of a response is there, all earlier ones are.
"""

import psycopg
import structlog

from models.db.database import Connection, SyncConnection, fetch, fetch_sync
from models.db.queries.leases import TIMELINE
from models.lifecycle import ATTEMPTS_PER_TIMELINE

logger = structlog.get_logger()

_UNSUPPORTED = (
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedFunction,
)
"""What a server raises that does not show its timeline, as some managed ones do."""


class TimelineChanged(psycopg.OperationalError):
    """The connection leads to a timeline with which this worker has not compared its work yet."""


class Timeline:
    """The timeline that one process works on."""

    def __init__(self) -> None:
        self.current: int | None = None
        """None before the first connection."""

    @property
    def first_attempt(self) -> int:
        """The lowest number that an attempt may have."""
        return ATTEMPTS_PER_TIMELINE * ((self.current or 1) - 1) + 1

    async def check(self, connection: Connection) -> None:
        """For each new connection. Raises `TimelineChanged`."""
        try:
            timeline = (await fetch(connection, TIMELINE, {}))[0]
        except _UNSUPPORTED as error:
            timeline = _without_timeline(error)
        if self.current is None:
            self.current = timeline
        if timeline != self.current:
            raise TimelineChanged(
                f"Postgres is on timeline {timeline}, this process on {self.current}"
            )


def read_timeline(connection: SyncConnection) -> int:
    """The timeline to which the connection leads. Raises what DATABASE_UNAVAILABLE names, also for
    a standby that is not promoted."""
    try:
        return fetch_sync(connection, TIMELINE, {})[0]
    except _UNSUPPORTED as error:
        return _without_timeline(error)


def attempts_on_timeline(attempt: int) -> int:
    """How many attempts a response can have had at most on the timeline of this attempt."""
    return (attempt - 1) % ATTEMPTS_PER_TIMELINE + 1


def _without_timeline(error: psycopg.Error) -> int:
    logger.info("timeline_unknown", error=str(error).strip())
    return 1
