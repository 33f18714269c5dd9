"""What a worker has ended, by model, project and upstream: counted in memory, and bounded.

Clients choose the names of models, so a part is named only if it is among the largest of its kind;
all others are counted together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass

from models.db.queries.activity import MAX_NAMES, OTHERS
from models.ended_line import EndedLine
from models.lifecycle import Status

MODEL, PROJECT, UPSTREAM = "model", "project", "upstream"
KINDS = (MODEL, PROJECT, UPSTREAM)
NO_UPSTREAM = "-"
"""The name for what no upstream has answered; no upstream is called so."""
_MAX_NAME = 200
"""Characters of a name."""
_MAX_COUNTED = 2_000
"""Names of one kind that are counted apart until they are written."""

Part = tuple[str, str]
"""A kind, and a name of it."""


@dataclass(frozen=True, slots=True)
class PartCounts:
    """What was counted of a part. `cost`: in billionths of the currency."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0

    def __add__(self, other: "PartCounts") -> "PartCounts":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return PartCounts(*(mine + its for mine, its in pairs))

    @property
    def ended(self) -> int:
        """How many have ended."""
        return self.completed + self.failed

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

    def __init__(self, counts: Mapping[Part, PartCounts] | None = None) -> None:
        self._counts: dict[Part, PartCounts] = dict(counts or {})

    def add(self, line: EndedLine) -> None:
        """Counts a response that has ended."""
        counts = PartCounts.of(line)
        names = {
            MODEL: line.model[:_MAX_NAME],
            PROJECT: OTHERS if line.project is None else str(line.project),
            UPSTREAM: line.upstream or NO_UPSTREAM,
        }
        for part in names.items():
            self._add(part, counts)

    def merged(self, other: "CountsByPart") -> "CountsByPart":
        """Both together."""
        merged = CountsByPart(self._counts)
        for part, counts in other._counts.items():  # noqa: SLF001  (of the same class)
            merged._add(part, counts)
        return merged

    def largest(self) -> list[dict[str, object]]:
        """The largest parts of each kind, and all others together, as ADD_ACTIVITY takes them."""
        shown: dict[Part, PartCounts] = {}
        for kind in KINDS:
            names = [name for each, name in self._counts if each == kind and name != OTHERS]
            names.sort(key=lambda name: (-self._counts[kind, name].ended, name))
            kept = frozenset(names[:MAX_NAMES])
            for name in (*names, OTHERS):
                part = (kind, name if name in kept else OTHERS)
                counts = self._counts.get((kind, name), PartCounts())
                shown[part] = shown.get(part, PartCounts()) + counts
        return list(_rows(shown.items()))

    def _add(self, part: Part, counts: PartCounts) -> None:
        if part not in self._counts and len(self._counts) >= len(KINDS) * _MAX_COUNTED:
            part = (part[0], OTHERS)
        self._counts[part] = self._counts.get(part, PartCounts()) + counts


def _rows(parts: Iterable[tuple[Part, PartCounts]]) -> Iterable[dict[str, object]]:
    for (kind, name), counts in parts:
        if counts != PartCounts():
            yield {
                "kind": kind,
                "name": name,
                "completed": counts.completed,
                "failed": counts.failed,
                "input_tokens": counts.input_tokens,
                "output_tokens": counts.output_tokens,
                "cost": counts.cost,
            }
