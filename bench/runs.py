"""Several runs of the benchmarks: which of them the machine has disturbed, and the range of each
row over all runs."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cpu import cpu_seconds
from bench.figures import Row, number_text

MAX_OTHER_WORK = 0.1
"""The share of the CPUs that other processes, or other virtual machines, may take while rows with
goals are measured. With more of it goals are missed that a quiet machine meets."""
_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
"""The fields of `cpu` in /proc/stat, from 0, that are no work: idle, and waiting for the disk."""


class OtherWork:
    """What share of the CPUs processes take that are not of this benchmark, since it was made."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._start = self._seconds()

    def share(self) -> float:
        """From 0 to 1."""
        all_seconds = (time.monotonic() - self._started_at) * (os.cpu_count() or 1)
        return max(0.0, self._seconds() - self._start) / all_seconds

    def _seconds(self) -> float:
        """CPU seconds of all others since the start of the machine."""
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        busy = sum(int(ticks) for place, ticks in enumerate(fields) if place not in _IDLE)
        return busy / _TICKS - cpu_seconds([os.getpid()])


@dataclass(frozen=True, slots=True)
class Measured:
    """The rows of one benchmark in one run."""

    name: str
    rows: Sequence[Row]
    other_work: float

    @property
    def is_disturbed(self) -> bool:
        """Whether a goal that was missed may be the machine's fault."""
        return self.other_work > MAX_OTHER_WORK

    def to_text(self) -> str:
        """Of how the machine was meanwhile."""
        text = f"{self.name}: other processes took {self.other_work:.0%} of the CPUs"
        return f"{text}: too much to judge it" if self.is_disturbed else text


def missed_goals(measured: Iterable[Measured]) -> int:
    """How many goals were missed by benchmarks that were not disturbed."""
    return sum(not row.is_met for each in measured if not each.is_disturbed for row in each.rows)


def ranges(measured: Sequence[Measured]) -> str:
    """A line for each row: the least and the largest figure of the runs that were not disturbed,
    and how many of these missed the goal."""
    rows: dict[str, list[Row]] = {}
    for each in measured:
        for row in each.rows:
            found = rows.setdefault(row.name, [])
            if not each.is_disturbed:
                found.append(row)
    return "\n".join(_range(name, found) for name, found in rows.items())


def _range(name: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"{name:58} not judged"
    values = _least_and_most([row.value for row in rows])
    found = [row.ratio for row in rows if row.ratio is not None]
    ratios = f"{_least_and_most(found)} x" if found else ""
    goal = rows[0].goal
    verdict = ""
    if goal is not None:
        missed = sum(not row.is_met for row in rows)
        verdict = f"{goal.to_text()} missed in {missed} of {len(rows)}"
    return f"{name:58} {values + ' ' + rows[0].unit:>24} {ratios:>16}  {verdict}".rstrip()


def _least_and_most(figures: Sequence[float]) -> str:
    return f"{number_text(min(figures))}-{number_text(max(figures))}"
