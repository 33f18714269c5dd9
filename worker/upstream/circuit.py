"""When an upstream is no longer asked for a while: a circuit (docs/adr/, "An upstream that is down is left alone").

Closed, it lets everybody through and counts failures that follow one another. After so many it opens: nobody is let through for a pause.
Then one call is let through as a probe; its first word closes the circuit, its failure opens it again for twice as long.
"""

from datetime import timedelta

_MAX_PAUSE_FACTOR = 4
"""Pauses grow to this many times the first."""
_PROBE_WAIT = 1.0
"""Seconds to wait for a probe that is under way."""


class Circuit:
    """One upstream's, or that of one model there. Moments are seconds of any monotonic clock."""

    def __init__(self, failures: int, pause: timedelta) -> None:
        """`failures` in a row open it, for `pause` at first."""
        self._threshold = failures
        self._first_pause = pause.total_seconds()
        self._failures = 0
        self._pause = 0.0
        """The present one; 0 while closed."""
        self._open_until = 0.0
        self._has_probe = False
        self._calls = 0
        """Under way."""

    @property
    def is_open(self) -> bool:
        """It has opened and nobody has got an answer since."""
        return self._pause > 0

    @property
    def is_idle(self) -> bool:
        """There is nothing to remember."""
        return not self._failures and not self.is_open and not self._calls

    def wait(self, now: float) -> float:
        """Seconds until somebody may ask; 0: now."""
        if not self.is_open:
            return 0.0
        return max(self._open_until - now, _PROBE_WAIT if self._has_probe else 0.0)

    def record_call(self) -> None:
        """Somebody was let through."""
        self._calls += 1
        self._has_probe = self.is_open

    def record_success(self) -> None:
        """The upstream has spoken."""
        self._failures, self._pause, self._has_probe = 0, 0.0, False

    def record_failure(self, now: float, *, as_probe: bool) -> None:
        """It has not. A call that began before the circuit opened changes nothing any more."""
        self._failures += 1
        if as_probe:
            self._open(now, min(self._pause * 2, self._first_pause * _MAX_PAUSE_FACTOR))
        elif not self.is_open and self._failures >= self._threshold:
            self._open(now, self._first_pause)

    def record_end(self, *, as_probe: bool) -> None:
        """A call is over, whatever became of it; a probe that told nothing may be made again."""
        self._calls -= 1
        self._has_probe = self._has_probe and not as_probe

    def _open(self, now: float, pause: float) -> None:
        self._pause, self._open_until, self._has_probe = pause, now + pause, False
