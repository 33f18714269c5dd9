"""Calls of the kernel that Python has no function for, and no dumps of this process."""

import ctypes
import os
import resource
import sys

_libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: int) -> int:
    """Makes a system call with numbers and addresses. Raises OSError."""
    return _checked(_libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)))


def prctl(option: int, *values: int) -> int:
    """Changes or reads an attribute of this process. Raises OSError."""
    padded = (*values, *(0,) * (4 - len(values)))
    return _checked(_libc.prctl(option, *map(ctypes.c_ulong, padded)))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


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
