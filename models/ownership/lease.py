"""A process's lease: its row in `workers`, renewed by a thread while the event loop runs; and what
each renewal reads: the database's clock, the number of changes of projects and keys, and which
other processes are alive.

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
from contextlib import suppress
from datetime import datetime
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
from models.db.queries import create, leases, run, steers
from models.db.queries.leases import OwnedResponse
from models.db.queries.run import StoredLog
from models.ids import new_uuid
from models.ownership.creates import CreateOutcomes, void_values
from models.ownership.lookout import Lookout
from models.ownership.tie import Tie
from models.ownership.timeline import Timeline, read_timeline
from models.version import VERSION


class AccessRevision:
    """How a process notices that a project or a key was changed: the number of such changes that it
    has seen last. The thread of the heartbeat sets it; those that watch it are called in the event
    loop.

    The database counts these changes (`access_revision`, migrations/functions.sql). Each heartbeat
    reads the number, with the statement that renews the lease: so it costs no statement, and needs
    no Redis. A process acts on a change at most one heartbeat after its commit, half a second by
    default (docs/projects.md)."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._watchers: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []

    def watch(self, on_change: Callable[[], None]) -> None:
        """Calls `on_change` in this event loop after each change, and once when the number is known
        first: what was read before that may be older."""
        self._watchers.append((asyncio.get_running_loop(), on_change))

    def forget(self) -> None:
        """The next number counts as a change, whichever it is."""
        self._number = None

    def set(self, number: int) -> None:
        """The number that a heartbeat has read."""
        if number == self._number:
            return
        self._number = number
        for loop, on_change in self._watchers:
            # The loop may have ended: then nobody uses what was read.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(on_change)


class DatabaseClock:
    """The database's time at its last answer, plus the time since then on the monotonic clock of
    this process. It is late by the time that the answer took.

    Times that clients see, and that other processes compare, come from this one clock: that of a
    machine may be hours off."""

    def __init__(self) -> None:
        self._read = time.monotonic(), time.time()
        """(monotonic time, seconds since the epoch); the machine's clock until the first answer"""

    def set(self, now: datetime) -> None:
        """Records the database's time, from an answer that was received now."""
        self._read = time.monotonic(), now.timestamp()

    def now(self) -> int:
        """Whole seconds since the epoch."""
        read_at, seconds = self._read
        return int(seconds + time.monotonic() - read_at)


logger = structlog.get_logger()

Kind = Literal["worker", "quarantine", "web"]
RenewalCallback = Callable[[float, list[OwnedResponse]], None]
IncompleteLogs = Callable[[list[StoredLog]], list[UUID]]

EXIT_REFUSED = 70
"""The exit status of a process whose lease was revoked. The supervisor starts a new process, with a
new id."""

_RETRY_DELAY = 1.0
"""Longest pause of the heartbeat in seconds while the lease is not renewed in time."""


