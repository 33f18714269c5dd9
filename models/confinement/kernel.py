"""Calls of the kernel that Python has no function for."""

import ctypes
import os

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
