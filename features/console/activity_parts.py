"""What a worker has ended, by model, project and upstream: counted in memory, and bounded.

Clients choose the names of models, so a part is named only if it is among the largest of its kind;
all others are counted together.
"""

from dataclasses import asdict, dataclass

from models.db.queries.activity import MAX_NAMES, OTHERS
from models.ended_line import EndedLine
from models.lifecycle import Status

MODEL, PROJECT, UPSTREAM = "model", "project", "upstream"
KINDS = (MODEL, PROJECT, UPSTREAM)
NO_UPSTREAM = "-"
"""The name for what no upstream has answered; no upstream is called so."""
_MAX_NAME = 200
"""Characters of a name."""
_MAX_COUNTED = 5_000
"""Names that are counted apart until they are written."""

Part = tuple[str, str]
"""A kind, and a name of it."""


@dataclass(slots=True)
class PartCounts:
    """What was counted of a part. `cost`: in billionths of the currency."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0

    @property
    def ended(self) -> int:
        """How many have ended."""
        return self.completed + self.failed

    def add(self, other: "PartCounts") -> None:
        """Adds what was counted elsewhere."""
        self.completed += other.completed
        self.failed += other.failed
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cost += other.cost

    @classmethod
    def of(cls, line: EndedLine) -> "PartCounts":
        """Of one response that has ended. A cancelled one counts with its tokens and its cost."""
        usage = line.usage or {}
        is_failed, is_cancelled = line.status is Status.FAILED, line.status is Status.CANCELLED
        return cls(
            int(not is_failed and not is_cancelled),
            int(is_failed),
            usage.get("input_tokens") or 0,
            usage.get("output_tokens") or 0,
            line.cost or 0,
        )


class CountsByPart:
    """The counts of one process since they were written last."""

    def __init__(self) -> None:
        self._counts: dict[Part, PartCounts] = {}

    def add(self, line: EndedLine) -> None:
        """Counts a response that has ended."""
        counts = PartCounts.of(line)
        self._add((MODEL, line.model[:_MAX_NAME]), counts)
        self._add((PROJECT, OTHERS if line.project is None else str(line.project)), counts)
        self._add((UPSTREAM, line.upstream or NO_UPSTREAM), counts)

    def add_all(self, other: "CountsByPart") -> None:
        """Adds what was counted elsewhere."""
        for part, counts in other._counts.items():  # noqa: SLF001  (of the same class)
            self._add(part, counts)

    def largest(self) -> list[dict[str, object]]:
        """The largest parts of each kind, and all others together, as ADD_ACTIVITY takes them."""
        kept = {(kind, name) for kind in KINDS for name in self._largest_names(kind)}
        shown: dict[Part, PartCounts] = {}
        for part, counts in self._counts.items():
            named = part if part in kept else (part[0], OTHERS)
            shown.setdefault(named, PartCounts()).add(counts)
        return [
            {"kind": kind, "name": name, **asdict(counts)} for (kind, name), counts in shown.items()
        ]

    def _largest_names(self, kind: str) -> list[str]:
        names = [name for each, name in self._counts if each == kind and name != OTHERS]
        return sorted(names, key=lambda name: (-self._counts[kind, name].ended, name))[:MAX_NAMES]

    def _add(self, part: Part, counts: PartCounts) -> None:
        if part not in self._counts and len(self._counts) >= _MAX_COUNTED:
            part = (part[0], OTHERS)
        self._counts.setdefault(part, PartCounts()).add(counts)
