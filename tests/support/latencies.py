"""What the neighbour's requests took, and whether that keeps the promise of abuse.py."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.neighbour import Kind

STALL = 2.0
"""Seconds beyond the promise that no request may take."""
LONGEST = 5.0
"""The same with the waits for a CPU, if they are less than half of it."""
TOLERATED = 2
"""Requests that may be too slow in a measurement of fewer than three hundred."""


ALWAYS: dict[Kind | None, float] = {"start": 1.0, "ingest": 2.0}
"""Seconds that a request may always take. A background response may meet a worker without a free
slot, which looks for it each half second (ADR 0041). A process is started for each ingest."""


def promised(idle: float, kind: Kind | None = None) -> float:
    """The longest time of a request, in seconds, that took `idle` on an idle server."""
    return max(2 * idle, idle + 0.25, ALWAYS.get(kind, 0.0))


def percentile(values: Iterable[float], share: float) -> float:
    """The value that `share` of the values do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Latency:
    """One request, in seconds."""

    kind: Kind
    measured: float
    waited: float
    """For how long of this a process that it needs waited for a CPU."""

    @property
    def seconds(self) -> float:
        return max(0.0, self.measured - self.waited)


@dataclass(slots=True)
class Latencies:
    """The requests of some time."""

    requests: list[Latency] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Requests that were not answered as they should be."""

    def percentile(self, share: float, kind: Kind | None = None) -> float:
        """The seconds that `share` of the requests of this kind, or of all, do not exceed."""
        chosen = (one for one in self.requests if kind in (None, one.kind))
        return percentile((one.seconds for one in chosen), share)

    def violations(self, idle: "Latencies", tolerated: int = TOLERATED) -> list[str]:
        """How these requests broke the promise, against those on the idle server. So many, or one
        in a hundred if that is more, may be too slow."""
        limits = {
            one.kind: promised(idle.percentile(0.99, one.kind), one.kind) for one in self.requests
        }
        over = {one: one.seconds - limits[one.kind] for one in self.requests}
        slow = [one for one in self.requests if over[one] > 0]
        stalled = [
            one
            for one in self.requests
            if over[one] > STALL
            or (one.measured > limits[one.kind] + LONGEST and one.waited < one.measured / 2)
        ]
        found = [f"the neighbour's {fault}" for fault in self.faults[:3]]
        if stalled or len(slow) > max(tolerated, len(self.requests) // 100):
            worst = max(stalled or slow, key=lambda one: over[one])
            found.append(
                f"{len(slow)} of the neighbour's {len(self.requests)} requests were too slow: a"
                f" {worst.kind} took {worst.measured:.2f} s, of which {worst.waited:.2f} s without"
                f" a CPU; promised are {limits[worst.kind]:.2f} s"
            )
        return found
