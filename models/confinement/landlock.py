"""Landlock: the kernel refuses this process files, and what belongs to processes outside.

https://docs.kernel.org/userspace-api/landlock.html has the numbers.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from models.confinement.kernel import call

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
