"""What the process that reads a file gives up before it reads the first byte.

Limits of memory, CPU and open files hold on every system with POSIX limits. The rest is Linux:
the process ends with the one that has started it, is the first to be killed when memory runs out,
and, on x86-64 and ARM64, can neither open a socket nor start a process or a program.
"""

import ctypes
import math
import os
import platform
import resource
import signal
import struct
import sys
from contextlib import suppress
from pathlib import Path

from worker.retrieval.extract.limits import ExtractionLimits

_NICENESS = 5
_OPEN_FILES = 64
_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2

_REFUSED_CALLS = {
    # socket, clone, fork, vfork, execve, ptrace, execveat, io_uring_setup, clone3
    "x86_64": (0xC000003E, (41, 56, 57, 58, 59, 101, 322, 425, 435)),
    # ptrace, socket, clone, execve, execveat, io_uring_setup, clone3
    "aarch64": (0xC00000B7, (117, 198, 220, 221, 281, 425, 435)),
}
"""Machine -> its number in the kernel (AUDIT_ARCH_…), and the numbers of the calls."""
_OTHER_INTERFACE = 0x40000000
"""Numbers from here on belong to another interface of x86-64 (x32), which Python does not use."""


def confine(limits: ExtractionLimits, parent: int) -> None:
    """Limits this process for good. Ends it if `parent`, a process, has already ended."""
    os.nice(_NICENESS)
    seconds = math.ceil(limits.cpu_time)
    # The signal at the first limit tells the caller why the process has ended.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    if sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        _confine_by_kernel(parent)
    # No file can be written, and a user who is not root can start no process.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def _confine_by_kernel(parent: int) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent has already ended")
    known = _REFUSED_CALLS.get(platform.machine())
    if known is None:
        return
    program = _filter(*known)
    code = ctypes.create_string_buffer(b"".join(program))
    # struct sock_fprog: the number of instructions, and where they are
    head = struct.pack("@HP", len(program), ctypes.addressof(code))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # A kernel that refuses it leaves the other limits.
    libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(head), 0, 0)


def _filter(machine: int, calls: tuple[int, ...]) -> list[bytes]:
    """A program for the kernel: `calls`, and what does not belong to this machine, fail with
    EPERM."""
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 1
    # Each instruction: code, jump if true, jump if false, value. Jumps count instructions.
    steps = [
        (load, 0, 0, 4),
        (equal, 0, len(calls) + 3, machine),
        (load, 0, 0, 0),
        (at_least, len(calls) + 1, 0, _OTHER_INTERFACE),
        *((equal, len(calls) - index, 0, call) for index, call in enumerate(calls)),
        (end, 0, 0, allow),
        (end, 0, 0, refuse),
    ]
    return [struct.pack("@HBBI", *step) for step in steps]
