"""The filter of system calls, as the kernel would run it on both machines."""

import os
import struct
from types import SimpleNamespace

import pytest

from models.confinement import seccomp

ALLOWED, REFUSED = 0x7FFF0000, 0x00050001
X86_64, AARCH64 = ("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)


def verdict(program: list[bytes], data: bytes) -> int:
    """What the kernel's virtual machine says of a struct seccomp_data."""
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack("@HBBI", program[at])
        at += 1
        if code == 0x20:  # load a word
            [accumulator] = struct.unpack_from("=I", data, value)
        elif code == 0x06:  # return
            return int(value)
        elif code == 0x15:  # jump if equal
            at += if_true if accumulator == value else if_false
        elif code == 0x45:  # jump if any bit is set
            at += if_true if accumulator & value else if_false
        else:
            raise AssertionError(code)


@pytest.mark.parametrize(
    ("machine", "number", "arguments", "expected"),
    [
        (X86_64, 0, (), ALLOWED),  # read
        (X86_64, 257, (0, 0, os.O_RDONLY | os.O_CLOEXEC), ALLOWED),  # openat
        (X86_64, 257, (0, 0, os.O_WRONLY), REFUSED),
        (X86_64, 257, (0, 0, os.O_RDWR), REFUSED),
        (X86_64, 257, (0, 0, os.O_RDONLY | os.O_TRUNC), REFUSED),
        (X86_64, 257, (0, 0, os.O_RDONLY | os.O_CREAT), REFUSED),
        (X86_64, 2, (0, os.O_RDONLY), ALLOWED),  # open
        (X86_64, 2, (0, os.O_WRONLY, 0), REFUSED),
        (X86_64, 41, (), REFUSED),  # socket
        (X86_64, 62, (), REFUSED),  # kill
        (X86_64, 0x40000000, (), REFUSED),  # read of another interface
        (AARCH64, 63, (), ALLOWED),  # read
        (AARCH64, 56, (0, 0, os.O_RDONLY), ALLOWED),  # openat
        (AARCH64, 56, (0, 0, os.O_WRONLY), REFUSED),
        (AARCH64, 198, (), REFUSED),  # socket
        (AARCH64, 220, (), REFUSED),  # clone
        (AARCH64, 35, (), REFUSED),  # unlinkat
    ],
)
def test_the_filter_allows_to_read_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
    machine: tuple[str, int],
    number: int,
    arguments: tuple[int, ...],
    expected: int,
) -> None:
    name, architecture = machine
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=name))
    program = seccomp._program(sorted(seccomp.READING))
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("=IIQ6Q", number, architecture, 0, *padded)
    assert verdict(program, data) == expected
    other = struct.pack("=IIQ6Q", number, 0x40000003, 0, *padded)
    assert verdict(program, other) == REFUSED
