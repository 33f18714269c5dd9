"""A process's tie: one more session, which holds an advisory lock and runs nothing.

When the process ends, the kernel closes the session's socket, Postgres ends the session and frees
the lock. Other processes see that within a fraction of a second (models/ownership/watch.py,
ADR 0023). The lease decides in all other cases.
"""

import select
import socket
import threading
import time
from uuid import UUID

import structlog

from models.config.settings import Settings
from models.db.database import (
    DATABASE_UNAVAILABLE,
    SyncConnection,
    connect_sync,
    execute_sync,
)
from models.db.queries import leases
from models.db.statement import Statement

logger = structlog.get_logger()

_RETRY_DELAY = 0.2
"""Seconds between the end of a session and the next one."""
_SET_SESSION = Statement(
    "SET statement_timeout = 0; SET idle_session_timeout = 0; SET tcp_keepalives_idle = 1;"
    " SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 2"
)
"""The session waits and idles without a limit. The server ends it about 3 s after the last packet
of a machine that has failed."""


class Tie:
    """The tie of one process. A thread of its own holds it, and makes it again after each end."""

    def __init__(self, settings: Settings, process: UUID) -> None:
        self._settings = settings
        self._process = process
        self._tied_at: float | None = None
        self._is_recorded = False
        self._is_failing = False
        self._closing: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="tie", daemon=True)

    def start(self) -> None:
        """Starts the thread. The process's row must exist."""
        self._wakeup, self._closing = socket.socketpair()
        self._thread.start()

    @property
    def age(self) -> float:
        """Seconds for which the lock has been held without an interruption; 0 if it is not."""
        tied_at = self._tied_at
        return 0.0 if tied_at is None else time.monotonic() - tied_at

    def close(self) -> None:
        """Ends the thread and the session. Blocks for at most a second."""
        if self._closing is not None:
            self._closing.close()
            self._thread.join(timeout=1)

    def _run(self) -> None:
        while not self._is_closed(within=0):
            try:
                with connect_sync(self._settings, str(self._process), connect_timeout=2) as session:
                    self._tie(session)
                    self._wait_for_end(session)
            except DATABASE_UNAVAILABLE as error:
                if not self._is_failing:
                    logger.warning("tie_unavailable", error=str(error).strip())
                self._is_failing = True
            except Exception:
                # Without a tie the lease decides; a process must not end because of it.
                logger.exception("tie_failed")
            self._tied_at = None
            if self._is_closed(within=_RETRY_DELAY):
                return

    def _tie(self, session: SyncConnection) -> None:
        session.execute(_SET_SESSION.sql)
        execute_sync(session, leases.LOCK_TIE, {"me": self._process})
        self._tied_at = time.monotonic()
        self._is_failing = False
        if not self._is_recorded:
            execute_sync(session, leases.MARK_TIED, {"me": self._process})
            self._is_recorded = True

    def _wait_for_end(self, session: SyncConnection) -> None:
        """Returns when the tie is closed. Raises what DATABASE_UNAVAILABLE names when the session
        has ended."""
        poll = select.poll()  # select() is limited to 1024 open files
        poll.register(session.fileno(), select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while not self._is_closed(within=0):
            poll.poll()
            session.pgconn.consume_input()  # messages of the server, or the end

    def _is_closed(self, within: float) -> bool:
        """Whether the tie is closed, or gets closed within so many seconds."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        return bool(poll.poll(within * 1000))
