"""The database's clock, as far as a process knows it.

Times that clients see, and that other processes compare, come from one clock: that of the database.
The clock of a machine may be hours off.
"""

import time
from datetime import datetime


class DatabaseClock:
    """The database's time at its last answer, plus the time since then on the monotonic clock of
    this process. It is late by the time that the answer took."""

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
