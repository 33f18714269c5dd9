"""What a process of a session gives up for good before it reads the first code. What it starts
inherits all of it. Nothing but the standard library is imported.

A list of calls that are refused, not of those that are allowed as for readers of files
(models/confinement): code of models may be any program. Files, and signals to other sessions, are
Landlock's. Seccomp refuses sockets, what Landlock does not know (modes and owners of files, memory
and queues that processes share), and what has been a way out of containers.
"""

import ctypes
import os
import resource
import signal
import stat
import struct

from models.confinement.kernel import call, prctl
from models.confinement.policy import version

_Numbers = dict[str, tuple[int | None, int | None]]
"""Call -> its number on x86-64 and on ARM64; None: the machine does not have it."""
_REFUSED: _Numbers = {
    # network: `socketpair` is below
    "accept": (43, 202),
    "accept4": (288, 242),
    "bind": (49, 200),
    "connect": (42, 203),
    "listen": (50, 201),
    "socket": (41, 198),
    # other processes; a session's own stay in its group, by which they are stopped and counted
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgget": (68, 186),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semget": (64, 190),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "setsid": (112, 157),
    "shmat": (30, 196),
    "shmget": (29, 194),
    # programs that are no files
    "execveat": (322, 281),
    "memfd_create": (319, 279),
    # mounts and namespaces: `clone` is below
    "chroot": (161, 51),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "pivot_root": (155, 41),
    "setns": (308, 268),
    "umount2": (166, 39),
    "unshare": (272, 97),
    # the kernel
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "modify_ldt": (154, None),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "seccomp": (317, 277),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
"""They fail with EPERM."""
_IGNORED: _Numbers = {
    "chmod": (90, None),
    "chown": (92, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "file_setattr": (469, 469),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "futimesat": (261, None),
    "lchown": (94, None),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
}
"""They do nothing and say that they have succeeded: an owner may change files anywhere, and without
root all sessions have one user. Programs that copy files go on."""
_IGNORED_WITH_HOSTS: _Numbers = {"connect": (42, 203), "setsockopt": (54, 208)}
"""Where code gets sockets of the sandbox (sockets.py), which are connected: whatever address or
option a program names, it is none of the kernel's."""
_WITHOUT_SIGNAL_SCOPE: _Numbers = {
    "kill": (62, 129),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tgkill": (234, 131),
    "tkill": (200, 130),
}
"""Refused where Landlock cannot keep signals inside a session."""
_WITHOUT_TRUNCATE: _Numbers = {"truncate": (76, 45)}
_SOCKET, _SECCOMP = (41, 198), (317, 277)
_SOCKETPAIR, _PRLIMIT, _CLONE, _CLONE3 = (53, 199), (302, 261), (56, 220), (435, 435)
_CLONE_REFUSED = 0x7E020080 | 0x8000
"""New namespaces, and a child of the sandbox itself (CLONE_PARENT)."""
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _AND, _EQUAL, _ANY_BIT, _AT_LEAST, _END = 0x20, 0x54, 0x15, 0x45, 0x35, 0x06
_ALLOW, _REFUSE, _IGNORE, _UNKNOWN_CALL = 0x7FFF0000, 0x00050001, 0x00050000, 0x00050026
_NOTIFY, _WITH_LISTENER = 0x7FC00000, 1 << 3
_X32 = 0x40000000
_INTERNET, _STREAM, _TCP = 2, 1, 6
_NEW_MOUNTS, _NEW_USERS, _BIND = 0x20000, 0x10000000, 4096
_CLOSE_RANGE, _OWN_FILES = 436, 2

_EXECUTE, _WRITE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_DEVICES_AND_SOCKETS = 1 << 6 | 1 << 9 | 1 << 11
_TRUNCATE, _USE_DEVICE = 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE | _READ_FILE | _TRUNCATE | _USE_DEVICE
"""Rights that a rule of one file may have."""
SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib64", "/usr"),
    *("/etc/ld.so.cache", "/etc/fonts", "/etc/localtime", "/etc/alternatives", "/etc/mime.types"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/full")


def confine(
    folder: str, readable: tuple[str, ...], limits: dict[int, int], parent: int | None
) -> None:
    """Confines this process. `folder`: the session's, with `data`, `tmp` and `out`. `readable`:
    folders of Python. `limits`: of `resource`. `parent`: the sandbox, with which it ends; None: it
    is in a container of gVisor, which has no Landlock and other files only. Raises OSError if the
    kernel lacks Landlock or seccomp, or refuses them. `restrict_calls` must follow."""
    if parent is not None:
        prctl(1, signal.SIGKILL)  # it dies with its parent
        if os.getppid() != parent:
            raise SystemExit("the sandbox has already ended")
    os.nice(5)
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))
    with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - it is no path of ours
        file.write("1000")
    _drop_capabilities()
    prctl(38, 1)  # no new privileges: setuid programs give none
    if parent is not None:
        _restrict_files(folder, readable)


def _drop_capabilities() -> None:
    """root without them is a user like others."""
    column, _ = _MACHINES[os.uname().machine]
    head = ctypes.create_string_buffer(struct.pack("=II", 0x20080522, 0))
    none = ctypes.create_string_buffer(24)
    call((126, 91)[column], ctypes.addressof(head), ctypes.addressof(none))


def _restrict_files(folder: str, readable: tuple[str, ...]) -> None:
    """The session's folder itself stays as it is: what is in it cannot be replaced by a link."""
    known = version()
    if known < 1:
        raise OSError("the kernel has no Landlock, or a container's rules forbid it")
    rights = (1 << (16 if known >= 5 else 15 if known >= 3 else 14 if known >= 2 else 13)) - 1
    fields = [rights, *([0b11] if known >= 4 else []), *([0b11] if known >= 6 else [])]
    attributes = ctypes.create_string_buffer(struct.pack(f"={len(fields)}Q", *fields))
    rules = call(444, ctypes.addressof(attributes), 8 * len(fields), 0)
    for path in (*SYSTEM, *readable):
        _allow(rules, path, _READ_FILE | _READ_FOLDER | _EXECUTE)
    for path in _DEVICES:
        _allow(rules, path, _READ_FILE | _WRITE)
    for name in ("data", "tmp"):
        _allow(rules, f"{folder}/{name}", rights & ~(_EXECUTE | _DEVICES_AND_SOCKETS))
    for name in ("stdout", "stderr"):
        _allow(rules, f"{folder}/out/{name}", rights & (_WRITE | _TRUNCATE))
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


def mount_data(folder: str) -> None:
    """Gives this process mounts of its own, in which /mnt/data is the session's. Raises OSError if
    the kernel or a container's rules refuse it to users without privileges."""
    user, group = os.getuid(), os.getgid()
    column, _ = _MACHINES[os.uname().machine]
    call((272, 97)[column], _NEW_USERS | _NEW_MOUNTS)
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - it is no path of ours
            file.write(line)
    if not os.path.isdir("/mnt/data"):  # noqa: PTH112 - few imports
        _mount("tmpfs", "/mnt", "tmpfs", 0)
        os.mkdir("/mnt/data")  # noqa: PTH102 - few imports
    _mount(f"{folder}/data", "/mnt/data", "", _BIND)


def unshare_files() -> None:
    """Gives this thread a table of open files of its own, with the standard ones only."""
    call(_CLOSE_RANGE, 3, 0x7FFFFFFF, _OWN_FILES)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    column, _ = _MACHINES[os.uname().machine]
    texts = [ctypes.create_string_buffer(each.encode()) for each in (source, target, kind)]
    call((165, 40)[column], *map(ctypes.addressof, texts), flags, 0)


def restrict_calls(is_gvisor: bool, *, has_hosts: bool = False) -> int | None:
    """Refuses system calls to this thread, and to all threads and processes that it starts.
    `has_hosts`: calls for a TCP socket wait for an answer on the descriptor that is returned."""
    column, machine = _MACHINES[os.uname().machine]
    known = version()
    ignored = {**_IGNORED, **(_IGNORED_WITH_HOSTS if has_hosts else {})}
    refused = {
        **{name: numbers for name, numbers in _REFUSED.items() if name not in ignored},
        **(_WITHOUT_SIGNAL_SCOPE if known < 6 and not is_gvisor else {}),
        **(_WITHOUT_TRUNCATE if known < 3 and not is_gvisor else {}),
    }
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, machine), (_END, 0, 0, _REFUSE), (_LOAD, 0, 0, 0)]
    if column == 0:
        steps += [(_AT_LEAST, 0, 1, _X32), (_END, 0, 0, _REFUSE)]
    if has_hosts:
        steps += [(_EQUAL, 0, 10, _SOCKET[column]), (_LOAD, 0, 0, 16), (_EQUAL, 0, 7, _INTERNET)]
        steps += [(_LOAD, 0, 0, 24), (_AND, 0, 0, 0xF), (_EQUAL, 0, 4, _STREAM), (_LOAD, 0, 0, 32)]
        steps += [(_EQUAL, 1, 0, 0), (_EQUAL, 0, 1, _TCP), (_END, 0, 0, _NOTIFY)]
        steps += [(_END, 0, 0, _REFUSE)]
    for answer, calls in ((_REFUSE, refused), (_IGNORE, ignored)):
        for numbers in calls.values():
            if (number := numbers[column]) is not None:
                steps += [(_EQUAL, 0, 1, number), (_END, 0, 0, answer)]
    # The C library falls back to `clone`, whose flags can be read here.
    steps += [(_EQUAL, 0, 1, _CLONE3[column]), (_END, 0, 0, _UNKNOWN_CALL)]
    steps += [(_EQUAL, 0, 4, _CLONE[column]), (_LOAD, 0, 0, 16)]
    steps += [(_ANY_BIT, 0, 1, _CLONE_REFUSED), (_END, 0, 0, _REFUSE), (_END, 0, 0, _ALLOW)]
    # Its own limits only.
    steps += [(_EQUAL, 0, 4, _PRLIMIT[column]), (_LOAD, 0, 0, 16)]
    steps += [(_EQUAL, 1, 0, 0), (_END, 0, 0, _REFUSE), (_END, 0, 0, _ALLOW)]
    # A pair of datagram sockets can send to other sockets. The lowest bits are the kind.
    steps += [(_EQUAL, 0, 5, _SOCKETPAIR[column]), (_LOAD, 0, 0, 24), (_AND, 0, 0, 0xF)]
    steps += [(_EQUAL, 1, 0, _STREAM), (_END, 0, 0, _REFUSE), (_END, 0, 0, _ALLOW)]
    steps += [(_END, 0, 0, _ALLOW)]
    program = [struct.pack("@HBBI", *step) for step in steps]
    code = ctypes.create_string_buffer(b"".join(program))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    if has_hosts:
        try:
            return call(_SECCOMP[column], 1, _WITH_LISTENER, ctypes.addressof(head))
        except OSError as error:
            lacking = "the kernel or a container's rules hand no calls for sockets over"
            raise OSError(error.errno, f"{lacking} ({error.strerror})") from None
    prctl(22, 2, ctypes.addressof(head))
    return None
