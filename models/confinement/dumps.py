"""Keeps the memory of this process to itself."""

import resource
import sys

from models.confinement.kernel import prctl

_PR_SET_DUMPABLE = 4


def forbid_dumps() -> None:
    """No core file of this process is written, and on Linux no other process of the same user can
    read its memory, environment or open files, or trace it. root can.

    A system that hands core dumps to a program (systemd-coredump) does so whatever the limit of
    their size is, but not for such a process. It ends with an `exec`.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        prctl(_PR_SET_DUMPABLE, 0)
