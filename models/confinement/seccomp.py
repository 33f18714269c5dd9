"""Seccomp: the kernel refuses this process all system calls but those that are named.

A list of what is allowed, because a list of what is forbidden lacks the calls of the next kernel.
"""

import ctypes
import os
import struct
from collections.abc import Iterable

from models.confinement.kernel import prctl

_PR_GET_SECCOMP, _PR_SET_SECCOMP = 21, 22
_FILTER = 2
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine -> its column in `_NUMBERS`, and its number in the kernel (AUDIT_ARCH_…)."""
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "access": (21, None),
    "brk": (12, 214),
    "clock_getres": (229, 114),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "close": (3, 57),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "fstat": (5, 80),
    "futex": (202, 98),
    "getcwd": (79, 17),
    "getdents64": (217, 61),
    "getegid": (108, 177),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "getrandom": (318, 278),
    "getrusage": (98, 165),
    "gettid": (186, 178),
    "gettimeofday": (96, 169),
    "getuid": (102, 174),
    "lseek": (8, 62),
    "lstat": (6, None),
    "madvise": (28, 233),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "nanosleep": (35, 101),
    "newfstatat": (262, 79),
    "open": (2, None),
    "openat": (257, 56),
    "pread64": (17, 67),
    "read": (0, 63),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "readv": (19, 65),
    "restart_syscall": (219, 128),
    "rseq": (334, 293),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_getaffinity": (204, 123),
    "sched_yield": (24, 124),
    "set_robust_list": (273, 99),
    "sigaltstack": (131, 132),
    "stat": (4, None),
    "statx": (332, 291),
    "sysinfo": (99, 179),
    "time": (201, None),
    "times": (100, 153),
    "uname": (63, 160),
    "write": (1, 64),
    "writev": (20, 66),
}
"""Call -> its number on x86-64 and on ARM64; None: the machine does not have it."""
READING = frozenset(_NUMBERS)
"""What a program needs that computes, reads files, and writes to what is already open. Without
`fcntl` and `ioctl`: they can send signals, and change files."""
_FLAGS = {"open": 1, "openat": 2}
"""Calls that open a file, and the number of the argument that says for what."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_LOAD, _EQUAL, _ANY_BIT, _END = 0x20, 0x15, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1
"""The second one: the call fails with EPERM."""


def is_available() -> bool:
    """Whether the kernel has it, for this machine."""
    try:
        return os.uname().machine in _MACHINES and prctl(_PR_GET_SECCOMP) >= 0
    except OSError:
        return False


def restrict(calls: Iterable[str]) -> None:
    """From now on this thread, and what it starts, can make these calls only, and open files for
    reading only. Others fail with EPERM. Needs `no_new_privs`. Raises OSError."""
    program = _program(calls)
    code = ctypes.create_string_buffer(b"".join(program))
    # struct sock_fprog: the number of instructions, and where they are
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    prctl(_PR_SET_SECCOMP, _FILTER, ctypes.addressof(head))


def _program(calls: Iterable[str]) -> list[bytes]:
    """Instructions: code, jump if true, jump if false, value. Jumps count instructions."""
    column, machine = _MACHINES[os.uname().machine]
    # struct seccomp_data: the number of the call, the machine, …, and six arguments from 16 on
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, machine), (_END, 0, 0, _REFUSE), (_LOAD, 0, 0, 0)]
    for name in calls:
        number = _NUMBERS[name][column]
        if number is None:
            continue
        if name in _FLAGS:
            flags = 16 + 8 * _FLAGS[name]
            steps += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, flags), (_ANY_BIT, 0, 1, _WRITING)]
            steps += [(_END, 0, 0, _REFUSE), (_END, 0, 0, _ALLOW)]
        else:
            steps += [(_EQUAL, 0, 1, number), (_END, 0, 0, _ALLOW)]
    steps.append((_END, 0, 0, _REFUSE))
    return [struct.pack("@HBBI", *step) for step in steps]
