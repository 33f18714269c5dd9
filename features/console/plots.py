"""Plots as SVG: where lines, grid and labels are. Pure; the template activity.html draws them.

A plot has six series at most, which differ in colour and in their dashes. A time without a value is
a gap in the line.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

WIDTH, HEIGHT = 400, 150
LEFT, RIGHT, TOP, BOTTOM = 58, 394, 8, 126
"""The edges of the grid. Left of it the longest labels have room."""
_GRID_LINES = 4
_ROOM = 2
"""Slots at both ends without a label: it would not fit."""
_SPACE = "\u00a0"
"""Before a unit: no line ends there."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0
_TIME_STEPS = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY for days in (1, 2, 5, 10)),
)
"""Distances of grid lines from one second on, as clocks and calendars divide time."""

Values = Sequence[float | None]
Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Measure:
    """What values of a plot are."""

    text: Format
    """writes a value"""
    step: Callable[[float], float]
    """the distance of grid lines, a round number, that is not smaller than a wanted one"""


@dataclass(frozen=True, slots=True)
class Series:
    """One line."""

    name: str
    values: Values
    """one for each slot of time; None: not known"""
    is_bad: bool = False
    """what it counts is a problem"""
    is_rest: bool = False
    """it is what no other series has"""
    link: str | None = None
    """the address of what it is about"""
    point_link: Callable[[int], str] | None = None
    """the same of one slot; None: points have no links"""


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A series as it is drawn."""

    name: str
    path: str
    kind: str
    """the class of its colour"""
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """A value of one series that can be clicked."""

    x: float
    y: float
    link: str
    text: str


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of the time, which shows its values when one points at it."""

    x: float
    width: float
    text: str
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """What the template draws. Positions are in the units of the view box."""

    title: str
    summary: str
    """its newest and largest values, in words"""
    lines: list[PlotLine]
    grid: list[tuple[float, str]]
    """height and label of each line of the grid"""
    ticks: list[tuple[float, str]]
    """position and label of times"""
    slots: list[Slot]
    points: list[Point]


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The slots of time that all plots of a page share."""

    begin: datetime
    step: int
    """seconds of a slot"""
    count: int
    pattern: str
    """how a time is written, for `strftime`"""
    tick: int
    """seconds between two labels, at round times"""
    tick_pattern: str

    def label(self, at: int) -> str:
        """The time at which a slot begins, in UTC."""
        return self.time(at).strftime(self.pattern)

    def ticks(self) -> list[tuple[int, str]]:
        """The slots that have a label, and their labels."""
        begins = [(at, self.time(at)) for at in range(self.count)]
        return [
            (at, begin.strftime(self.tick_pattern))
            for at, begin in begins
            if begin.timestamp() % self.tick == 0 and _ROOM < at < self.count - _ROOM
        ]

    def time(self, at: int) -> datetime:
        """The time at which a slot begins."""
        return datetime.fromtimestamp(self.begin.timestamp() + at * self.step, UTC)


def draw(
    title: str,
    series: Sequence[Series],
    axis: TimeAxis,
    measure: "Measure",
    slot_link: Callable[[int], str] | None = None,
) -> Plot:
    """The plot of up to six series. `slot_link`: the address of what happened in a slot."""
    known = [value for each in series for value in each.values if value is not None]
    # Without data, or with zeros alone, a grid of whole numbers.
    step = _grid_step(max(known, default=0.0) or float(_GRID_LINES), measure)
    top, text = step * _GRID_LINES, measure.text
    return Plot(
        title=title,
        summary="; ".join(_summary(each, text) for each in series),
        lines=[
            PlotLine(each.name, _path(each.values, top), _kind(each, at), each.link)
            for at, each in enumerate(series, 1)
        ],
        grid=[(_y(step * at, top), text(step * at)) for at in range(_GRID_LINES + 1)],
        ticks=[(_x(at, axis.count), label) for at, label in axis.ticks()],
        slots=_slots(series, axis, text, slot_link),
        points=[point for each in series for point in _points(each, axis, top, text)],
    )


def _kind(series: Series, at: int) -> str:
    if series.is_bad:
        return "bad"
    return "rest" if series.is_rest else f"line{at}"


def compact(value: float) -> str:
    """A number with at most three digits and a unit: `12`, `3.5 k`, `20 M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{_SPACE}{unit}"
    return f"{value:.3g}"


def short_time(seconds: float) -> str:
    """A duration: `20 ms`, `1.5 s`, `5 min`, `2 h`, `3 d`."""
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1.0, "s")):
        if seconds >= size:
            return f"{seconds / size:.3g}{_SPACE}{unit}"
    return f"{1000 * seconds:.3g}{_SPACE}ms" if seconds else "0"


def _summary(series: Series, text: Format) -> str:
    known = [value for value in series.values if value is not None]
    if not known:
        return f"{series.name}: no data"
    # The last slot has no data for some seconds, until workers have written it.
    recent = [value for value in series.values[-2:] if value is not None]
    newest = text(recent[-1]) if recent else "no data"
    return f"{series.name}: last {newest}, max {text(max(known))}"


def _grid_step(largest: float, measure: Measure) -> float:
    """The distance of grid lines, so that four of them hold the largest value."""
    return measure.step(max(largest, 0.004) / _GRID_LINES * 0.999)


def round_step(wanted: float) -> float:
    """A number with one digit, or 2.5, and zeros."""
    size: float = 10.0 ** math.floor(math.log10(wanted))
    return next(each * size for each in _STEPS if each * size >= wanted)


def time_step(wanted: float) -> float:
    """A duration in seconds: 1, 2, 5, 10, 15 or 30 s or min, some hours, or days."""
    if wanted <= _TIME_STEPS[0] / 2:
        return round_step(wanted)
    return next((each for each in _TIME_STEPS if each >= wanted), None) or (
        round_step(wanted / _DAY) * _DAY
    )


NUMBERS = Measure(compact, round_step)
DURATIONS = Measure(short_time, time_step)


def _x(at: float, count: int) -> float:
    return round(LEFT + (RIGHT - LEFT) * (at + 0.5) / count, 1)


def _y(value: float, top: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * value / top, 1)


def _path(values: Values, top: float) -> str:
    """Lines between neighbours that are both known. A value without a neighbour is a dot: a line
    without length whose ends are round."""
    parts: list[str] = []
    for at, value in enumerate(values):
        if value is None:
            continue
        point = f"{_x(at, len(values))} {_y(value, top)}"
        is_first = at == 0 or values[at - 1] is None
        parts.append(f"M{point}h0" if is_first else f"L{point}")
    return "".join(parts)


def _points(series: Series, axis: TimeAxis, top: float, text: Format) -> Iterator[Point]:
    """The values above 0, if they have links."""
    link = series.point_link
    for at, value in enumerate(series.values):
        if link is not None and value:
            shown = f"{axis.label(at)}: {series.name} {text(value)}"
            yield Point(_x(at, axis.count), _y(value, top), link(at), shown)


def _slots(
    series: Sequence[Series], axis: TimeAxis, text: Format, link: Callable[[int], str] | None
) -> list[Slot]:
    width = round((RIGHT - LEFT) / axis.count, 2)
    slots = []
    for at in range(axis.count):
        known = [
            f"{each.name} {text(value)}"
            for each in series
            if (value := each.values[at]) is not None
        ]
        shown = f"{axis.label(at)}: {', '.join(known) or 'no data'}"
        address = link(at) if link is not None and known else None
        slots.append(Slot(round(LEFT + at * width, 1), width, shown, address))
    return slots
