"""Whether a series of measurements grows."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

WARM_UP = 1 / 3
"""The first part of the series is left out: caches fill, and nothing has expired yet."""
_SIGNIFICANT = 3.0
"""Growth counts if it is so many times as large as the scatter around the line."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The line through a series, by least squares."""

    per_hour: float
    residual: float
    """standard deviation of the values from the line"""
    hours: float
    mean: float
    last: float

    @classmethod
    def of(cls, series: Sequence[tuple[float, float]]) -> Self:
        """The trend of (seconds, value) pairs, ordered by time; the first third is left out.

        Raises ValueError if fewer than three are left.
        """
        kept = series[int(len(series) * WARM_UP) :]
        if len(kept) < 3:
            raise ValueError("a trend needs at least three samples after the warm-up")
        hours = [seconds / 3600 for seconds, _ in kept]
        values = [value for _, value in kept]
        slope, intercept = statistics.linear_regression(hours, values)
        residuals = [
            value - slope * hour - intercept for hour, value in zip(hours, values, strict=True)
        ]
        return cls(
            per_hour=slope,
            residual=statistics.pstdev(residuals),
            hours=hours[-1] - hours[0],
            mean=statistics.fmean(values),
            last=values[-1],
        )

    @property
    def growth(self) -> float:
        """By how much the line rises in the whole time."""
        return self.per_hour * self.hours

    def grows(self, tolerance: float) -> bool:
        """Whether the growth is larger than `tolerance` and no accident of scattered values."""
        return self.growth > max(tolerance, _SIGNIFICANT * self.residual)
