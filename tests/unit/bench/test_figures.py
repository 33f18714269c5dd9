"""The results that `./dev bench` prints."""

import pytest

from bench.figures import BenchmarkResult, Goal, RecoveryTimes


@pytest.mark.parametrize(
    ("measured", "kept", "text"),
    [
        (6.0, True, "create: 3.00x (6 against 2 ms); at most 3: kept"),
        (6.1, False, "create: 3.05x (6.1 against 2 ms); at most 3: NOT KEPT"),
        (1.0, True, "create: 0.50x (1 against 2 ms); at most 3: kept"),
    ],
)
def test_a_ratio_above_its_limit_is_reported_as_not_kept(
    measured: float, kept: bool, text: str
) -> None:
    result = BenchmarkResult("create", measured, "ms", Goal(3), 2.0)
    assert result.is_kept is kept
    assert result.to_text() == text
    assert result.to_json()["is_kept"] is kept


@pytest.mark.parametrize(
    ("seconds", "kept", "text"),
    [
        ((1.0, 2.0, 5.0), True, "kill: p50 2.0 s, max 5.0 s of 3 (at most 3 and 6 s: kept)"),
        ((1.0, 2.0, 6.5), False, "kill: p50 2.0 s, max 6.5 s of 3 (at most 3 and 6 s: NOT KEPT)"),
        ((3.5, 3.5), False, "kill: p50 3.5 s, max 3.5 s of 2 (at most 3 and 6 s: NOT KEPT)"),
    ],
)
def test_a_recovery_above_a_limit_is_reported_as_not_kept(
    seconds: tuple[float, ...], kept: bool, text: str
) -> None:
    result = RecoveryTimes("kill", seconds, 3.0, 6.0)
    assert result.is_kept is kept
    assert result.to_text() == text
    assert result.to_json()["is_kept"] is kept


@pytest.mark.parametrize(("measured", "kept"), [(6.0, True), (5.9, False)])
def test_a_rate_below_its_limit_is_reported_as_not_kept(measured: float, kept: bool) -> None:
    result = BenchmarkResult("creates", measured, "/s", Goal(0.6, is_minimum=True), 10.0)
    assert result.is_kept is kept
    assert ("NOT KEPT" in result.to_text()) is not kept
