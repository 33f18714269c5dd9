"""A process's lease: one row in `workers`, renewed by a thread of its own while the event loop ticks (design §4.3).

The database decides who is dead. *Refused* means it says so of us: the process exits within 2 s, whatever it is doing. *Unreachable*
means nothing: upstreams stay open, and after `caution` no new turn begins.
"""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Literal, NoReturn
from uuid import UUID

import psycopg
import structlog
from psycopg.rows import DictRow

from models.config.settings import Settings
from models.db.database import DATABASE_UNAVAILABLE, Row, connect_sync
from models.db.queries import statements
from models.ids import new_uuid

logger = structlog.get_logger()

Kind = Literal["worker", "quarantine", "web"]
RenewalCallback = Callable[[float, list[Row]], None]

EXIT_REFUSED = 70
"""The exit status of a process that may not go on: the supervisor starts a new one, with a new id."""


class Lease:
    """This run's identity and its liveness. The id is new at every start and bound to this run, never global."""

    def __init__(
        self, settings: Settings, kind: Kind, on_renewed: RenewalCallback | None = None
    ) -> None:
        """`beaten(sent, rows)`: called on the heartbeat's thread after each renewal, with the monotonic time before it was sent
        and what the database counts as ours (`statements.MINE`); only workers own anything."""
        self.id = new_uuid()
        self.kind: Kind = kind
        self.unresolved_creates: dict[UUID, UUID] = {}
        """Creates that were answered 503 although their commit is unclear: response -> project. They are voided before the lease is
        renewed, and until then no sweep touches them."""
        self._settings = settings
        self._lease = settings.lease
        self._on_renewed = on_renewed
        self._draining = False
        self._renewed_at = time.monotonic()
        self._ticked_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def register(self) -> None:
        """Announces the process and starts the heartbeat. Blocks; raises `psycopg.OperationalError` when Postgres is away."""
        sent = time.monotonic()
        with connect_sync(self._settings, str(self.id)) as connection:
            connection.execute(
                statements.REGISTER,
                {
                    "me": self.id,
                    "kind": self.kind,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "lease": self._lease.duration,
                },
            )
            if self.kind != "web":
                connection.execute(statements.MARK_JOURNAL, {"me": self.id})
        self._renewed_at = sent
        self._thread.start()

    async def tick(self) -> None:
        """Runs in the event loop for ever: the heartbeat beats only while this does."""
        while True:
            self._ticked_at = time.monotonic()
            await asyncio.sleep(0.25)

    @property
    def age(self) -> float:
        """Seconds since the last renewal was sent."""
        return time.monotonic() - self._renewed_at

    @property
    def is_fresh(self) -> bool:
        """Renewed recently enough to begin something new."""
        return time.monotonic() - self._renewed_at < self._lease.caution.total_seconds()

    async def wait_until_valid(self) -> None:
        """Returns once the lease has not run out: past it nothing fenced is sent before a renewal."""
        while time.monotonic() - self._renewed_at >= self._lease.duration.total_seconds():  # noqa: ASYNC110  (renewed by another thread)
            await asyncio.sleep(0.1)

    def exit_process(self) -> NoReturn:
        """Ends the process now: the database says it is dead, or it can no longer keep its promises."""
        os._exit(EXIT_REFUSED)

    def deregister(self) -> None:
        """Ends the heartbeat and marks the row: everything was given back. Blocks for at most a few seconds."""
        self._stop.set()
        self._thread.join(timeout=3)
        try:
            with connect_sync(self._settings, str(self.id), connect_timeout=2) as connection:
                self._resolve_creates(connection)
                connection.execute(statements.DEREGISTER, {"me": self.id})
        except DATABASE_UNAVAILABLE:
            logger.info(
                "goodbye_unheard", worker=str(self.id)
            )  # the sweepers will see the lease run out

    def _run(self) -> None:
        connection: psycopg.Connection[DictRow] | None = None
        while not self._stop.wait(
            self._lease.beat.total_seconds() if self._renewed_recently() else 1.0
        ):
            if time.monotonic() - self._ticked_at > self._lease.caution.total_seconds() / 2:
                continue
            try:
                connection = connection or self._connect()
                self._renew(connection)
            except DATABASE_UNAVAILABLE as error:
                logger.warning("heartbeat_unreachable", error=str(error).strip())
                if connection is not None:
                    connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _renewed_recently(self) -> bool:
        return time.monotonic() - self._renewed_at < 2 * self._lease.beat.total_seconds()

    def _connect(self) -> psycopg.Connection[DictRow]:
        connection = connect_sync(self._settings, str(self.id), connect_timeout=2)
        connection.execute("SET statement_timeout = '1500ms'")
        return connection

    def _resolve_creates(self, connection: psycopg.Connection[DictRow]) -> None:
        for response_id, project in list(self.unresolved_creates.items()):
            connection.execute(
                statements.DELETE_UNCLEAR_CREATE, {"id": response_id, "project": project}
            )
            connection.execute(statements.DELETE_UNCLEAR_SECRETS, {"id": response_id})
            self.unresolved_creates.pop(response_id, None)

    def _renew(self, connection: psycopg.Connection[DictRow]) -> None:
        self._resolve_creates(connection)
        sent = time.monotonic()
        renewed = connection.execute(
            statements.RENEW, {"me": self.id, "lease": self._lease.duration}
        ).fetchone()
        if renewed is None:
            logger.error("lease_refused", worker=str(self.id))
            self.exit_process()
        self._renewed_at = sent
        if renewed["draining"] and not self._draining:
            self._draining = True
            logger.info("drain_requested", worker=str(self.id))
            # As if from outside; to the main thread itself, so that what it sleeps in is interrupted.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        if self._on_renewed is not None:
            self._on_renewed(
                sent, connection.execute(statements.OWNED_RESPONSES, {"me": self.id}).fetchall()
            )
