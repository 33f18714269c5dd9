"""What a confined process may use and do. By Landlock the kernel refuses it files, and what belongs
to processes outside: https://docs.kernel.org/userspace-api/landlock.html has the numbers."""

import ctypes
import os
import resource
import signal
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from models.confinement import seccomp
from models.confinement.kernel import call, forbid_dumps, prctl

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_RULE_OF_PATH = 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_RIGHTS_OF_FILES = ((5, 16), (3, 15), (2, 14), (1, 13))
"""From a version on, so many rights of files exist. They are the lowest bits."""
_CONNECT_AND_BIND = 0b11
"""TCP, from version 4 on."""
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
"""Those of processes outside, from version 6 on."""


def version() -> int:
    """What the kernel can do; 0: it has no Landlock, or a container's rules forbid it."""
    try:
        return call(_CREATE_RULESET, 0, 0, _ASK_VERSION)
    except OSError:
        return 0


def restrict(readable: Iterable[str]) -> None:
    """From now on this thread, and what it starts, can read these files and what is in these
    folders, and do nothing else with files. What is open stays so. Names without a file are left
    out. Needs `no_new_privs`. Raises OSError."""
    known = version()
    rights = (1 << next(count for since, count in _RIGHTS_OF_FILES if known >= since)) - 1
    # struct landlock_ruleset_attr: an older kernel knows its beginning only
    fields = [rights]
    if known >= 4:
        fields.append(_CONNECT_AND_BIND)
    if known >= 6:
        fields.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
    attributes = ctypes.create_string_buffer(struct.pack(f"={len(fields)}Q", *fields))
    size = 8 * len(fields)
    rules = call(_CREATE_RULESET, ctypes.addressof(attributes), size, 0)
    try:
        for path in readable:
            _allow(rules, path)
        call(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: str) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rights = _READ_FILE | (_READ_FOLDER if stat.S_ISDIR(os.fstat(place).st_mode) else 0)
        # struct landlock_path_beneath_attr
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place))
        call(_ADD_RULE, rules, _RULE_OF_PATH, ctypes.addressof(rule), 0)
    finally:
        os.close(place)


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
    is_there = (version() > 0, seccomp.is_available())
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
        restrict(policy.readable)
    if "seccomp" not in lacking:
        seccomp.restrict(policy.calls)


def _limit(kind: int, least: int, most: int | None = None) -> None:
    resource.setrlimit(kind, (least, least if most is None else most))
