"""How long things took, counted in buckets: what the plots of the console are made of.

Percentiles cannot be added up, but such counts can: of several processes, and of several minutes.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import zip_longest

_SMALLEST = 0.01
_PER_DECADE = 6
_DECADES = 7
BOUNDS = tuple(_SMALLEST * 10 ** (at / _PER_DECADE) for at in range(_PER_DECADE * _DECADES + 1))
"""The upper bounds of the buckets in seconds, from 10 ms to 28 hours. Each is half as large again
as the one before. Whatever took longer counts in the last one."""


def bucket_of(seconds: float) -> int:
    """The number of the bucket of a duration."""
    return min(bisect_left(BOUNDS, seconds), len(BOUNDS) - 1)


def add_counts(parts: Iterable[Sequence[int]]) -> list[int]:
    """The sums of several counts by bucket. Missing buckets at the end of one are 0."""
    return [sum(bucket) for bucket in zip_longest(*parts, fillvalue=0)]


def percentile(counts: Sequence[int], part: float) -> float | None:
    """The duration in seconds that `part` (0 to 1) of those that were counted did not exceed,
    interpolated within its bucket. None: nothing was counted."""
    total = sum(counts)
    if not total:
        return None
    rank, below = part * total, 0
    for at, count in enumerate(counts):
        if count and below + count >= rank:
            begin = BOUNDS[at - 1] if at else 0.0
            return begin + (BOUNDS[at] - begin) * (rank - below) / count
        below += count
    return BOUNDS[-1]
