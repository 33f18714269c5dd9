"""The results of benchmarks."""

import statistics
from dataclasses import dataclass
from typing import Any, Protocol


class Result(Protocol):
    """One measurement, and whether it is within its limits."""

    @property
    def is_kept(self) -> bool: ...

    def to_text(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure must reach: at most `limit`, or at least."""

    limit: float
    is_minimum: bool = False

    def is_met(self, figure: float) -> bool:
        """Whether the figure reaches the goal."""
        return figure >= self.limit if self.is_minimum else figure <= self.limit

    def to_text(self) -> str:
        """The goal as in `at most 3`."""
        return f"at {'least' if self.is_minimum else 'most'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """A measurement and its goal.

    With `against` the figure is the ratio of the two, both of the same run: that depends little on
    the machine. Without it the figure is the measurement itself.
    """

    name: str
    measured: float
    unit: str
    goal: Goal | None = None
    against: float | None = None
    details: str = ""
    """Figures that explain this one, for the reader."""

    @property
    def figure(self) -> float:
        """What the goal is about."""
        return self.measured if self.against is None else self.measured / self.against

    @property
    def is_kept(self) -> bool:
        """Whether the goal is met; true without a goal."""
        return self.goal is None or self.goal.is_met(self.figure)

    def to_text(self) -> str:
        """The result on one line."""
        if self.against is None:
            parts = [f"{self.name}: {self.measured:.3g} {self.unit}"]
        else:
            comparison = f"{self.measured:.3g} against {self.against:.3g} {self.unit}"
            parts = [f"{self.name}: {self.figure:.2f}x ({comparison})"]
        if self.goal is not None:
            parts.append(f"{self.goal.to_text()}: {'kept' if self.is_kept else 'NOT KEPT'}")
        if self.details:
            parts.append(self.details)
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """The result with stable keys, for `--json` and the baseline."""
        goal = None if self.goal is None else self.goal.to_text()
        return {
            "name": self.name,
            "figure": round(self.figure, 4),
            "measured": round(self.measured, 4),
            "against": None if self.against is None else round(self.against, 4),
            "unit": self.unit,
            "goal": goal,
            "is_kept": self.is_kept,
            "details": self.details,
        }


@dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """Seconds of several recoveries, and the largest median and maximum that we promise."""

    name: str
    seconds: tuple[float, ...]
    most_p50: float
    most: float

    @property
    def p50(self) -> float:
        """The median."""
        return statistics.median(self.seconds)

    @property
    def is_kept(self) -> bool:
        """Whether median and maximum are within their limits."""
        return self.p50 <= self.most_p50 and max(self.seconds) <= self.most

    def to_text(self) -> str:
        """The result on one line."""
        verdict = "kept" if self.is_kept else "NOT KEPT"
        return (
            f"{self.name}: p50 {self.p50:.1f} s, max {max(self.seconds):.1f} s of "
            f"{len(self.seconds)} (at most {self.most_p50:g} and {self.most:g} s: {verdict})"
        )

    def to_json(self) -> dict[str, Any]:
        """The result with stable keys, for `--json`."""
        return {
            "name": self.name,
            "p50": round(self.p50, 3),
            "max": round(max(self.seconds), 3),
            "count": len(self.seconds),
            "most_p50": self.most_p50,
            "most": self.most,
            "is_kept": self.is_kept,
        }
