"""How fast a line moves, by looks at it."""

from collections.abc import Sequence

import pytest

from models.load.line_pace import LinePace


def _pace(looks: Sequence[tuple[float, range]], *, is_whole: bool = True) -> LinePace:
    """Looks at a line: a time, and the places in it."""
    pace = LinePace()
    for at, places in looks:
        pace.look([float(place) for place in places], at, is_whole=is_whole)
    return pace


def test_one_look_shows_no_pace() -> None:
    assert _pace([]).seconds_for(1) is None
    assert _pace([(0, range(50))]).seconds_for(1) is None


def test_what_has_left_the_line_is_its_pace() -> None:
    pace = _pace([(0, range(50)), (2, range(4, 50)), (4, range(8, 50))])
    assert pace.seconds_for(10) == pytest.approx(5)


def test_what_joins_the_line_does_not_count() -> None:
    pace = _pace([(0, range(50)), (2, range(4, 90)), (4, range(8, 200))])
    assert pace.seconds_for(10) == pytest.approx(5)


def test_only_the_first_of_a_long_line_are_seen() -> None:
    """Each look has a thousand, of which the last ones were behind the look before."""
    pace = _pace([(0, range(1000)), (1, range(6, 1006)), (2, range(12, 1012))], is_whole=False)
    assert pace.seconds_for(60) == pytest.approx(10)
    # A released response goes to the front, and pushes the last one out of the look.
    pace.look([-1.0, *map(float, range(12, 1011))], 3, is_whole=False)
    assert pace.seconds_for(60) == pytest.approx(15)


@pytest.mark.parametrize(
    "looks",
    [
        [(0, range(50)), (30, range(50))],
        [(0, range(50)), (30, range(2, 50))],
        [(0, range(50)), (0.5, range(20, 50))],
        [(0, range(50)), (300, range(20, 50))],
    ],
    ids=["it stands", "few have left", "too soon", "nobody has looked for long"],
)
def test_what_shows_no_pace(looks: list[tuple[float, range]]) -> None:
    assert _pace(looks).seconds_for(5) is None


def test_a_change_of_the_pace_shows() -> None:
    slow = [(60 * n, range(n, 500)) for n in range(20)]
    assert _pace(slow).seconds_for(1) == pytest.approx(60)
    fast = [(60 * 20 + n, range(20 + 10 * n, 500)) for n in range(8)]
    assert _pace([*slow, *fast]).seconds_for(1) == pytest.approx(0.1)
