"""What a benchmark has found."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """A ratio: what was measured over what it is measured against. `most`: what design §12 promises."""

    name: str
    measured: float
    against: float
    unit: str
    most: float

    @property
    def ratio(self) -> float:
        """How many times as much."""
        return self.measured / self.against

    @property
    def is_kept(self) -> bool:
        """Whether the promise is."""
        return self.ratio <= self.most

    def to_text(self) -> str:
        """One line."""
        verdict = "kept" if self.is_kept else "NOT KEPT"
        return f"{self.name}: {self.ratio:.2f}x ({self.measured:.3g} against {self.against:.3g} {self.unit}; at most {self.most:g}x: {verdict})"

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        fields = {
            name: getattr(self, name) for name in ("name", "measured", "against", "unit", "most")
        }
        return {**fields, "ratio": round(self.ratio, 3), "is_kept": self.is_kept}
