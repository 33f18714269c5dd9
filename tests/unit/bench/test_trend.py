"""Whether a soak sees that memory or a table grows."""

import pytest

from bench.soak.trend import Trend

MINUTES = [minute * 60.0 for minute in range(30)]


@pytest.mark.parametrize(
    ("values", "grows"),
    [
        ([100.0 + 0.2 * minute for minute in range(30)], True),
        ([100.0 + minute % 3 for minute in range(30)], False),
        ([50.0 + 5.0 * min(minute, 9) for minute in range(30)], False),
        ([100.0 - minute for minute in range(30)], False),
        ([100.0 + 0.05 * minute for minute in range(30)], False),
    ],
    ids=["leak", "scattered", "warm-up", "shrinks", "within the tolerance"],
)
def test_only_growth_after_the_warm_up_counts(values: list[float], grows: bool) -> None:
    assert Trend.of(list(zip(MINUTES, values, strict=True))).grows(2.0) is grows


def test_the_slope_is_per_hour() -> None:
    trend = Trend.of([(second, 100.0 + second / 60) for second in MINUTES])
    assert trend.per_hour == pytest.approx(60.0)
    assert trend.residual == pytest.approx(0.0, abs=1e-6)
