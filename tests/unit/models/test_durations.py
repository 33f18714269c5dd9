"""Percentiles of durations that were counted in buckets."""

import pytest

from models.db.queries.activity import BOUNDS, add_counts, bucket_of, percentile


def _counted(*seconds: float) -> list[int]:
    counts = [0] * len(BOUNDS)
    for each in seconds:
        counts[bucket_of(each)] += 1
    return counts


@pytest.mark.parametrize("seconds", [0.012, 0.5, 1.0, 37.0, 3600.0])
def test_a_percentile_is_within_a_bucket_of_the_truth(seconds: float) -> None:
    slow = seconds * 20
    counts = _counted(*[seconds] * 90, *[slow] * 10)
    median, p95 = percentile(counts, 0.5), percentile(counts, 0.95)
    assert median is not None
    assert p95 is not None
    assert seconds / 1.5 < median < seconds * 1.5
    assert slow / 1.5 < p95 < slow * 1.5


def test_counts_of_processes_are_added_up_and_none_is_lost() -> None:
    parts = [_counted(0.1), [], _counted(0.1, 5.0), [1]]
    assert sum(add_counts(parts)) == 4
    assert add_counts(parts)[bucket_of(0.1)] == 2


def test_nothing_counted_has_no_percentile_and_the_longest_time_is_counted() -> None:
    assert percentile([], 0.5) is None
    assert percentile([0, 0], 0.5) is None
    assert percentile(_counted(10**9), 0.5) == pytest.approx(BOUNDS[-1], rel=0.5)
