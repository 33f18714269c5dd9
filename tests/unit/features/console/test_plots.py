"""The plots of the console: what their lines and labels say."""

import re
from datetime import UTC, datetime, timedelta

from features.console.activity import Moment, moments_of, plots_of
from features.console.plots import (
    DURATIONS,
    HEIGHT,
    LEFT,
    NUMBERS,
    WIDTH,
    Series,
    TimeAxis,
    compact,
    draw,
    short_time,
)
from models.db.queries.activity import ActivityRow

_BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _axis(count: int, step: int = 60) -> TimeAxis:
    return TimeAxis(_BEGIN, step, count, "%H:%M", 600, "%H:%M")


def test_a_time_without_a_value_is_a_gap_and_a_single_value_is_a_dot() -> None:
    values = [1.0, 2.0, None, 3.0, None]
    plot = draw("Running", [Series("running", values)], _axis(5), NUMBERS)
    [line] = plot.lines
    assert line.path.count("M") == 2
    assert line.path.count("L") == 1
    assert plot.summary == "running: last 3, max 3"
    assert [slot.text for slot in plot.slots][2:4] == ["12:02: no data", "12:03: running 3"]


def test_round_times_have_labels() -> None:
    axis = TimeAxis(_BEGIN.replace(minute=3), 60, 60, "%H:%M", 600, "%H:%M")
    assert [label for _, label in axis.ticks()] == [
        "12:10",
        "12:20",
        "12:30",
        "12:40",
        "12:50",
        "13:00",
    ]
    assert [axis.label(at) for at, _ in axis.ticks()] == [label for _, label in axis.ticks()]


def test_everything_is_drawn_within_the_picture() -> None:
    for largest in (0.0, 0.0003, 1.0, 7.3, 99.0, 1001.0, 5e8):
        series = [Series("a", [0.0, largest / 3, largest]), Series("b", [None, None, None])]
        plot = draw("Any", series, _axis(3), NUMBERS)
        for x, y in re.findall(r"([\d.]+) ([\d.]+)", plot.lines[0].path):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT
        heights = [height for height, _ in plot.grid]
        assert heights == sorted(heights, reverse=True)
        assert plot.lines[1].path == ""


def test_without_data_the_grid_has_whole_numbers() -> None:
    for values in ([None], [0.0]):
        plot = draw("Any", [Series("a", values)], _axis(1), NUMBERS)
        assert [text for _, text in plot.grid] == ["0", "1", "2", "3", "4"]


def test_values_have_units() -> None:
    numbers = " ".join(compact(each) for each in (0, 0.25, 12, 3500, 2e7))
    assert numbers.replace("\u00a0", "_") == "0 0.25 12 3.5_k 20_M"
    times = " ".join(short_time(each) for each in (0, 0.02, 1.5, 300, 7200, 3e5))
    assert times.replace("\u00a0", "_") == "0 20_ms 1.5_s 5_min 2_h 3.47_d"


def _labels(largest: float) -> list[str]:
    plot = draw("Any", [Series("a", [largest])], _axis(1), DURATIONS)
    return [label.replace("\u00a0", " ") for _, label in plot.grid]


def test_durations_have_steps_of_a_clock() -> None:
    assert _labels(799) == ["0", "5 min", "10 min", "15 min", "20 min"]
    assert _labels(3.3) == ["0", "1 s", "2 s", "3 s", "4 s"]
    assert _labels(41) == ["0", "15 s", "30 s", "45 s", "1 min"]
    assert _labels(3 * 3600) == ["0", "1 h", "2 h", "3 h", "4 h"]
    assert _labels(0.3) == ["0", "100 ms", "200 ms", "300 ms", "400 ms"]
    assert _labels(28 * 3600) == ["0", "12 h", "1 d", "1.5 d", "2 d"]


def test_no_label_is_wider_than_its_room() -> None:
    widest = 6.2
    """of a character of 11 pixels, about"""
    for measure in (NUMBERS, DURATIONS):
        for exponent in range(-30, 70):
            largest = 10 ** (exponent / 10)
            plot = draw("Any", [Series("a", [largest])], _axis(1), measure)
            assert max(len(label) for _, label in plot.grid) * widest <= LEFT - 5, plot.grid
            assert plot.grid[-1][0] <= plot.grid[0][0]


def test_points_and_slots_lead_to_what_they_show() -> None:
    named = Series("a", [0.0, 2.0, None], link="/all", point_link=lambda at: f"/a/{at}")
    rest = Series("others", [1.0, 1.0, 1.0], is_rest=True)
    plot = draw("Any", [named, rest], _axis(3), NUMBERS, lambda at: f"/{at}")
    assert [(point.link, point.text) for point in plot.points] == [("/a/1", "12:01: a 2")]
    assert [slot.link for slot in plot.slots] == ["/0", "/1", "/2"]
    assert [(line.kind, line.link) for line in plot.lines] == [("line1", "/all"), ("rest", None)]


def _row(minute: int, **values: object) -> ActivityRow:
    counted: dict[str, object] = {
        "waiting": None,
        "oldest_seconds": None,
        "running": None,
        "completed": 0,
        "failed": 0,
        "input_tokens": 0,
        "output_tokens": 0,
        "cost": 0,
        "first_token_counts": [],
        "total_counts": [],
    }
    return ActivityRow(_BEGIN + timedelta(minutes=minute), **counted | values)  # type: ignore[arg-type]


def test_an_hour_of_the_week_sums_up_its_ten_minutes() -> None:
    rows = [
        _row(0, completed=30, waiting=4, total_counts=[0, 5]),
        _row(50, completed=90, waiting=9, oldest_seconds=2.5, total_counts=[0, 5, 10]),
        _row(130, failed=60),
        _row(400, completed=1),
    ]
    first, second, third = moments_of(rows, _axis(3, step=3600))
    assert (first.completed, first.waiting, first.oldest_seconds) == (2.0, 9, 2.5)
    assert first.total[0] is not None
    assert second == Moment()
    assert (third.failed, third.waiting) == (1.0, None)
    assert len(plots_of([first, second, third], _axis(3, step=3600))) == 7
