"""What a file would do that has taken over the process that reads it.

`extraction` starts this instead of `features.retrieval.extract.child`, so that each attack runs
where a file is read: with the same confinement, environment and open files. Standard input is a
Targets as JSON; the text that comes back is JSON too, attack -> outcome: `done`, `reached the
kernel: …`, or `refused: …`. With the ending `.landlock` or `.seccomp` the system seems to lack
that; with `.flood` text without an end comes instead.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from features.retrieval.extract.child import confine_reader
from features.retrieval.extract.child_protocol import (
    END,
    PIECE,
    TEXT,
    ExtractionLimits,
    encode_frame,
)
from models.confinement import policy

Attack = Callable[[], object]

_REFUSALS = (errno.EPERM, errno.EACCES, errno.EMFILE, errno.ENOMEM)
_CALLS = {
    "ptrace": (101, 117, (16, "parent", 0, 0)),
    "process_vm_readv": (310, 270, ("parent", 0, 0, 0, 0, 0)),
    "process_vm_writev": (311, 271, ("parent", 0, 0, 0, 0, 0)),
    "tgkill": (234, 131, ("parent", "parent", 0)),
    "pidfd_open": (434, 434, ("parent", 0)),
    "pidfd_send_signal": (424, 424, (0, 0, 0, 0)),
    "pidfd_getfd": (438, 438, (0, 0, 0)),
    "process_madvise": (440, 440, (0, 0, 0, 0, 0)),
    "kcmp": (312, 272, ("parent", "parent", 0, 0, 0)),
    "memfd_create": (319, 279, (0, 0)),
    "io_uring_setup": (425, 425, (1, 0)),
    "bpf": (321, 280, (0, 0, 0)),
    "userfaultfd": (323, 282, (0,)),
    "perf_event_open": (298, 241, (0, 0, -1, -1, 0)),
    "keyctl": (250, 219, (0, -3, 0)),
    "add_key": (248, 217, (0, 0, 0, 0, 0)),
    "shmget": (29, 194, (1, 4096, 0o1600)),
    "mount": (165, 40, (0, 0, 0, 0, 0)),
    "unshare": (272, 97, (0x10000000,)),
    "setns": (308, 268, (0, 0)),
    "clone3": (435, 435, (0, 0)),
    "execveat": (322, 281, (-1, 0, 0, 0, 0)),
    "openat2": (437, 437, (-100, 0, 0, 0)),
    "open_by_handle_at": (304, 265, (0, 0, 0)),
    "personality": (135, 92, (0x0040000,)),
    "an unknown call": (9999, 9999, ()),
    "another interface (x32)": (0x40000000 + 39, 0x40000000 + 39, ()),
}
"""Name -> number on x86-64 and ARM64, arguments."""


class Targets(TypedDict):
    """What is attacked."""

    stored: str
    """A file that the user of this process may change."""
    folder: str
    """Where it may make files."""
    tcp: int
    unix: str


def attacks(targets: Targets, parent: int) -> dict[str, Attack]:
    """Each by its name."""
    return {
        **_on_the_worker(parent),
        **_on_files(Path(targets["stored"]), Path(targets["folder"])),
        **_on_the_network(targets),
        **_on_limits(parent),
        **{f"call {name}": _raw(name, parent) for name in _CALLS},
        "change the folder": lambda: os.chdir(targets["folder"]),
        "change the root": lambda: os.chroot(targets["folder"]),
    }


def _on_the_worker(parent: int) -> dict[str, Attack]:
    folder = Path(f"/proc/{parent}")
    return {
        "read the worker's environment": lambda: (folder / "environ").read_bytes(),
        "read the worker's memory": lambda: os.close(os.open(folder / "mem", os.O_RDONLY)),
        "write the worker's memory": lambda: os.close(os.open(folder / "mem", os.O_WRONLY)),
        "read the worker's map of memory": lambda: (folder / "maps").read_bytes(),
        "list the worker's open files": lambda: os.listdir(folder / "fd"),
        "follow the worker's open file": lambda: os.readlink(folder / "fd/0"),
        "read the worker's command": lambda: (folder / "cmdline").read_bytes(),
        "follow the worker's root": lambda: os.listdir(folder / "root/etc"),
        "list processes": lambda: os.listdir("/proc"),
        "read process 1": lambda: Path("/proc/1/cmdline").read_bytes(),
        "signal the worker": lambda: os.kill(parent, 0),
        "signal the worker's group": lambda: os.killpg(os.getpgid(parent), 0),
        "signal everybody": lambda: os.kill(-1, 0),
        "signal by a pipe": _signal_by_pipe,
        "limit the worker": lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE),
    }


def _on_files(stored: Path, folder: Path) -> dict[str, Attack]:
    return {
        "read a stored file": stored.read_bytes,
        "read /etc/passwd": lambda: Path("/etc/passwd").read_bytes(),
        "list a folder": lambda: os.listdir(folder),
        "change a stored file": lambda: os.close(os.open(stored, os.O_WRONLY)),
        "empty a stored file": lambda: os.truncate(stored, 0),
        "empty by opening": lambda: os.close(os.open(stored, os.O_RDONLY | os.O_TRUNC)),
        "make a file": lambda: os.close(os.open(folder / "made", os.O_CREAT | os.O_WRONLY)),
        "leave a file in /tmp": lambda: os.close(os.open("/tmp/left", os.O_CREAT)),
        "make a nameless file": lambda: os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY)),
        "make a folder": lambda: os.mkdir(folder / "folder"),
        "make a link": lambda: os.link(stored, folder / "link"),
        "make a symbolic link": lambda: os.symlink(stored, folder / "symlink"),
        "make a pipe": lambda: os.mkfifo(folder / "fifo"),
        "rename a file": lambda: os.rename(folder / "to-rename", folder / "renamed"),
        "remove a file": lambda: os.unlink(folder / "to-remove"),
        "remove a folder": lambda: os.rmdir(folder / "to-rmdir"),
        "change the mode": lambda: os.chmod(stored, 0o777),
        "change the mode of its file": lambda: os.fchmod(0, 0o777),
        "change the owner": lambda: os.chown(stored, os.getuid(), os.getgid()),
        "change the time": lambda: os.utime(stored, (1, 1)),
        "set an attribute": lambda: os.setxattr(stored, "user.a", b"b"),
        "open its file for writing": lambda: os.close(os.open("/proc/self/fd/0", os.O_RDWR)),
    }


def _on_the_network(targets: Targets) -> dict[str, Attack]:
    def connect(family: int, kind: int, address: object) -> None:
        with socket.socket(family, kind) as it:
            it.connect(address)  # type: ignore[arg-type]  # of each family

    stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
    return {
        "TCP": lambda: connect(socket.AF_INET, stream, ("127.0.0.1", targets["tcp"])),
        "UDP": lambda: connect(socket.AF_INET, datagram, ("127.0.0.1", 53)),
        "TCP of IPv6": lambda: connect(socket.AF_INET6, stream, ("::1", targets["tcp"])),
        "a Unix socket": lambda: connect(socket.AF_UNIX, stream, targets["unix"]),
        "an abstract Unix socket": lambda: connect(socket.AF_UNIX, stream, "\0abstract"),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close(),
        "vsock": lambda: socket.socket(socket.AF_VSOCK, stream).close(),
        "raw packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
        "a pair of sockets": socket.socketpair,
        "DNS": lambda: socket.getaddrinfo("localhost", 80),
    }


def _on_limits(parent: int) -> dict[str, Attack]:
    return {
        "fork": _fork,
        "run a program": lambda: subprocess.run(["/bin/true"], check=True),
        "become a program": lambda: os.execv("/bin/true", ["true"]),
        "10 GiB of memory": lambda: mmap.mmap(-1, 10 * 1024**3),
        "100 open files": lambda: [os.open(os.__file__, os.O_RDONLY) for _ in range(100)],
        "set a limit": lambda: resource.prlimit(0, resource.RLIMIT_CORE, (0, 0)),
        "leave the group": os.setsid,
        "join another group": lambda: os.setpgid(0, os.getpgid(parent)),
        "outlive the worker": lambda: _prctl(1, 0),
        "become traceable": lambda: _prctl(4, 1),
        "choose a processor": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
        "change its priority": lambda: os.nice(1),
    }


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _signal_by_pipe() -> None:
    """The kernel can send any signal to any process of the user when a pipe becomes readable."""
    fcntl.fcntl(1, fcntl.F_SETOWN, os.getpid())


def _prctl(option: int, value: int) -> None:
    _checked(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0))


def _raw(name: str, parent: int) -> Attack:
    x86_64, aarch64, arguments = _CALLS[name]
    number = aarch64 if os.uname().machine == "aarch64" else x86_64
    numbers = [parent if each == "parent" else int(each) for each in arguments]

    def attack() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        _checked(libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, numbers)))

    return attack


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "")


def _outcome(attack: Attack) -> str:
    try:
        attack()
    except Exception as error:  # noqa: BLE001 - each kind is an outcome
        number = error.errno if isinstance(error, OSError) else None
        name = errno.errorcode.get(number or 0, str(error))
        is_refused = number in _REFUSALS or isinstance(error, socket.gaierror)
        return f"{'refused' if is_refused else 'reached the kernel'}: {name}"
    return "done"


def main(argument: str, ending: str, parent: str) -> None:
    """Writes the frames."""
    output = os.dup(1)
    targets = json.loads(Path("/dev/stdin").read_text() or "{}")
    if ending[1:] in policy.PROTECTIONS:
        policy.missing = lambda: [ending[1:]]
    confine_reader(ExtractionLimits.decode(argument), int(parent))
    if ending == ".flood":
        while True:
            os.write(output, encode_frame(TEXT, b"x" * PIECE))
    outcomes = {name: _outcome(each) for name, each in attacks(targets, int(parent)).items()}
    outcomes["environment"] = " ".join(sorted(os.environ))  # noqa: TID251 - what it has is looked at
    os.write(output, encode_frame(TEXT, json.dumps(outcomes).encode()) + encode_frame(END))


if __name__ == "__main__":
    main(*sys.argv[1:])
