"""CPU time of processes, from /proc (Linux)."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds of these processes and all their descendants since their start.

    A descendant that has ended is counted once its parent has waited for it (a backend of
    PostgreSQL).
    """
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        fields = stat.rpartition(")")[2].split()
        pid = int(folder.name)
        children.setdefault(int(fields[1]), []).append(pid)
        # utime, stime, and those of waited-for children
        used[pid] = sum(map(int, fields[11:15])) / _TICKS
    waiting, counted = list(pids), set[int]()
    while waiting:
        pid = waiting.pop()
        if pid not in counted and pid in used:
            counted.add(pid)
            waiting += children.get(pid, [])
    return sum(used[pid] for pid in counted)


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
