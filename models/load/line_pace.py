"""How fast a line moves: an estimate from looks at its first responses. Pure."""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST_GAP = 120.0
"""Seconds between two looks. After a longer time the line may have been empty in between."""
_LONGEST = 600.0
"""Seconds for which a look counts: a line of long responses moves rarely."""
_FEW = 3
"""Responses that must have left the line: fewer show no pace."""
_MANY = 30
"""Responses that are enough: older looks do not count then, so that a change of the pace shows."""
_SHORTEST = 1.0
"""Seconds that the looks must cover."""
_MAX_LOOKS = 600


@dataclass(frozen=True, slots=True)
class _Interval:
    """The time between two looks."""

    begin: float
    end: float
    left: int
    """responses that left the line in it"""


class LinePace:
    """The pace of one line.

    A look is the sorted list of the places of its first responses. What was in one look and is not
    in the next one has left the line: it was started, or its client has cancelled it.
    """

    def __init__(self) -> None:
        self._intervals: deque[_Interval] = deque(maxlen=_MAX_LOOKS)
        self._places: Sequence[float] = ()
        self._at: float | None = None
        """when the last look was; None: there was none"""

    def look(self, places: Sequence[float], at: float, *, is_whole: bool) -> None:
        """Adds a look, at a time of a monotonic clock in seconds. `is_whole`: the line has no other
        response than these."""
        if self._at is not None and at - self._at > _LONGEST_GAP:
            self._intervals.clear()
        elif self._at is not None and at > self._at:
            seen = self._places
            if not is_whole:
                # Responses behind the last one of this look may still be there.
                seen = seen[: bisect_right(seen, places[-1])]
            left = (Counter(seen) - Counter(places)).total()
            self._intervals.append(_Interval(self._at, at, left))
        self._places, self._at = places, at

    def seconds_for(self, responses: int) -> float | None:
        """How long it takes until so many responses have left the line; None: not known."""
        left, begin = 0, self._at
        if self._at is None or begin is None:
            return None
        for interval in reversed(self._intervals):
            if left >= _MANY or self._at - interval.begin > _LONGEST:
                break
            left, begin = left + interval.left, interval.begin
        seconds = self._at - begin
        if left < _FEW or seconds < _SHORTEST:
            return None
        return responses * seconds / left