class Lease:
    """A process's id and its liveness. The id is new at every start of the process."""

    def __init__(
        self,
        settings: Settings,
        kind: Kind,
        on_renewed: RenewalCallback | None = None,
        incomplete_logs: IncompleteLogs | None = None,
        slots: int | None = None,
    ) -> None:
        """`on_renewed(sent, responses)`: called on the heartbeat's thread after a renewal, every
        `lease.sweep` seconds and after `compare_now`, with the monotonic time before the renewal
        was sent, and the responses that the database counts as this worker's (a web process owns
        none). `incomplete_logs(stored)`: called on that thread after a failover, with what is
        stored of this worker's responses; returns those of which more was stored before. `slots`:
        the most responses that a worker runs at a time."""
        self.id = new_uuid()
        self.kind: Kind = kind
        self.creates = CreateOutcomes()
        """The creates of a web process whose outcome is not known."""
        self.clock = DatabaseClock()
        self.access_revision = AccessRevision()
        self.lookout = Lookout(leaves_seats=kind == "web")
        """Web processes are slower to declare others dead."""
        self.has_open = True
        """Whether a response was open at the last heartbeat: if not, a worker looks for none."""
        self._settings = settings
        self._lease = settings.lease
        self._on_renewed = on_renewed
        self._incomplete_logs = incomplete_logs
        self._slots = slots
        self.timeline = Timeline()
        self._connected_timeline = 0
        """The timeline of the heartbeat's connection."""
        self._draining = False
        self._renewed_at = time.monotonic()
        self._ticked_at = time.monotonic()
        self.tie = Tie(settings, self.id)
        self._compared_at = 0.0
        self._compare_now = False
        self._stopping = False
        self._wake = threading.Event()
        """Ends a pause of the heartbeat."""
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def register(self) -> None:
        """Inserts the process's row, and starts the heartbeat and the tie. Blocks. Raises
        `psycopg.OperationalError` if Postgres is unavailable."""
        sent = time.monotonic()
        with connect_sync(self._settings, str(self.id)) as connection:
            [now] = fetch_sync(
                connection,
                leases.REGISTER,
                {
                    "me": self.id,
                    "kind": self.kind,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "slots": self._slots,
                    "version": VERSION,
                    "lease": self._lease.duration,
                },
            )
            self.clock.set(now)
            if self.kind != "web":
                execute_sync(connection, leases.MARK_JOURNAL, {"me": self.id})
        self._renewed_at = sent
        self._thread.start()
        self.tie.start()

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

    async def wait_until_fresh(self) -> None:
        """Waits until the lease was renewed recently enough to start a turn or a tool call."""
        while not self.is_fresh:  # noqa: ASYNC110  (renewed by another thread)
            await asyncio.sleep(0.1)

    async def wait_until_valid(self) -> None:
        """Waits until the lease is valid: after it ran out, no fenced write is sent before the next
        renewal."""
        while not self.is_valid:  # noqa: ASYNC110  (renewed by another thread)
            await asyncio.sleep(0.1)

    def compare_now(self) -> None:
        """Renews the lease now and calls `on_renewed`: others may have changed what this worker
        owns."""
        self._compare_now = True
        self._wake.set()

    def exit_process(self) -> NoReturn:
        """Ends the process now: its lease was revoked, or a task that it cannot do without
        failed."""
        os._exit(EXIT_REFUSED)

    def deregister(self) -> None:
        """Ends the heartbeat and marks the row as stopped: everything was released. Blocks for at
        most a few seconds."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=3)
        try:
            with connect_sync(self._settings, str(self.id), connect_timeout=2) as connection:
                self._void_creates(connection)
                execute_sync(connection, leases.DEREGISTER, {"me": self.id})
        except DATABASE_UNAVAILABLE:
            # The lease runs out, and a sweep declares the process dead.
            logger.info("deregister_failed", worker=str(self.id))
        self.tie.close()

    def _run(self) -> None:
        connection: SyncConnection | None = None
        while self._pause():
            if time.monotonic() - self._ticked_at > self._lease.caution.total_seconds() / 2:
                continue
            try:
                connection = connection or self._connect()
                self._renew(connection)
                continue
            except DATABASE_UNAVAILABLE as error:
                logger.warning("heartbeat_unreachable", error=str(error).strip())
            except Exception:
                # Without this thread the lease would run out while the process works on.
                logger.exception("heartbeat_failed")
            _close(connection)
            connection = None
            self.lookout.end_session()
        _close(connection)

    def _pause(self) -> bool:
        """Waits until the next heartbeat is due. Returns False if the heartbeat shall end."""
        beat = self._lease.beat.total_seconds()
        is_late = time.monotonic() - self._renewed_at > 2 * beat
        self._wake.wait(min(beat, _RETRY_DELAY) if is_late else beat)
        self._wake.clear()
        return not self._stopping

    def _connect(self) -> SyncConnection:
        connection = connect_sync(self._settings, str(self.id), connect_timeout=2)
        execute_sync(connection, leases.SET_HEARTBEAT_TIMEOUT, {})
        self._connected_timeline = read_timeline(connection)
        return connection

    def _void_creates(self, connection: SyncConnection) -> None:
        """Voids what is still unclear: sweeps claim the creates of a process that has ended."""
        unclear = self.creates.unclear()
        if unclear:
            values = void_values(unclear, self.id)
            execute_sync(connection, create.VOID_UNCLEAR_CREATES, values)
            execute_sync(connection, create.DELETE_VOIDED_SECRETS, values)
            execute_sync(connection, steers.RETURN_VOIDED, values)

    def _renew(self, connection: SyncConnection) -> None:
        values = {
            "me": self.id,
            "lease": self._lease.duration,
            "settled_at": self.creates.settled_at(),
            **self.lookout.look(),
        }
        sent = time.monotonic()
        renewed = fetch_sync(
            connection, leases.RENEW_WEB if self.kind == "web" else leases.RENEW, values
        )
        if not renewed:
            logger.error("lease_refused", worker=str(self.id))
            self.exit_process()
        if self._connected_timeline != self.timeline.current:
            self._adopt_timeline(connection)
        self._renewed_at = sent
        self.clock.set(renewed[0].now)
        self.creates.renewed(renewed[0].now)
        self.access_revision.set(renewed[0].access_revision)
        self.lookout.see(renewed[0], sent)
        self.has_open = renewed[0].has_open
        if renewed[0].draining and not self._draining:
            self._draining = True
            logger.info("drain_requested", worker=str(self.id))
            # To the main thread, so that a blocking call there is interrupted.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        if self._on_renewed is not None and self._is_comparison_due(sent):
            self._compare_now = False
            self._compared_at = sent
            values = {"me": self.id}
            owned = fetch_sync(connection, leases.OWNED_RESPONSES, values) if self.has_open else []
            self._on_renewed(sent, owned)

    def _is_comparison_due(self, now: float) -> bool:
        return self._compare_now or now - self._compared_at >= self._lease.sweep.total_seconds()

    def _adopt_timeline(self, connection: SyncConnection) -> None:
        """Releases what a failover has shortened. Then this process uses the new timeline."""
        if self._incomplete_logs is not None:
            stored = fetch_sync(connection, run.STORED_LOGS, {"me": self.id})
            values = {"me": self.id, "ids": self._incomplete_logs(stored)}
            released = fetch_sync(connection, run.RELEASE_INCOMPLETE, values)
            logger.warning(
                "timeline_changed", timeline=self._connected_timeline, released=len(released)
            )
        # Lost changes and later ones may have the same number.
        self.access_revision.forget()
        self.timeline.current = self._connected_timeline


def _close(connection: SyncConnection | None) -> None:
    if connection is not None:
        connection.close()
