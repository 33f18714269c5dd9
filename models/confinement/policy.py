"""What a confined process may use and do."""

import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass

from models.confinement import landlock, seccomp
from models.confinement.kernel import forbid_dumps, prctl

PROTECTIONS = ("landlock", "seccomp")
"""Without the first a confined process can read each file of its user, without the second it can
connect, and signal other processes of its user."""
_NICENESS = 5
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


@dataclass(frozen=True, slots=True)
class Policy:
    """All that is not named here is refused: to write, remove or rename a file, to connect, to
    start a process or a program, to send a signal, to look into another process."""

    memory: int
    """Bytes of address space."""
    cpu_seconds: int
    """SIGXCPU comes after them, SIGKILL five seconds later."""
    open_files: int
    readable: tuple[str, ...]
    """Files, and folders with all that is in them. What is open already stays so."""
    calls: frozenset[str] = seccomp.READING
    """System calls, names of `seccomp.py`."""


def missing() -> list[str]:
    """The PROTECTIONS that this system lacks, or forbids its containers."""
    if sys.platform != "linux":
        return [*PROTECTIONS]
    is_there = (landlock.version() > 0, seccomp.is_available())
    return [name for name, there in zip(PROTECTIONS, is_there, strict=True) if not there]


def confine(policy: Policy, parent: int) -> None:
    """Confines this process for good; it has one thread. What the system lacks is left out. Ends
    the process if `parent`, a process, has already ended. Raises OSError if something that the
    system has cannot be applied."""
    os.nice(_NICENESS)
    _limit(resource.RLIMIT_CPU, policy.cpu_seconds, policy.cpu_seconds + 5)
    _limit(resource.RLIMIT_AS, policy.memory)
    _limit(resource.RLIMIT_NOFILE, policy.open_files)
    if sys.platform == "linux":
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - pathlib takes longer to import
            file.write("1000")
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the parent has already ended")
    forbid_dumps()
    # No file grows, and a user who is not root starts no process, also without what follows.
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NPROC, 0)
    lacking = missing()
    if sys.platform == "linux":
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if "landlock" not in lacking:
        landlock.restrict(policy.readable)
    if "seccomp" not in lacking:
        seccomp.restrict(policy.calls)


def _limit(kind: int, least: int, most: int | None = None) -> None:
    resource.setrlimit(kind, (least, least if most is None else most))
