"""A process's lease: its row in `workers`, renewed by a thread while the event loop runs.

The database decides which process is dead. *Refused*: it has declared this process dead; the
process exits within 2 s, whatever it does. *Unreachable*: nothing is known; calls of upstreams
continue, but after `lease.caution` no new turn is started.
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

import structlog

from models.config.settings import Settings
from models.db.database import (
    DATABASE_UNAVAILABLE,
    SyncConnection,
    connect_sync,
    execute_sync,
    fetch_sync,
)
from models.db.queries import create, leases
from models.db.queries.leases import OwnedResponse
from models.ids import new_uuid

logger = structlog.get_logger()

Kind = Literal["worker", "quarantine", "web"]
RenewalCallback = Callable[[float, list[OwnedResponse]], None]

EXIT_REFUSED = 70
"""The exit status of a process whose lease was revoked. The supervisor starts a new process, with a
new id."""


class Lease:
    """A process's id and its liveness. The id is new at every start of the process."""

    def __init__(
        self, settings: Settings, kind: Kind, on_renewed: RenewalCallback | None = None
    ) -> None:
        """`on_renewed(sent, responses)`: called on the heartbeat's thread after each renewal, with
        the monotonic time before the renewal was sent, and the responses that the database counts
        as this worker's (a web process owns none)."""
        self.id = new_uuid()
        self.kind: Kind = kind
        self.unresolved_creates: dict[UUID, UUID] = {}
        """Creates that were answered with 503 although their outcome is unclear: response ->
        project. They are deleted before the lease is renewed. Until then no sweep claims them."""
        self._settings = settings
        self._lease = settings.lease
        self._on_renewed = on_renewed
        self._draining = False
        self._renewed_at = time.monotonic()
        self._ticked_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def register(self) -> None:
        """Inserts the process's row and starts the heartbeat. Blocks. Raises
        `psycopg.OperationalError` if Postgres is unavailable."""
        sent = time.monotonic()
        with connect_sync(self._settings, str(self.id)) as connection:
            execute_sync(
                connection,
                leases.REGISTER,
                {
                    "me": self.id,
                    "kind": self.kind,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "lease": self._lease.duration,
                },
            )
            if self.kind != "web":
                execute_sync(connection, leases.MARK_JOURNAL, {"me": self.id})
        self._renewed_at = sent
        self._thread.start()

    async def tick(self) -> None:
        """Runs in the event loop without end. The heartbeat renews the lease only while it does."""
        while True:
            self._ticked_at = time.monotonic()
            await asyncio.sleep(0.25)

    @property
    def age(self) -> float:
        """Seconds since the last renewal was sent."""
        return time.monotonic() - self._renewed_at

    @property
    def is_fresh(self) -> bool:
        """Whether it was renewed recently enough to start new work."""
        return time.monotonic() - self._renewed_at < self._lease.caution.total_seconds()

    @property
    def is_valid(self) -> bool:
        """Whether it has not run out by this process's clock."""
        return time.monotonic() - self._renewed_at < self._lease.duration.total_seconds()

    async def wait_until_valid(self) -> None:
        """Waits until the lease is valid: after it ran out, no fenced write is sent before the next
        renewal."""
        while not self.is_valid:  # noqa: ASYNC110  (renewed by another thread)
            await asyncio.sleep(0.1)

    def exit_process(self) -> NoReturn:
        """Ends the process now: its lease was revoked, or a task that it cannot do without
        failed."""
        os._exit(EXIT_REFUSED)

    def deregister(self) -> None:
        """Ends the heartbeat and marks the row as stopped: everything was released. Blocks for at
        most a few seconds."""
        self._stop.set()
        self._thread.join(timeout=3)
        try:
            with connect_sync(self._settings, str(self.id), connect_timeout=2) as connection:
                self._resolve_creates(connection)
                execute_sync(connection, leases.DEREGISTER, {"me": self.id})
        except DATABASE_UNAVAILABLE:
            # The lease runs out, and a sweep declares the process dead.
            logger.info("deregister_failed", worker=str(self.id))

    def _run(self) -> None:
        connection: SyncConnection | None = None
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
                _close(connection)
                connection = None
            except Exception:
                # Without this thread the lease would run out while the process works on.
                logger.exception("heartbeat_failed")
                _close(connection)
                connection = None
        _close(connection)

    def _renewed_recently(self) -> bool:
        return time.monotonic() - self._renewed_at < 2 * self._lease.beat.total_seconds()

    def _connect(self) -> SyncConnection:
        connection = connect_sync(self._settings, str(self.id), connect_timeout=2)
        execute_sync(connection, leases.SET_HEARTBEAT_TIMEOUT, {})
        return connection

    def _resolve_creates(self, connection: SyncConnection) -> None:
        for response_id, project in list(self.unresolved_creates.items()):
            unclear = {"id": response_id, "project": project}
            execute_sync(connection, create.DELETE_UNCLEAR_CREATE, unclear)
            execute_sync(connection, create.DELETE_UNCLEAR_SECRETS, unclear)
            self.unresolved_creates.pop(response_id, None)

    def _renew(self, connection: SyncConnection) -> None:
        self._resolve_creates(connection)
        sent = time.monotonic()
        renewed = fetch_sync(
            connection, leases.RENEW, {"me": self.id, "lease": self._lease.duration}
        )
        if not renewed:
            logger.error("lease_refused", worker=str(self.id))
            self.exit_process()
        self._renewed_at = sent
        if renewed[0].draining and not self._draining:
            self._draining = True
            logger.info("drain_requested", worker=str(self.id))
            # To the main thread, so that a blocking call there is interrupted.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        if self._on_renewed is not None:
            self._on_renewed(sent, fetch_sync(connection, leases.OWNED_RESPONSES, {"me": self.id}))


def _close(connection: SyncConnection | None) -> None:
    if connection is not None:
        connection.close()
