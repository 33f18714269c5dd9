"""When an upstream is no longer asked for a while: a circuit (docs/adr/, "An upstream that is down is left alone").

Closed, it lets everybody through and counts failures that follow one another. After so many it opens: nobody is let through for a pause.
Then one call is let through as a probe; its first word closes the circuit, its failure opens it again for twice as long.
"""

from datetime import timedelta

_LONGEST = 4
"""Pauses grow to this many times the first."""
_WHILE_PROBED = 1.0
"""Seconds to wait for a probe that is under way."""


class Circuit:
    """One upstream's, or that of one model there. Moments are seconds of any monotonic clock."""

    def __init__(self, failures: int, pause: timedelta) -> None:
        """`failures` in a row open it, for `pause` at first."""
        self._allowed = failures
        self._first_pause = pause.total_seconds()
        self._failures = 0
        self._pause = 0.0
        """The present one; 0 while closed."""
        self._until = 0.0
        self._is_probed = False
        self._calls = 0
        """Under way."""

    @property
    def is_open(self) -> bool:
        """It has opened and nobody has got an answer since."""
        return self._pause > 0

    @property
    def is_quiet(self) -> bool:
        """There is nothing to remember."""
        return not self._failures and not self.is_open and not self._calls

    def wait(self, now: float) -> float:
        """Seconds until somebody may ask; 0: now."""
        if not self.is_open:
            return 0.0
        return max(self._until - now, _WHILE_PROBED if self._is_probed else 0.0)

    def asked(self) -> None:
        """Somebody was let through."""
        self._calls += 1
        self._is_probed = self.is_open

    def answered(self) -> None:
        """The upstream has spoken."""
        self._failures, self._pause, self._is_probed = 0, 0.0, False

    def failed(self, now: float, *, as_probe: bool) -> None:
        """It has not. A call that began before the circuit opened changes nothing any more."""
        self._failures += 1
        if as_probe:
            self._open(now, min(self._pause * 2, self._first_pause * _LONGEST))
        elif not self.is_open and self._failures >= self._allowed:
            self._open(now, self._first_pause)

    def ended(self, *, as_probe: bool) -> None:
        """A call is over, whatever became of it; a probe that told nothing may be made again."""
        self._calls -= 1
        self._is_probed = self._is_probed and not as_probe

    def _open(self, now: float, pause: float) -> None:
        self._pause, self._until, self._is_probed = pause, now + pause, False
