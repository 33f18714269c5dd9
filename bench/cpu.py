"""CPU time and memory of processes (Linux)."""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """A process and all processes below it that run now."""
    found, waiting = list[int](), [pid]
    while waiting:
        found.append(waiting.pop())
        try:
            children = Path(f"/proc/{found[-1]}/task/{found[-1]}/children").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        waiting += map(int, children.split())
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds of these processes and all their descendants since their start.

    A descendant that has ended is counted once its parent has waited for it (a backend of
    PostgreSQL).
    """
    return sum(_own_seconds(process) for pid in pids for process in descendants(pid))


def _own_seconds(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended; 0 if it has ended itself."""
    clock = (~pid << 3) | 2  # clock_getcpuclockid(3): nanoseconds, `stat` counts hundredths
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(clock) + (int(fields[13]) + int(fields[14])) / _TICKS
    except OSError:
        return 0.0


class CpuMeter:
    """CPU time of named groups of processes, since the meter was made."""

    def __init__(self, groups: Mapping[str, Iterable[int]]) -> None:
        self._groups = {name: list(pids) for name, pids in groups.items()}
        self._start = self._read()

    def _read(self) -> dict[str, float]:
        return {name: cpu_seconds(pids) for name, pids in self._groups.items()}

    def used(self) -> dict[str, float]:
        """CPU seconds by group."""
        return {name: seconds - self._start[name] for name, seconds in self._read().items()}


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def proportional_bytes(pid: int) -> int:
    """The resident memory of a process; of what it shares with n processes, an nth part.

    0 if it has ended.
    """
    return _smaps_bytes(pid, "Pss:")


def private_bytes(pid: int) -> int:
    """The anonymous memory of a process: heap and stacks; 0 if it has ended.

    Files are not in it, because their share depends on which other processes use them. Of pages
    that n processes share since a fork, an nth part counts.
    """
    return _smaps_bytes(pid, "Pss_Anon:")


def _smaps_bytes(pid: int, name: str) -> int:
    """One line of /proc/PID/smaps_rollup; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
