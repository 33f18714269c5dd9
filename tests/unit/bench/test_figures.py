"""The results that `./dev bench` prints."""

import pytest

from bench.figures import BenchmarkResult


@pytest.mark.parametrize(
    ("measured", "ratio", "kept", "verdict"),
    [(6.0, 3.0, True, "kept"), (6.1, 3.05, False, "NOT KEPT"), (1.0, 0.5, True, "kept")],
)
def test_a_ratio_above_its_limit_is_reported_as_not_kept(
    measured: float, ratio: float, kept: bool, verdict: str
) -> None:
    result = BenchmarkResult("create", measured, 2.0, "ms at turn 2", 3.0)
    assert result.ratio == pytest.approx(ratio)
    assert result.is_kept is kept
    assert (
        result.to_text()
        == f"create: {ratio:.2f}x ({measured:.3g} against 2 ms at turn 2; at most 3x: {verdict})"
    )
    assert result.to_json()["is_kept"] is kept
