"""The values of a campaign, added up over its rounds: as a table, and as JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.audit.measures import Measures
from tests.chaos.campaign.figures import RoundFigures

_SUMS = (
    *("responses", "injected", "tool_calls", "repeated", "unknown"),
    *("double_faults", "double_violations", "seconds", "starved"),
)
"""Figures that are added up."""


@dataclass(slots=True)
class CampaignTotals:
    """The sums of all rounds so far."""

    rounds: int = 0
    responses: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    objects: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    upstream_faults: Counter[str] = field(default_factory=Counter)
    injected: int = 0
    violations: list[str] = field(default_factory=list)
    tool_calls: int = 0
    repeated: int = 0
    unknown: int = 0
    double_faults: int = 0
    double_violations: int = 0
    measures: Measures = field(default_factory=Measures)
    seconds: float = 0.0
    starved: float = 0.0

    def add(self, figures: RoundFigures) -> None:
        """Adds one more round."""
        self.rounds += 1
        self.violations += [f"seed {figures.seed}: {violation}" for violation in figures.violations]
        self.measures.add(Measures(**figures.measures))
        for name in ("kinds", "objects", "faults", "upstream_faults"):
            getattr(self, name).update(getattr(figures, name))
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(figures, name))

    def rows(self) -> list[tuple[str, str]]:
        """The rows of the table: name and value."""
        measures = self.measures
        faults = ", ".join(
            f"{name} {count}"
            for name, count in sorted((self.faults + self.upstream_faults).items())
        )
        return [
            ("rounds", str(self.rounds)),
            ("responses accepted", str(self.responses)),
            (
                "of these",
                ", ".join(f"{name} {count}" for name, count in sorted(self.kinds.items())),
            ),
            (
                "beside them",
                ", ".join(f"{name} {count}" for name, count in sorted(self.objects.items())),
            ),
            (
                "faults",
                f"{sum(self.faults.values()) + sum(self.upstream_faults.values())}: {faults}",
            ),
            ("statements whose request or reply was lost", str(self.injected)),
            ("violations", str(len(self.violations))),
            (
                "calls of tools, repeated after a crash, of unknown outcome",
                f"{self.tool_calls}, {self.repeated}, {self.unknown}",
            ),
            (
                "double faults (a stated limit; I4 is not checked)",
                f"{self.double_faults} responses, {self.double_violations} violations",
            ),
            ("recovery after kill -9, p50 / p99 / max", _percentiles(measures.recovery)),
            (
                "the same after a freeze, or with another fault near",
                _percentiles(measures.recovery_by_lease),
            ),
            (
                "the same with PostgreSQL down too, no worker without faults, or too little CPU",
                _percentiles(measures.recovery_in_trouble),
            ),
            (
                "kill -9 of a web process to the end of its foreground responses",
                _percentiles(measures.abandoned),
            ),
            ("running again after SIGTERM, p50 / p99 / max", _percentiles(measures.hand_over)),
            (
                "cancel to upstream socket closed, no fault near, p50 / p99 / max",
                _percentiles(measures.cancel),
            ),
            (
                "cancel to upstream socket closed, faults near, p50 / p99 / max",
                _percentiles(measures.cancel_in_trouble),
            ),
            ("longest gap of a reader, p50 / p99 / max", _percentiles(measures.gap)),
            ("create to first upstream request, p50 / p99 / max", _percentiles(measures.wait)),
            ("time", f"{self.seconds / 60:.1f} min"),
            (
                "of this with too little CPU (no limit of time is checked)",
                f"{self.starved / 60:.1f} min",
            ),
        ]

    def to_markdown(self) -> str:
        """The table for docs/chaos.md."""
        return "\n".join(
            ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in self.rows())]
        )

    def to_json(self) -> dict[str, Any]:
        """The raw values; times in seconds."""
        return {
            "rounds": self.rounds,
            "responses": self.responses,
            "kinds": dict(self.kinds),
            "objects": dict(self.objects),
            "faults": dict(self.faults),
            "upstream_faults": dict(self.upstream_faults),
            "injected": self.injected,
            "violations": self.violations,
            "tool_calls": self.tool_calls,
            "tool_calls_repeated": self.repeated,
            "tool_calls_unknown": self.unknown,
            "double_fault_responses": self.double_faults,
            "double_fault_violations": self.double_violations,
            "seconds": round(self.seconds, 1),
            "starved": round(self.starved, 1),
            **{
                name: [round(duration, 4) for duration in sorted(getattr(self.measures, name))]
                for name in Measures.__slots__
            },
        }


def _percentiles(values: Sequence[float]) -> str:
    """`p50 / p99 / max (number of values)`."""
    if not values:
        return "–"
    ordered = sorted(values)
    p50, p99 = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
    return " / ".join(_time(value) for value in (p50, p99, ordered[-1])) + f" ({len(ordered)})"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
