"""The rows that `./dev bench` prints, and the baseline that they are compared with."""

from pathlib import Path

import pytest

from bench import baseline
from bench.figures import Goal, PastRow, Row, to_text

RATIO = Goal(3, of_ratio=True)


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row("create", 6.0, "ms", RATIO, 2.0), True),
        (Row("create", 6.1, "ms", RATIO, 2.0), False),
        (Row("create", 2.0, "ms", RATIO), False),
        (Row("CPU", 6.1, "ms", Goal(7), 2.0), True),
        (Row("CPU", 7.1, "ms", Goal(7), 20.0), False),
        (Row("rate", 6.0, "/s", Goal(0.6, is_minimum=True, of_ratio=True), 10.0), True),
        (Row("rate", 5.9, "/s", Goal(0.6, is_minimum=True, of_ratio=True), 10.0), False),
        (Row("stored", 1e9, "KiB"), True),
    ],
)
def test_a_missed_goal_is_reported(row: Row, met: bool) -> None:
    assert row.is_met is met
    assert row.to_json()["is_met"] is met
    assert ("MISSED" in to_text(row, None)) is not met


def test_only_a_ratio_is_compared_with_the_last_release() -> None:
    last = PastRow("create", 8.0, "ms", 4.0)
    assert to_text(Row("create", 6.0, "ms", RATIO, 2.0), last).endswith("8 ms, 4.00x (-25 %)")
    assert to_text(Row("create", 6.0, "ms"), last).endswith("8 ms")


def test_a_baseline_that_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    assert baseline.read(path) is None
    rows = [Row("create", 6.0, "ms", RATIO, 2.0), Row("stored", 7.5, "KiB")]
    machine = baseline.this_machine()
    baseline.write(rows, machine, "./dev bench", path)
    last = baseline.read(path)
    assert last is not None
    assert last.machine == machine
    assert last.command == "./dev bench"
    assert last.rows == (
        PastRow("create", 6.0, "ms", 3.0),
        PastRow("stored", 7.5, "KiB", None),
    )
