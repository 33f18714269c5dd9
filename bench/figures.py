"""The result of a benchmark."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """A ratio of two measurements of the same run. `most` is the largest ratio we promise."""

    name: str
    measured: float
    against: float
    unit: str
    most: float

    @property
    def ratio(self) -> float:
        """The measured value divided by the one it is compared with."""
        return self.measured / self.against

    @property
    def is_kept(self) -> bool:
        """Whether the ratio is within the limit."""
        return self.ratio <= self.most

    def to_text(self) -> str:
        """The result on one line."""
        verdict = "kept" if self.is_kept else "NOT KEPT"
        return (
            f"{self.name}: {self.ratio:.2f}x ({self.measured:.3g} against {self.against:.3g} "
            f"{self.unit}; at most {self.most:g}x: {verdict})"
        )

    def to_json(self) -> dict[str, Any]:
        """The result with stable keys, for `--json`."""
        fields = {
            name: getattr(self, name) for name in ("name", "measured", "against", "unit", "most")
        }
        return {**fields, "ratio": round(self.ratio, 3), "is_kept": self.is_kept}
