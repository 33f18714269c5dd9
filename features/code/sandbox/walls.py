"""What the process of a session gives up for good, before it reads the first code. What it starts
inherits all of it. Nothing but the standard library is imported.

A list of calls that are refused, not of those that are allowed, as a reader of files has it
(models/confinement): code of models may be any program. Files, TCP, and signals to other sessions
are Landlock's; sockets of all kinds and what has been a way out of containers are seccomp's.
"""

import ctypes
import os
import resource
import signal
import stat
import struct

from models.confinement.kernel import call, forbid_dumps, prctl
from models.confinement.landlock import version

_NUMBERS: dict[str, tuple[int, int]] = {
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "swapon": (167, 224),
    "reboot": (169, 142),
    "settimeofday": (170, 170),
    "clock_settime": (227, 112),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "seccomp": (317, 277),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "memfd_create": (319, 279),
    "execveat": (322, 281),
}
"""Call -> its number on x86-64 and on ARM64: they fail with EPERM. `memfd_create` and `execveat`:
a program that code has written must not be started."""
_CLONE, _CLONE3 = (56, 220), (435, 435)
_NEW_NAMESPACES = 0x7E020080
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _END = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _REFUSE, _UNKNOWN_CALL = 0x7FFF0000, 0x00050001, 0x00050026
_X32 = 0x40000000
_READ = 1 << 2 | 1 << 3
_EXECUTE = 1 << 0
_ON_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""Rights that a rule of one file may have."""
_SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib64", "/usr", "/opt"),
    *("/etc/ld.so.cache", "/etc/fonts", "/etc/localtime", "/etc/alternatives", "/etc/mime.types"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/full")


def confine(
    writable: str,
    readable: tuple[str, ...],
    *,
    memory: int,
    file_bytes: int,
    processes: int,
    parent: int,
) -> None:
    """Confines this process. `writable`: the session's folder. `readable`: folders of Python.
    Raises OSError if the kernel lacks Landlock or seccomp, or refuses them."""
    prctl(1, signal.SIGKILL)  # it dies with its parent
    if os.getppid() != parent:
        raise SystemExit("the sandbox has already ended")
    os.nice(5)
    for kind, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - it is no path of ours
        file.write("1000")
    forbid_dumps()
    _drop_capabilities()
    prctl(38, 1)  # no new privileges: setuid programs give none
    _restrict_files(writable, readable)
    _restrict_calls()


def _drop_capabilities() -> None:
    """root without them is a user like others."""
    column, _ = _MACHINES[os.uname().machine]
    head = ctypes.create_string_buffer(struct.pack("=II", 0x20080522, 0))
    none = ctypes.create_string_buffer(24)
    call((126, 91)[column], ctypes.addressof(head), ctypes.addressof(none))


def _restrict_files(writable: str, readable: tuple[str, ...]) -> None:
    known = version()
    if known < 1:
        raise OSError("the kernel has no Landlock, or a container's rules forbid it")
    rights = (1 << (16 if known >= 5 else 15 if known >= 3 else 14 if known >= 2 else 13)) - 1
    fields = [rights, *([0b11] if known >= 4 else []), *([0b11] if known >= 6 else [])]
    attributes = ctypes.create_string_buffer(struct.pack(f"={len(fields)}Q", *fields))
    rules = call(444, ctypes.addressof(attributes), 8 * len(fields), 0)
    for path in (*_SYSTEM, *readable):
        _allow(rules, path, rights & (_READ | _EXECUTE))
    for path in _DEVICES:
        _allow(rules, path, rights & (1 << 1 | 1 << 2))
    _allow(rules, writable, rights & ~_EXECUTE)
    call(446, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not stat.S_ISDIR(os.fstat(place).st_mode):
        rights &= _ON_FILES
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place))
    call(445, rules, 1, ctypes.addressof(rule), 0)
    os.close(place)


def _restrict_calls() -> None:
    column, machine = _MACHINES[os.uname().machine]
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, machine), (_END, 0, 0, _REFUSE), (_LOAD, 0, 0, 0)]
    if column == 0:
        steps += [(_AT_LEAST, 0, 1, _X32), (_END, 0, 0, _REFUSE)]
    for numbers in _NUMBERS.values():
        steps += [(_EQUAL, 0, 1, numbers[column]), (_END, 0, 0, _REFUSE)]
    # The C library falls back to `clone`, whose flags can be read here.
    steps += [(_EQUAL, 0, 1, _CLONE3[column]), (_END, 0, 0, _UNKNOWN_CALL)]
    steps += [(_EQUAL, 0, 3, _CLONE[column]), (_LOAD, 0, 0, 16)]
    steps += [(_ANY_BIT, 0, 1, _NEW_NAMESPACES), (_END, 0, 0, _REFUSE), (_END, 0, 0, _ALLOW)]
    program = [struct.pack("@HBBI", *step) for step in steps]
    code = ctypes.create_string_buffer(b"".join(program))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    prctl(22, 2, ctypes.addressof(head))
