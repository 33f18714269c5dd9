"""The rows that benchmarks produce, and the lines that are printed for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

RAW_CHAIN = "raw chain"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a row must reach: at most `limit`, or at least."""

    limit: float
    is_minimum: bool = False
    of_ratio: bool = False
    """The limit is for the ratio of the row, not for its value."""

    def is_met(self, figure: float) -> bool:
        """Whether the figure reaches the goal."""
        return figure >= self.limit if self.is_minimum else figure <= self.limit

    def to_text(self) -> str:
        """The goal as in `<= 3x`."""
        unit = "x" if self.of_ratio else ""
        return f"{'>=' if self.is_minimum else '<='} {self.limit:g}{unit}"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of the product, and what it is compared with.

    `floor` is the same measurement of the raw chain, or of what `floor_name` names, in the same
    run. The ratio of the two depends little on the machine.
    """

    name: str
    """Contains the size of the load, so that rows with equal names can be compared."""
    value: float
    unit: str
    goal: Goal | None = None
    floor: float | None = None
    floor_name: str = RAW_CHAIN
    details: str = ""
    """Figures that explain this one, for the reader."""

    @property
    def ratio(self) -> float | None:
        """The value divided by the floor; None without a floor."""
        return self.value / self.floor if self.floor else None

    @property
    def is_met(self) -> bool:
        """Whether the goal is met; true without a goal.

        A goal for the ratio is missed if there is no ratio.
        """
        if self.goal is None:
            return True
        figure = self.ratio if self.goal.of_ratio else self.value
        return figure is not None and self.goal.is_met(figure)

    def to_json(self) -> dict[str, Any]:
        """The row with stable keys, for `--json` and the baseline."""
        return {
            "name": self.name,
            "value": _rounded(self.value),
            "unit": self.unit,
            "floor": _rounded(self.floor),
            "floor_name": self.floor_name if self.floor is not None else None,
            "ratio": _rounded(self.ratio),
            "goal": None if self.goal is None else self.goal.to_text(),
            "is_met": self.is_met,
            "details": self.details,
        }


@dataclass(frozen=True, slots=True)
class PastRow:
    """A row of the last release, as the baseline stores it."""

    name: str
    value: float
    unit: str
    ratio: float | None

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Raises KeyError if the row is not one that `Row.to_json` has made."""
        return cls(row["name"], row["value"], row["unit"], row["ratio"])


HEADING = f"{'':58} {'value':>12} {'floor':>10} {'ratio':>8}  {'goal':>8}         {'last release'}"


def to_text(row: Row, last: PastRow | None) -> str:
    """The row as one line below HEADING, and a second line with its details."""
    floor = "" if row.floor is None else number_text(row.floor)
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
    goal = "" if row.goal is None else row.goal.to_text()
    verdict = "" if row.goal is None else "met" if row.is_met else "MISSED"
    value = f"{number_text(row.value)} {row.unit}"
    line = f"{row.name:58} {value:>12} {floor:>10} {ratio:>8}  {goal:>8} {verdict:6}  "
    details = row.details
    if row.floor is not None and row.floor_name != RAW_CHAIN:
        details = f"floor: {row.floor_name}" + (f"; {details}" if details else "")
    second = f"\n    {details}" if details else ""
    return (line + _last_release(row, last)).rstrip() + second


def _last_release(row: Row, last: PastRow | None) -> str:
    """The value of the last release; for a ratio also by how much it has changed.

    A value alone depends on the machine, so its change would say nothing.
    """
    if last is None:
        return ""
    if row.ratio is None or not last.ratio:
        return f"{number_text(last.value)} {last.unit}"
    change = (row.ratio / last.ratio - 1) * 100
    return f"{number_text(last.value)} {last.unit}, {last.ratio:.2f}x ({change:+.0f} %)"


def number_text(value: float) -> str:
    """Three digits, or all digits before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
