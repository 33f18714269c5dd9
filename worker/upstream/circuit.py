"""A circuit breaker: an upstream that is down gets no calls for a while (docs/adr/0014).

While closed, it permits all calls and counts failures in a row. At a threshold it opens: no call is
permitted for a pause. Then one call is permitted as a probe. Its first output closes the circuit;
its failure opens it again for twice as long.
"""

from datetime import timedelta
from uuid import UUID

_MAX_PAUSE_FACTOR = 4
"""Pauses grow to this many times the first."""
_PROBE_WAIT = 1.0
"""Seconds to wait while a probe runs."""


class Circuit:
    """The circuit of one upstream, or of one model there. Times are seconds of any monotonic
    clock."""

    def __init__(self, failures: int, pause: timedelta, projects: int = 1) -> None:
        """Opens after `failures` in a row, of at least so many `projects`, first for `pause`."""
        self._threshold = failures
        self._min_projects = projects
        self._projects: set[UUID | None] = set()
        """Some of those whose calls failed: as many as have to."""
        self._first_pause = pause.total_seconds()
        self._failures = 0
        self._pause = 0.0
        """The current pause in seconds; 0 while closed."""
        self._open_until = 0.0
        self._has_probe = False
        self._calls = 0
        """Calls that are running."""
        self.last_reason = ""
        """The reason of the last failure."""

    @property
    def is_open(self) -> bool:
        """Whether it has opened and no call has succeeded since."""
        return self._pause > 0

    @property
    def is_idle(self) -> bool:
        """Whether it has no state worth keeping."""
        return not self._failures and not self.is_open and not self._calls

    def wait(self, now: float) -> float:
        """Seconds until a call may be permitted; 0: now."""
        if not self.is_open:
            return 0.0
        return max(self._open_until - now, _PROBE_WAIT if self._has_probe else 0.0)

    def record_call(self) -> None:
        """A call was permitted."""
        self._calls += 1
        self._has_probe = self.is_open

    def record_success(self) -> None:
        """A call has its first output: closes the circuit."""
        self._failures, self._pause, self._has_probe = 0, 0.0, False
        self._projects.clear()

    def record_failure(self, now: float, *, as_probe: bool, project: UUID | None = None) -> None:
        """A call of this project failed. In an open circuit only the probe counts; calls that began
        earlier do not."""
        self._failures += 1
        if len(self._projects) < self._min_projects:
            self._projects.add(project)
        if as_probe:
            self._open(now, min(self._pause * 2, self._first_pause * _MAX_PAUSE_FACTOR))
        elif not self.is_open and self._is_outage:
            self._open(now, self._first_pause)

    def record_end(self, *, as_probe: bool) -> None:
        """A call ended, with any result. If a probe had neither success nor failure, another one
        may be made."""
        self._calls -= 1
        self._has_probe = self._has_probe and not as_probe

    @property
    def _is_outage(self) -> bool:
        """Whether so many calls failed, of so many projects, that it opens."""
        return self._failures >= self._threshold and len(self._projects) >= self._min_projects

    def _open(self, now: float, pause: float) -> None:
        self._pause, self._open_until, self._has_probe = pause, now + pause, False
