"""A process of a session with all that it starts: one group of processes, which nothing can leave.
With gVisor the group is `runsc`; the processes below it are of groups of their own.

Its first process is waited for last, so that the group's number stays its own until all are killed.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path


class Program:
    """A group of processes. `started`: its first process, the leader of a new session."""

    def __init__(self, started: "subprocess.Popen[bytes]", *, is_gvisor: bool = False) -> None:
        self.pid = started.pid
        self.is_gvisor = is_gvisor
        self._process = started
        self._cpu_ms = 0
        self._printed = b""
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._handle = os.pidfd_open(started.pid)
        asyncio.get_running_loop().add_reader(self._handle, self._on_exit)

    @property
    def is_running(self) -> bool:
        """Whether the first process has not ended."""
        return not self._ended.done()

    async def write(self, line: bytes) -> None:
        """Gives the first process a line; it may not read it, until it ends. Raises OSError."""

        def write_and_flush() -> None:
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()

        await asyncio.to_thread(write_and_flush)

    async def ended(self) -> int:
        """Waits for the end; the exit code as of a shell."""
        return await asyncio.shield(self._ended)

    def interrupt(self) -> None:
        """Interrupts the first process."""
        self._signal(signal.SIGINT, self.pid)

    def kill(self) -> None:
        """Kills all processes at once: none can start another in between."""
        self._signal(signal.SIGKILL, -self.pid)

    def thaw(self) -> None:
        """Lets it go on."""
        for target in self._targets():
            self._signal(signal.SIGCONT, target)

    def freeze(self) -> None:
        """Stops all processes until `thaw`, and kills all but the first."""
        for target in self._targets():
            self._signal(signal.SIGSTOP, target)
        for pid in [] if self.is_gvisor else pids_of([self]):
            if pid != self.pid:
                self._signal(signal.SIGKILL, pid)

    def _targets(self) -> list[int]:
        if not self.is_gvisor:
            return [-self.pid]
        return [pid for pid in pids_of([self]) if not _serves_files(pid)]

    def cpu_ms(self) -> int:
        """CPU time that it has used."""
        if self.is_running:
            # What processes have used that were lost since the last look stays counted.
            self._cpu_ms = max(self._cpu_ms, _cpu_ms(pids_of([self])))
        return self._cpu_ms

    def start_error(self) -> str:
        """What the first process printed before it ran code. If it runs, it must be killed."""
        assert self._process.stderr is not None
        printed = self._process.stderr.read(2000) if self.is_running else self._printed
        return printed.decode(errors="replace").strip()

    def _signal(self, number: int, target: int) -> None:
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(target, number)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self._cpu_ms = max(self._cpu_ms, _cpu_ms(pids_of([self])))
        self.kill()
        code = self._process.wait()
        if self._process.stderr is not None:
            os.set_blocking(self._process.stderr.fileno(), False)
            self._printed = self._process.stderr.read(2000) or b""
        for pipe in (self._process.stdin, self._process.stderr):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._ended.set_result(code if code >= 0 else 128 - code)


def pids_of(programs: Collection[Program]) -> list[int]:
    """The processes of these groups."""
    if any(each.is_gvisor for each in programs):
        return _descendants({each.pid for each in programs})
    groups = {each.pid for each in programs}
    return [pid for pid, group in _processes() if group in groups] if groups else []


def _descendants(found: set[int]) -> list[int]:
    """These processes and all below them."""
    parents: dict[int, int] = {}
    for pid, _ in _processes():
        with suppress(OSError, IndexError):
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
            parents[pid] = int(stat.split()[1])
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found = found | more
    return sorted(found)


def _serves_files(pid: int) -> bool:
    """Whether it is gVisor's process for files: it has nothing of its own to do, and must be able
    to notice that the others have ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"runsc-gofer")
    except OSError:
        return True


def takes_more(pids: list[int], most: int) -> bool:
    """Whether these processes have more than `most` bytes of memory that is not of files. What they
    share counts once, as far as this process may see it."""
    quick = sum(_fields(pid, "status", ("RssAnon", "RssShmem")) for pid in pids)
    return quick > most and memory_of(pids) > most


def anonymous(pids: list[int]) -> int:
    """Bytes of memory of these processes that is not of files, and not shared."""
    return sum(_fields(pid, "status", ("RssAnon",)) for pid in pids)


def memory_of(pids: list[int]) -> int:
    """Bytes of memory of these processes that is not of files."""
    return sum(map(_share, pids))


def _share(pid: int) -> int:
    proportional = _fields(pid, "smaps_rollup", ("Pss_Anon", "Pss_Shmem"))
    return proportional or _fields(pid, "status", ("RssAnon", "RssShmem"))


def _fields(pid: int, file: str, names: tuple[str, ...]) -> int:
    """The sum of fields of a file of /proc, in bytes; 0 if it cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.partition(":")[0] in names)


def _processes() -> Iterator[tuple[int, int]]:
    """Process -> its session."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - many, and often
        if name.isdigit():
            with suppress(OSError):
                yield int(name), os.getsid(int(name))


def _cpu_ms(pids: list[int]) -> int:
    """CPU time of these processes and of those of their children that have ended."""
    ticks = 0
    for pid in pids:
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return 1000 * ticks // os.sysconf("SC_CLK_TCK")
