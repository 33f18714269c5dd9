"""A memory limit for processes of a test that acts as Compose's does: who exceeds it is killed.

Compose's limit is the `memory.max` of a cgroup: the kernel kills the largest process of a container
whose resident memory exceeds it. A cgroup needs rights that neither CI nor a developer's machine
gives. RLIMIT_AS and RLIMIT_DATA need none, but they limit reserved addresses (each thread's stack,
each arena), and the process is not killed: an allocation fails somewhere inside it, and it may
survive what kills it in production. So a thread here samples the peak of the resident memory, and
sends SIGKILL. The kernel counts that peak exactly (`VmHWM`, set back by `/proc/<pid>/clear_refs`):
none is missed, however short; a process may be over its limit for the time of one sample.

What a cgroup also counts and this does not: the page cache, which is freed under pressure, and the
kernel's buffers of sockets.
"""

import contextlib
import os
import signal
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_INTERVAL = 0.03
"""Seconds between two samples."""
_CHILDREN_INTERVAL = 10
"""Samples between two looks for the children of a process."""

MIB = 1024 * 1024


@dataclass(slots=True)
class WatchedProcess:
    """A process, its children, and what was measured of them."""

    name: str
    pid: int
    limit: int | None
    """Bytes of the process and its children together; None: no limit."""
    works_in: Literal["first thread", "threads", "children"] = "first thread"
    """Where it does what requests wait for."""
    at: list[float] = field(default_factory=list)
    """The moment of each sample (`time.monotonic()`)."""
    peaks: list[int] = field(default_factory=list)
    """The largest resident memory since the sample before, in bytes."""
    waits: list[float] = field(default_factory=list)
    """Seconds that it has waited for a CPU so far: its first thread; or of each interval those of
    the thread, or of the child, that waited longest."""
    killed_at: int | None = None
    """The bytes with which it exceeded its limit."""
    children: list[int] = field(default_factory=list)
    thread_waits: dict[Path, int] = field(default_factory=dict)

    def peak_between(self, start: float, end: float) -> int:
        """The largest resident memory between two moments, in bytes; 0 without a sample."""
        first, last = bisect_left(self.at, start), bisect_right(self.at, end)
        return max(self.peaks[first : last + 1], default=0)

    def waited_between(self, start: float, end: float) -> float:
        """The seconds between two moments in which it waited for a CPU."""
        if not self.at:
            return 0.0
        first = max(bisect_right(self.at, start) - 1, 0)
        last = min(bisect_left(self.at, end), len(self.at) - 1)
        return self.waits[last] - self.waits[first]


class MemoryLimit:
    """The thread that samples processes and kills those that exceed their limit."""

    def __init__(self) -> None:
        self.processes: list[WatchedProcess] = []
        """All that were ever watched."""
        self._running: list[WatchedProcess] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory limit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended."""
        self._stopping.set()
        self._thread.join()

    def watch(self, process: WatchedProcess) -> WatchedProcess:
        """Watches a process until it ends."""
        self.processes.append(process)
        self._running.append(process)
        return process

    def _run(self) -> None:
        count = 0
        while not self._stopping.wait(_INTERVAL):
            for process in list(self._running):
                try:
                    self._sample(process, look_for_children=count % _CHILDREN_INTERVAL == 0)
                except OSError:  # it has ended
                    self._running.remove(process)
            count += 1

    def _sample(self, process: WatchedProcess, *, look_for_children: bool) -> None:
        if look_for_children:
            process.children = _children(process.pid)
        sizes = {process.pid: _take_peak(process.pid)}
        for child in process.children if process.limit is not None else ():
            with contextlib.suppress(OSError):
                sizes[child] = _take_peak(child)
        size = sum(sizes.values())
        waited = _longest_wait(process)
        process.peaks.append(size)
        process.waits.append((process.waits[-1] if process.waits else 0.0) + waited)
        process.at.append(time.monotonic())
        if process.limit is not None and size > process.limit:
            os.kill(max(sizes, key=lambda pid: sizes[pid]), signal.SIGKILL)
            process.killed_at = size


def _take_peak(pid: int) -> int:
    """The largest resident memory since the last call, in bytes. Raises OSError if it has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            Path(f"/proc/{pid}/clear_refs").write_text("5")
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)  # a zombie has no memory


def _children(pid: int) -> list[int]:
    """The children, and theirs. Empty where the kernel does not list them."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, tasks.read_text().split()):
                found += [child, *_children(child)]
    return found


def _longest_wait(process: WatchedProcess) -> float:
    """Seconds for which one of its workers has at most waited for a CPU since the last call."""
    longest = 0
    for statistics in _schedstats(process):
        try:
            waited = int(statistics.read_text().split()[1])
        except OSError:  # the thread has ended, or the kernel does not count
            continue
        known = process.thread_waits.get(statistics, waited)
        process.thread_waits[statistics] = waited
        longest = max(longest, waited - known)
    return longest / 1e9


def _schedstats(process: WatchedProcess) -> Iterable[Path]:
    """The scheduler's statistics of the threads that do what requests wait for."""
    match process.works_in:
        case "first thread":
            return [Path(f"/proc/{process.pid}/schedstat")]
        case "threads":
            return Path(f"/proc/{process.pid}/task").glob("*/schedstat")
        case "children":
            return [Path(f"/proc/{child}/schedstat") for child in process.children]
