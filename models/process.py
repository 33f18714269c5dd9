"""What the system gives this process: memory (how much it uses, how much it may use, and giving
back what is free) and open files.

Memory is known on Linux only. Elsewhere nothing is limited.
"""

import contextlib
import ctypes
import os
import resource
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")
_CGROUP_FILES = ("memory.max", "memory/memory.limit_in_bytes")
"""The limit of a container as it sees it, in version 2 and 1 of cgroups."""
_MACHINE_SHARE = 0.5
"""Without a container the processes of a machine share its memory, with Postgres and Redis."""
_CONTAINER_SHARE = 0.8
"""The rest is for what is not resident memory of this process, and for growth between two looks."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""From malloc.h of glibc."""
_LARGE_BLOCK = 1024 * 1024
_KEPT = 64 * 1024 * 1024
"""Free bytes at the end of the heap that stay there for the next ones."""


def resident_bytes() -> int | None:
    """Bytes of memory that this process has; None if the system does not show it. About 10 µs."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def default_budget(cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that a process may use where no setting says it: 80 % of its container's limit, or half
    of the machine's memory. None if neither is known."""
    if sys.platform != "linux":
        return None
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [limit for name in _CGROUP_FILES if (limit := _limit_in(cgroups / name)) is not None]
    if limits and min(limits) < machine:
        return int(_CONTAINER_SHARE * min(limits))
    return int(_MACHINE_SHARE * machine)


def _limit_in(file: Path) -> int | None:
    """The limit in a file of a cgroup; None if there is none."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def give_back_large_blocks() -> None:
    """Makes the C library return blocks of a megabyte and more to the system when they are freed.
    Called once, at the start; does nothing where the library has no such option.

    By default glibc takes blocks of up to 32 MiB from its heap once such a block was freed, and
    small ones that are behind them keep the heap large: a web process that had sent outputs of
    16 MiB kept 450 MiB.
    """
    if (mallopt := getattr(_libc(), "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
        # An explicit threshold ends the adjustment of this one, whose default is very small.
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


def release_free_memory() -> None:
    """Gives memory that was freed back to the system. May take tens of milliseconds, in which other
    Python threads run; does nothing where the C library has no such call."""
    if (trim := getattr(_libc(), "malloc_trim", None)) is not None:
        trim(0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def raise_open_file_limit() -> int:
    """Raises the soft limit of open files to the hard one, and returns the soft limit.

    Systems leave the soft limit low for programs that use `select`, which none of ours does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS refuses a limit without end
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft
